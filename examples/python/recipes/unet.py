"""A U-Net that steps the weather by an hour, with fields whose latitudes are cut.

    python3 unet.py                                                 # alone
    torchrun --nproc-per-node 2 unet.py --domain 2                  # two ranks share each field
    meshrun run --nproc 4 unet.py --dp 2 --domain 2 --size small

Convolutions, pooling and upsampling exchange the rows beside a cut; group norm adds up its moments. The model is the same.
"""

import torch
from torch import nn
from torch.nn import functional as F

import common

SIZES = {  # channels of a field, latitudes, longitudes; channels of the widest level, levels
    "toy": ((2, 20, 16), 8, 2),
    "small": ((20, 180, 360), 64, 3),
    "large": ((69, 721, 1440), 128, 4),
}


class Convolution(nn.Module):
    """3 x 3, round the sphere: longitudes are a circle, and zeros lie beyond the poles."""

    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.convolution = nn.Conv2d(channels_in, channels_out, 3, padding=(1, 0))

    def forward(self, x):
        return self.convolution(F.pad(x, (1, 1, 0, 0), mode="circular"))


class Block(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.body = nn.Sequential(
            Convolution(channels_in, channels_out), nn.GroupNorm(4, channels_out), nn.GELU(),
            Convolution(channels_out, channels_out), nn.GroupNorm(4, channels_out), nn.GELU())
        self.skip = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else nn.Identity()

    def forward(self, x):
        return self.body(x) + self.skip(x)


class UNet(nn.Module):
    """(batch, channels, latitudes, longitudes) to the same."""

    def __init__(self, channels, width, levels):
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.first = Block(channels, width)
        self.down = nn.ModuleList(Block(a, b) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(Block(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1]))
        self.last = nn.Conv2d(width, channels, 1)

    def forward(self, x):
        y = self.first(x)
        skips = []
        for block in self.down:
            skips.append(y)
            y = block(F.avg_pool2d(y, 2, ceil_mode=True))
        for block in self.up:
            skip = skips.pop()
            y = F.interpolate(y, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            y = block(torch.cat([y, skip], 1))
        return x + self.last(y)


def main():
    given = common.options(__doc__, SIZES)
    mesh = common.initialize(given)
    shape, width, levels = SIZES[given.size]
    model = UNet(shape[0], width, levels)
    latitude = (torch.arange(shape[1]) + 0.5) / shape[1] * torch.pi
    area = (torch.sin(latitude) / torch.sin(latitude).mean())[:, None]  # rows near a pole are small

    def loss_of(model, batch):
        return (area * (model(batch["now"]) - batch["next"]).square()).mean()

    common.train(model, loss_of, *common.loader_of_waves(mesh, shape, given), given)


if __name__ == "__main__":
    main()
