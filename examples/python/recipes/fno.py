"""A Fourier neural operator on fields whose latitudes are cut.

    python3 fno.py                                                  # alone
    torchrun --nproc-per-node 2 fno.py --domain 2                   # two ranks share each field
    meshrun run --nproc 4 fno.py --dp 2 --domain 2 --size small

The transforms send each element once, in one transposition.
"""

import torch
from torch import nn
from torch.nn import functional as F

import common

SIZES = {  # channels of a field, latitudes, longitudes; width, kept frequencies of each dimension, layers
    "toy": ((2, 15, 16), 8, 4, 2),
    "small": ((20, 180, 360), 32, 16, 4),
    "large": ((69, 721, 1440), 64, 32, 6),
}


class SpectralConvolution(nn.Module):
    """Multiplies the lowest frequencies by complex weights and drops the others."""

    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        shape = (2, width, width, modes, modes)  # of frequencies above and below zero along latitudes
        self.weight = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / width)

    def forward(self, x):
        rows, columns = x.shape[-2:]
        spectrum = torch.fft.rfft2(x, norm="ortho")
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :self.modes, :self.modes], self.weight[0])
        high = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -self.modes:, :self.modes], self.weight[1])
        out = torch.zeros_like(spectrum)
        out[:, :, :self.modes, :self.modes] = low
        out[:, :, -self.modes:, :self.modes] = high
        return torch.fft.irfft2(out, s=(rows, columns), norm="ortho")


class FourierNeuralOperator(nn.Module):
    """(batch, channels, latitudes, longitudes) to the same."""

    def __init__(self, channels, width, modes, layers):
        super().__init__()
        self.lift, self.project = nn.Conv2d(channels, width, 1), nn.Conv2d(width, channels, 1)
        self.spectral = nn.ModuleList(SpectralConvolution(width, modes) for _ in range(layers))
        self.pointwise = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))

    def forward(self, x):
        y = self.lift(x)
        for spectral, pointwise in zip(self.spectral, self.pointwise):
            y = F.gelu(spectral(y) + pointwise(y))
        return x + self.project(y)


def main():
    given = common.options(__doc__, SIZES)
    mesh = common.initialize(given)
    shape, width, modes, layers = SIZES[given.size]
    model = FourierNeuralOperator(shape[0], width, modes, layers)

    def loss_of(model, batch):
        error = (model(batch["now"]) - batch["next"]).flatten(1).norm(dim=1)
        return (error / batch["next"].flatten(1).norm(dim=1)).mean()  # relative L2

    common.train(model, loss_of, *common.loader_of_waves(mesh, shape, given), given)


if __name__ == "__main__":
    main()
