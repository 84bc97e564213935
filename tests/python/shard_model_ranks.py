"""What each rank of tests/python/shard_models does: unchanged modules of torch.nn and torchvision on sharded samples, as written and
compiled, equal one rank's: outputs, gradients, and parameters after steps of AdamW.
"""

import copy
import warnings

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.tensor import Shard
from torch.nn import functional

from meshrun.distributed import DistributedManager
from meshrun.domain_parallel import ShardTensor
from shard_ranks import close, environment, whole

STEPS = 10


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.GELU(), nn.MaxPool2d(2),
                                    nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=2), nn.GroupNorm(2, 6), nn.SiLU(),
                                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))

    def forward(self, x):
        return self.layers(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GELU())
        self.down = nn.Sequential(nn.Conv2d(4, 8, 2, stride=2), nn.InstanceNorm2d(8, affine=True), nn.GELU())
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x):
        x = self.first(x)
        up = functional.interpolate(self.up(self.down(x)), scale_factor=1.0, mode="nearest")
        return self.last(torch.cat([x, up], 1))


class DiTBlock(nn.Module):
    """As facebookresearch/DiT has it: adaptive layer norms by a condition."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def attention(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(x.mean(1)).chunk(6, dim=1)
        x = x + gate1.unsqueeze(1) * self.attention(self.norm1(x) * (1 + scale1.unsqueeze(1)) + shift1.unsqueeze(1))
        return x + gate2.unsqueeze(1) * self.mlp(self.norm2(x) * (1 + scale2.unsqueeze(1)) + shift2.unsqueeze(1))


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def vision_transformer():
    from torchvision.models import VisionTransformer

    return VisionTransformer(image_size=16, patch_size=4, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=3)


def resnet():
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=3, width_per_group=64)


# How a model is made, the shape of a batch, and the dimension that is cut.
MODELS = {
    "convnet": (ConvNet, (2, 2, 12, 6), 2),
    "unet": (UNet, (2, 2, 12, 6), 2),
    "encoder": (encoder, (2, 9, 8), 1),
    "dit": (DiTBlock, (2, 9, 8), 1),
    "vit": (vision_transformer, (2, 3, 16, 16), 2),
    "resnet": (resnet, (1, 3, 40, 33), 2),
}


def evenly(extent, count):
    return [extent // count + (place < extent % count) for place in range(count)]


def pieces(extent, size, kind):
    if kind == "uneven":
        return [2] * (size - 1) + [extent - 2 * (size - 1)]
    return evenly(extent, size) if kind == "even" or size == 1 else [0, *evenly(extent, size - 1)]


def model(name):
    make, shape, dim = MODELS[name]
    torch.manual_seed(3)
    return make().double().train(), shape, dim


def trained(module, batch, run):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    outputs = []
    for step in range(STEPS):
        optimizer.zero_grad()
        output = run(batch(step))
        (output - 0.5).square().mean().backward()
        outputs.append((output.detach(), [parameter.grad.clone() for parameter in module.parameters()]))
        optimizer.step()
    return outputs


def check(rank, size, mesh, name, kind, backend):
    module, shape, dim = model(name)
    sizes = pieces(shape[dim], size, kind)

    def sharded(step):
        return ShardTensor.from_local(whole(*shape, seed=step).split(sizes, dim)[rank].clone(), mesh, [Shard(dim)])

    own = copy.deepcopy(module)
    expected = trained(own, lambda step: whole(*shape, seed=step), own)
    run = torch.compile(module, backend=backend, dynamic=False) if backend else module
    for step, ((output, gradients), (own_output, own_gradients)) in enumerate(zip(trained(module, sharded, run), expected)):
        close(output.full_tensor(), own_output, 1e-6)
        if step == 0:
            scale = max(gradient.norm() for gradient in own_gradients)
            for gradient, own_gradient in zip(gradients, own_gradients):
                assert (gradient - own_gradient).norm() <= 1e-9 * scale, (name, kind, backend)
    for tensor, own_tensor in zip(module.state_dict().values(), own.state_dict().values()):
        close(tensor.double(), own_tensor.double(), 1e-5)


def models(rank, size, port, names):
    """names: the kind of pieces, then the backend of torch.compile or "eager", then models."""
    environment(rank, size, port)
    kind, backend, *chosen = names
    DistributedManager.initialize()
    mesh = DistributedManager().initialize_mesh((size,), ("domain",))
    for name in chosen or MODELS:
        torch._dynamo.reset()
        counters["meshrun"].clear()
        with warnings.catch_warnings():
            if backend != "eager":
                warnings.filterwarnings("error", message="torch.compile leaves")
            check(rank, size, mesh, name, kind, "" if backend == "eager" else backend)
        if backend != "eager":
            assert counters["meshrun"]["compiled programs"] > 0 == counters["meshrun"]["programs as written"], (name, counters["meshrun"])
            assert not counters["graph_break"], (name, counters["graph_break"])
    if rank == 0:
        print(f"  {size} ranks, {kind} pieces, {backend}: {', '.join(chosen or MODELS)}", flush=True)
