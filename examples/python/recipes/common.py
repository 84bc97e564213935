"""What the recipes share: their options, the mesh, samples of which each rank makes its own part, and the training loop.

A recipe is one file beside this one: a plain model of torch, and what its samples look like. Each runs alone, and on dp x domain
ranks: "domain" cuts every sample, and "dp" has different samples. All of these train alike.
"""

import argparse

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.utils.data import DataLoader, Dataset

import meshrun
from meshrun.distributed import DistributedManager
from meshrun.domain_parallel import ShardedCollate, ShardedSampler, ShardTensor, sharded, slab

SEED = 17


def options(description, sizes):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", type=int, help="ranks that share each sample (default: all of a replica)")
    parser.add_argument("--dp", type=int, default=1, help="replicas, each with samples of its own (default: 1)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4, help="samples in a step, of all replicas together (default: 4)")
    parser.add_argument("--size", choices=sizes, default="toy")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=0, help="of the DataLoader (default: 0)")
    return parser.parse_args()


def initialize(given):
    """Joins the job of torchrun or `meshrun run`, or is its only rank, and returns the mesh dp x domain."""
    DistributedManager.initialize()
    manager = DistributedManager()
    domain = given.domain or manager.world_size // given.dp
    if given.dp * domain != manager.world_size:
        raise SystemExit(f"--dp {given.dp} and --domain {domain} make {given.dp * domain} ranks, and there are "
                         f"{manager.world_size}")
    if given.batch % given.dp:
        raise SystemExit(f"--dp {given.dp} does not divide --batch {given.batch}")
    torch.manual_seed(SEED)  # every rank makes the same model
    return manager.initialize_mesh((given.dp, domain), ("dp", "domain"))


class Waves(Dataset):
    """Fields on a sphere and what they are an hour later: (channels, latitudes, longitudes), float32. Stands for files.

    A rank computes its rows alone, as it would read them alone.
    """

    def __init__(self, shape, part, samples=512):
        self.shape, self.part, self.samples = shape, part, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        channels, rows, columns = self.shape
        latitude = ((torch.arange(rows) + 0.5) / rows * torch.pi)[self.part[1], None]
        longitude = (torch.arange(columns) / columns * 2 * torch.pi)[None, self.part[2]]
        generator = torch.Generator().manual_seed(SEED + index)
        number, phase = torch.randint(1, 4, (2, channels), generator=generator), torch.rand(channels, generator=generator) * 6
        number, phase = number[:, self.part[0], None, None], phase[self.part[0], None, None]

        def at(hour):
            return torch.sin(number[0] * longitude + phase - 0.3 * hour) * torch.sin(number[1] * latitude + 0.1 * hour)

        return {"now": at(0), "next": at(1)}


def loader_of_waves(mesh, shape, given):
    """(loader, sampler): batches of Waves as ShardTensors, whose latitudes are cut."""
    placements = [Replicate(), Shard(1)]  # of a sample, on ("dp", "domain")
    dataset = Waves(shape, slab(shape, mesh, placements))
    return loader_of(mesh, dataset, placements, {"now": shape, "next": shape}, given)


def loader_of(mesh, dataset, placements, shape, given):
    sampler = ShardedSampler(dataset, mesh, seed=SEED)
    loader = DataLoader(dataset, given.batch // given.dp, sampler=sampler, collate_fn=ShardedCollate(mesh, placements, shape),
                        num_workers=given.workers, drop_last=True)
    return sharded(loader), sampler


def cut(tensor, mesh, placements):
    """A tensor that all ranks have, as a ShardTensor: each rank keeps its part, and nothing is sent."""
    return ShardTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim).redistribute(placements=placements)


def train(model, loss_of, loader, sampler, given):
    """AdamW for given.steps steps. `loss_of(model, batch)` is the mean over the batch of all replicas: its gradients are whole on
    every rank, so the model needs no wrapper."""
    rank = DistributedManager().rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr)
    step, epoch = 0, 0
    while step < given.steps:
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            step += 1
            value = loss.item()
            meshrun.report(step=step, total_steps=given.steps, loss=value)
            if rank == 0 and step == 1:
                print(f"batches of {list(batch['now'].shape)}: this rank has {list(batch['now'].to_local().shape)}")
            if rank == 0:
                print(f"step {step}: loss {value:.9f}", flush=True)
            if step == given.steps:
                break
        epoch += 1
    DistributedManager.cleanup()
