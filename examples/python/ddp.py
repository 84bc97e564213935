"""DistributedDataParallel on the backend "meshrun": each rank takes its share of one batch, and any number of ranks trains alike.

    meshrun run --nproc 2 ddp.py --steps 40
    torchrun --nproc-per-node 2 ddp.py --steps 40
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import meshrun.torch  # registers the backend; not needed where the wheel meshrun-torch is installed

BATCH = 24  # of all ranks together


def batch_of(step):
    """Every rank draws the same batch."""
    x = torch.rand(BATCH, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return x, (3 * x[:, :1]).sin() * x[:, 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    dist.init_process_group("meshrun")
    rank, size = dist.get_rank(), dist.get_world_size()
    if BATCH % size:
        raise SystemExit(f"{size} ranks do not divide the batch of {BATCH}")

    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loss = torch.zeros(())
    for step in range(options.steps):
        # DistributedDataParallel takes the mean over the ranks, so equal shares give the mean over the batch.
        x, y = (whole.chunk(size)[rank] for whole in batch_of(step))
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()

    loss = loss.detach() / size
    dist.all_reduce(loss)
    if rank == 0:
        print(f"trained {options.steps} steps on {size} ranks: loss {loss.item():.12f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
