"""Trainings in Python on the backend "meshrun" beside the same on Gloo: what tests/python/trainings starts.

A job is a set of ranks on one backend, forked from a server that has imported torch. The same jobs run on both backends. Each
trains 20 steps of the same global batches, whatever its size, and leaves all parameters and losses in a file; they are
compared by the relative L2 norm.
"""

import argparse
import datetime
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import shutil
import signal
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import meshrun.torch

BACKENDS = ("meshrun", "gloo")
STEPS = 20
GLOBAL_BATCH = 24  # for 1, 2, 3 and 4 ranks
FEATURES, HIDDEN, OUTPUTS = 12, 30, 3  # 30 is uneven on 4 ranks
LONGEST_JOB_S = 150
LARGEST_DIFFERENCE = 1e-6
# Difference of a training that changed its number of ranks on the way: other sums, and Adam amplifies rounding.
LARGEST_AFTER_RESUME = 1e-4


class Network(nn.Module):
    def __init__(self, features=FEATURES, hidden=HIDDEN, outputs=OUTPUTS):
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(features, hidden)
        self.middle = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(nn.functional.gelu(self.middle(nn.functional.gelu(self.first(x)))))


def batch_of(step, rank, size):
    """This rank's part of the step's global batch."""
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(GLOBAL_BATCH, FEATURES, generator=generator), torch.randn(GLOBAL_BATCH, OUTPUTS, generator=generator)
    return x.chunk(size)[rank], y.chunk(size)[rank]


def train(model, optimizer, steps, rank, size):
    losses = []
    for step in steps:
        x, y = batch_of(step, rank, size)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(model, losses):
    """All parameters and losses in one vector. Every rank calls it."""
    parts = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([p.detach().flatten() for p in parts] + [torch.tensor(losses)])


def ddp(rank, size):
    model = nn.parallel.DistributedDataParallel(Network())
    return whole(model, train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), range(STEPS), rank, size))


def sharded(mesh):
    model = Network()
    for layer in (model.first, model.middle, model.last):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2(rank, size):
    model = sharded(init_device_mesh("cpu", (size,)))
    return whole(model, train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), range(STEPS), rank, size))


def dtensor(rank, size):
    """Tensor-parallel: each rank has a part of the hidden layer, and all see the whole batch."""
    model = Network()
    # A DTensor between the two knows the sizes of uneven shards.
    parallelize_module(model, init_device_mesh("cpu", (size,)),
                       {"first": ColwiseParallel(use_local_output=False), "middle": RowwiseParallel()})
    return whole(model, train(model, torch.optim.SGD(model.parameters(), lr=0.05), range(STEPS), 0, 1))


