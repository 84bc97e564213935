"""A vision transformer on fields, with dp x domain: "domain" cuts the sequence of patches, "dp" has different samples.

    python3 vit.py                                                  # alone
    torchrun --nproc-per-node 4 vit.py --dp 2 --domain 2
    meshrun run --nproc 4 vit.py --dp 2 --domain 2 --size small

Attention over the cut sequence runs as a ring of its ranks. Everything else is each rank's own.
"""

import torch
from torch import nn
from torch.nn import functional as F

import common

SIZES = {  # channels of a field, latitudes, longitudes; rows of a patch; width, heads, layers
    "toy": ((2, 20, 16), 4, 16, 2, 2),
    "small": ((20, 180, 360), 6, 256, 8, 8),
    "large": ((69, 720, 1440), 8, 1024, 16, 16),
}


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (each.reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
                   for each in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """(batch, channels, latitudes, longitudes) to the same."""

    def __init__(self, shape, patch, width, heads, layers):
        super().__init__()
        channels, rows, columns = shape
        self.patch, self.grid = patch, (rows // patch, columns // patch)
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, self.grid[0] * self.grid[1], width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, channels * patch * patch)

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        tokens = self.head(self.norm(self.blocks(tokens)))
        # From (batch, rows, columns, channels, patch, patch) to (batch, channels, rows, patch, columns, patch).
        pixels = tokens.reshape(len(x), *self.grid, -1, self.patch, self.patch).permute(0, 3, 1, 4, 2, 5)
        return x + pixels.reshape(x.shape)


def main():
    given = common.options(__doc__, SIZES)
    mesh = common.initialize(given)
    shape, patch, width, heads, layers = SIZES[given.size]
    model = VisionTransformer(shape, patch, width, heads, layers)

    def loss_of(model, batch):
        return F.mse_loss(model(batch["now"]), batch["next"])

    common.train(model, loss_of, *common.loader_of_waves(mesh, shape, given), given)


if __name__ == "__main__":
    main()
