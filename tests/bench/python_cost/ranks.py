"""A 4 KiB all_reduce that is waited for, from Python: two ranks on a core each, the backends by turns. Rank 0 writes the
microseconds of a call in each block, as JSON."""

import datetime
import json
import multiprocessing
import os
import sys
import time

import torch
import torch.distributed as dist

import meshrun.torch

BACKENDS = ("meshrun", "gloo")
ELEMENTS = 1024  # of float32
CALLS = 100  # in a block
WARM_UP = 3  # blocks


def rank(number, size, store, blocks, out):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("meshrun", init_method=f"file://{store}", rank=number, world_size=size,
                            timeout=datetime.timedelta(seconds=60))
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    x = torch.zeros(ELEMENTS)
    times = {name: [] for name in BACKENDS}
    for block in range(WARM_UP + blocks):
        for name in BACKENDS if block % 2 else BACKENDS[::-1]:
            group = groups[name]
            x.fill_(1)
            dist.all_reduce(x, group=group)
            assert x[0] == size and x[-1] == size, x
            x.zero_()
            began = time.perf_counter()
            for _ in range(CALLS):
                dist.all_reduce(x, group=group)
            if block >= WARM_UP:
                times[name].append((time.perf_counter() - began) / CALLS * 1e6)
    if number == 0:
        with open(out, "w") as file:
            json.dump({"torch": torch.__version__, "cores": [cores[r % len(cores)] for r in range(size)], "us": times}, file)
    dist.barrier()
    dist.destroy_process_group()


def main():
    directory, blocks, size = sys.argv[1], int(sys.argv[2]), 2
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank, args=(number, size, f"{directory}/store", blocks, f"{directory}/times.json"))
             for number in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in ranks))