def half_trained(size):
    model = sharded(init_device_mesh("cpu", (size,)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def dcp_save(rank, size, place):
    """The first half of fsdp2's steps, and a checkpoint."""
    model, optimizer = half_trained(size)
    losses = train(model, optimizer, range(STEPS // 2), rank, size)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    checkpoint.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=place)
    return whole(model, losses)


def dcp_load(rank, size, place):
    """The second half, from a checkpoint of another number of ranks."""
    model, optimizer = half_trained(size)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    checkpoint.load(state, checkpoint_id=place)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return whole(model, train(model, optimizer, range(STEPS // 2, STEPS), rank, size))


def join(backend, rank, size, directory):
    """A group over a file in `directory`."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{directory}/store", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=60))


def run_rank(backend, rank, size, directory, cases):
    """cases: [function's name, arguments...]."""
    join(backend, rank, size, directory)
    for name, *arguments in cases:
        result = globals()[name](rank, size, *arguments)
        if rank == 0:
            torch.save(result, f"{directory}/{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


class Late(Exception):
    """Ranks that do not end."""


def run_job(target, backend, size, directory, *arguments):
    """Starts the ranks and waits for them. Ends this program where one fails; Late: where one does not end."""
    directory.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    # Optimizers load the second, else in each rank anew.
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    ranks = [context.Process(target=target, args=(backend, rank, size, str(directory), *arguments)) for rank in range(size)]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + LONGEST_JOB_S
    try:
        while any(process.exitcode is None for process in ranks):
            multiprocessing.connection.wait([process.sentinel for process in ranks if process.exitcode is None],
                                            max(0, deadline - time.monotonic()))
            failed = [process.exitcode for process in ranks if process.exitcode]
            if failed:
                sys.exit(f"{size} ranks on {backend}: a rank exited {failed[0]}")
            if time.monotonic() > deadline:
                left = [process for process in ranks if process.exitcode is None]
                for process in left:
                    os.kill(process.pid, signal.SIGABRT)  # writes where its threads stand
                    process.join(5)
                raise Late(f"{size} ranks on {backend}: {len(left)} not ended in {LONGEST_JOB_S} s; above, where they stand")
    finally:
        for process in ranks:
            process.kill()


def difference(ours, other, count=None):
    """Of the first `count` elements, or all."""
    a, b = torch.load(ours)[:count], torch.load(other)[:count]
    return ((a - b).norm() / b.norm()).item()


def run_jobs(backend, size, directory, cases):
    """Gloo is the peer here and not what is tested: its job that does not end is told, and is run once more."""
    try:
        run_job(run_rank, backend, size, directory, cases)
    except Late as late:
        print(f"late {late}", flush=True)
        if backend != "gloo":
            raise
        shutil.rmtree(directory)
        run_job(run_rank, backend, size, directory, cases)


def compare(directory, worlds):
    """The same jobs on both backends. Returns the largest difference."""
    pairs = [pair for pair in ((1, 2), (2, 3), (3, 4), (4, 1), (3, 2)) if set(pair) <= set(worlds)]
    for backend in BACKENDS:
        place = directory / backend
        for size in worlds:
            run_jobs(backend, size, place / str(size),
                     [["ddp"], ["fsdp2"], ["dtensor"], ["dcp_save", str(place / f"checkpoint-{size}")]])
        for first, second in pairs:
            run_jobs(backend, second, place / f"{first}-{second}",
                     [["dcp_load", str(place / f"checkpoint-{first}")]])
    worst = 0.0
    names = ("ddp", "fsdp2", "dtensor", "dcp_save")
    rows = [(f"{size} ranks: {name}", f"{size}/{name}.pt") for size in worlds for name in names]
    rows += [(f"{second} ranks: dcp_load, saved by {first}", f"{first}-{second}/dcp_load.pt")
             for first, second in pairs]
    for title, file in rows:
        found = difference(directory / "meshrun" / file, directory / "gloo" / file)
        if not found < LARGEST_DIFFERENCE:  # nor NaN
            sys.exit(f"{title}: the training differs from Gloo's by {found:.1e}, and {LARGEST_DIFFERENCE:g} is the most")
        worst = max(worst, found)
        print(f"  {title}: {found:.1e} from Gloo's", flush=True)
    untrained = torch.cat([p.detach().flatten() for p in Network().parameters()])
    for first, second in pairs:
        found = difference(directory / f"meshrun/{first}-{second}/dcp_load.pt",
                           directory / f"meshrun/{second}/fsdp2.pt", len(untrained))
        if not found <= LARGEST_AFTER_RESUME:
            sys.exit(f"saved by {first} ranks and loaded by {second}, a training differs by {found:.1e} from the "
                     f"undisturbed one")
    if torch.equal(untrained, torch.load(directory / f"meshrun/{worlds[0]}/ddp.pt")[:len(untrained)]):
        sys.exit("nothing was trained")
    return worst


def rate_rank(_, rank, size, directory, rounds):
    """Blocks of steps on the one and the other backend by turns, in the same processes."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    join("meshrun", rank, size, directory)
    groups = {"meshrun": dist.new_group(backend="meshrun"), "gloo": dist.new_group(backend="gloo")}
    x, y = torch.randn(32, 256), torch.randn(32, 64)
    steps = {}
    for name, group in groups.items():
        data_parallel = nn.parallel.DistributedDataParallel(Network(256, 512, 64), process_group=group)
        model = Network(256, 512, 64)
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in (model.first, model.middle, model.last):
            fully_shard(layer, mesh=mesh)
        steps["DDP", name] = data_parallel
        steps["FSDP2", name] = fully_shard(model, mesh=mesh)
    optimizers = {key: torch.optim.SGD(model.parameters(), lr=1e-3) for key, model in steps.items()}
    seconds = {key: [] for key in steps}
    for round in range(rounds + 2):
        for kind in ("DDP", "FSDP2"):
            for name in BACKENDS if round % 2 else BACKENDS[::-1]:
                model, optimizer = steps[kind, name], optimizers[kind, name]
                dist.barrier()
                began = time.perf_counter()
                for _ in range(10):
                    optimizer.zero_grad()
                    nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
                if round >= 2:  # the first ones warm up
                    seconds[kind, name].append((time.perf_counter() - began) / 10)
    if rank == 0:
        torch.save({key: statistics.median(values) for key, values in seconds.items()}, f"{directory}/rates.pt")
    dist.barrier()
    dist.destroy_process_group()


def rates(directory, size, rounds):
    run_job(rate_rank, "meshrun and gloo", size, directory / "rates", rounds)
    medians = torch.load(directory / "rates/rates.pt")
    for kind in ("DDP", "FSDP2"):
        ours, other = 1 / medians[kind, "meshrun"], 1 / medians[kind, "gloo"]
        print(f"rate {kind} {size} {ours:.1f} {other:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--rates", type=int, default=0, help="rounds of the comparison of speed; 0: none")
    given = parser.parse_args()
    worst = compare(given.directory, given.worlds)
    if given.rates:
        rates(given.directory, 2, given.rates)
    print(f"largest {worst:.2e}", flush=True)
