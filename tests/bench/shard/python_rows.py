"""What Python's DTensor and PhysicsNeMo's ShardTensor take for the rows of shard_host_cost: world of 4 on torch's fake backend, parts of
16 x 16 float32, one thread. Writes lines of JSON.

argv: site-packages of PhysicsNeMo."""

import importlib.machinery
import json
import os
import statistics
import sys
import time
import types
import warnings

SITE = sys.argv[1]
sys.path.append(SITE)
warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

WORLD, RANK, EXTENT, BATCHES, CALLS = 4, 1, 16, 21, 20
PATCHES = {
    "import": "the packages physicsnemo, physicsnemo.core and physicsnemo.distributed are entered without their __init__, which imports "
              "warp, tensordict and more; the modules timed are as they are",
    "manager": "DistributedManager is taken from its module and not initialised, which would start NCCL or a real world: the ranks are "
               "those of torch's fake backend",
}


def enter(name):
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(SITE, *name.split("."))]
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = package


def shard_tensor_class():
    for name in ("physicsnemo", "physicsnemo.core", "physicsnemo.distributed"):
        enter(name)
    from physicsnemo.distributed.manager import DistributedManager
    sys.modules["physicsnemo.distributed"].DistributedManager = DistributedManager
    from physicsnemo.domain_parallel import ShardTensor
    return ShardTensor


def batch(call):
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS * 1e6


def say(**row):
    print(json.dumps(row), flush=True)


def report(side, make, weight):
    """`make`: a tensor of the part's shape, which may require a gradient. `weight`: replicated, for mm."""
    a, b, x, y = make(False), make(False), make(True), make(True)
    gradient = torch.ones_like(a)
    calls = {
        "add": lambda: torch.add(a, b),
        "relu": lambda: torch.relu(a),
        "mm": lambda: torch.mm(a, weight),
        "sum": lambda: torch.sum(a),
        "mul and backward": lambda: torch.autograd.grad([torch.mul(x, y)], [x, y], [gradient]),
    }
    if side != "torch":
        calls["redistribute S to R"] = lambda: a.redistribute(placements=[Replicate()])
    for name, call in calls.items():
        try:
            for _ in range(3):
                batch(call)
            say(side=side, name=name, us=statistics.median(batch(call) for _ in range(BATCHES)))
        except Exception as error:  # the peer's own, of any kind
            say(side=side, name=name, error=f"{type(error).__name__}: {str(error).splitlines()[0][:160]}")


def leaves_of(cls, mesh, **arguments):
    def make(requires_grad):
        leaf = cls.from_local(torch.ones(EXTENT, EXTENT), mesh, [Shard(0)], **arguments).detach()
        return leaf.requires_grad_(requires_grad)
    return make


def main():
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("domain",))
    weight = torch.ones(EXTENT, EXTENT)
    say(torch=torch.__version__, patches=PATCHES)
    report("torch", lambda requires_grad: torch.ones(EXTENT, EXTENT, requires_grad=requires_grad), weight)
    report("DTensor", leaves_of(DTensor, mesh, run_check=False), DTensor.from_local(weight, mesh, [Replicate()], run_check=False))
    try:
        shard_tensor = shard_tensor_class()
        shapes = {0: tuple(torch.Size([EXTENT, EXTENT]) for _ in range(WORLD))}
        report("ShardTensor", leaves_of(shard_tensor, mesh, sharding_shapes=shapes),
               shard_tensor.from_local(weight, mesh, [Replicate()], sharding_shapes={}))
    except Exception as error:
        say(side="ShardTensor", name="import", error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
