"""AFNO, the network of FourCastNet, on fields whose latitudes are cut.

    python3 afno.py                                                 # alone
    torchrun --nproc-per-node 2 afno.py --domain 2                  # two ranks share each field
    meshrun run --nproc 4 afno.py --dp 2 --domain 2 --size small

Patches are mixed in Fourier space by the transforms, which send each element once; the rest is each rank's own.
`meshrun.models.DistributedAFNO` is the same network with its channels cut, too.
"""

import torch
from torch import nn
from torch.nn import functional as F

import common

SIZES = {  # channels of a field, latitudes, longitudes; rows of a patch; width, blocks, layers
    "toy": ((2, 20, 16), 2, 16, 4, 2),
    "small": ((20, 180, 360), 6, 256, 8, 6),
    "large": ((69, 720, 1440), 8, 768, 8, 12),
}


class SpectralMixing(nn.Module):
    """A complex perceptron of two layers on each frequency, the same for all, with a matrix for each block of channels."""

    def __init__(self, width, blocks, threshold=0.01):
        super().__init__()
        self.blocks, self.threshold = blocks, threshold
        each = width // blocks
        self.weight1, self.weight2 = (nn.Parameter(0.02 * torch.randn(2, blocks, each, each)) for _ in range(2))
        self.bias1, self.bias2 = (nn.Parameter(0.02 * torch.randn(2, blocks, each)) for _ in range(2))

    @staticmethod
    def _product(real, imaginary, weight, bias):
        def by(x, w):
            return torch.einsum("...bi,bio->...bo", x, w)

        return (by(real, weight[0]) - by(imaginary, weight[1]) + bias[0],
                by(imaginary, weight[0]) + by(real, weight[1]) + bias[1])

    def forward(self, x):
        batch, rows, columns, width = x.shape
        spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        spectrum = spectrum.reshape(batch, rows, columns // 2 + 1, self.blocks, width // self.blocks)
        real, imaginary = self._product(spectrum.real, spectrum.imag, self.weight1, self.bias1)
        real, imaginary = self._product(F.relu(real), F.relu(imaginary), self.weight2, self.bias2)
        mixed = torch.view_as_complex(F.softshrink(torch.stack([real, imaginary], dim=-1), self.threshold))
        mixed = mixed.reshape(batch, rows, columns // 2 + 1, width)
        return x + torch.fft.irfft2(mixed, s=(rows, columns), dim=(1, 2), norm="ortho")


class Block(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.norm1, self.mixing = nn.LayerNorm(width), SpectralMixing(width, blocks)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.mixing(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class AFNO(nn.Module):
    """(batch, channels, latitudes, longitudes) to the same."""

    def __init__(self, shape, patch, width, blocks, layers):
        super().__init__()
        channels, rows, columns = shape
        self.patch = patch
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, rows // patch, columns // patch, width))
        self.layers = nn.Sequential(*[Block(width, blocks) for _ in range(layers)])
        self.head = nn.Linear(width, channels * patch * patch)

    def forward(self, x):
        tokens = self.layers(self.embed(x).permute(0, 2, 3, 1) + self.position)
        batch, rows, columns = tokens.shape[:3]
        pixels = self.head(tokens).reshape(batch, rows, columns, -1, self.patch, self.patch).permute(0, 3, 1, 4, 2, 5)
        return x + pixels.reshape(x.shape)


def main():
    given = common.options(__doc__, SIZES)
    mesh = common.initialize(given)
    shape, patch, width, blocks, layers = SIZES[given.size]
    model = AFNO(shape, patch, width, blocks, layers)

    def loss_of(model, batch):
        return F.mse_loss(model(batch["now"]), batch["next"])

    common.train(model, loss_of, *common.loader_of_waves(mesh, shape, given), given)


if __name__ == "__main__":
    main()
