"""FSDP2 on the backend "meshrun": each rank holds a part of every parameter, gradient and moment, and any number of ranks trains alike.

    meshrun run --nproc 2 fsdp2.py --steps 40
    torchrun --nproc-per-node 2 fsdp2.py --steps 40
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import meshrun.torch  # registers the backend; not needed where the wheel meshrun-torch is installed

BATCH = 24  # of all ranks together
WIDTH = 16


def batch_of(step):
    """Every rank draws the same batch."""
    x = torch.rand(BATCH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return x, x.cumsum(1).cos()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    dist.init_process_group("meshrun")
    rank, size = dist.get_rank(), dist.get_world_size()
    if BATCH % size:
        raise SystemExit(f"{size} ranks do not divide the batch of {BATCH}")

    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)),
                          nn.Linear(WIDTH, WIDTH)).double()
    mesh = init_device_mesh("cpu", (size,))
    # A group of parameters is gathered when its block runs, and freed after it.
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in range(options.steps):
        x, y = (whole.chunk(size)[rank] for whole in batch_of(step))
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    loss = loss.detach() / size
    dist.all_reduce(loss)
    if rank == 0:
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
        print(f"trained {options.steps} steps on {size} ranks, rank 0 with {held} numbers: loss {loss.item():.12f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
