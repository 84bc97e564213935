"""A process of tests/python/reconfigure. It makes a group that can be reconfigured, then does what the lines on its standard input
say, and answers each with a line: JSON both."""

import datetime
import json
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

import meshrun.distributed
import meshrun.torch

WORKS = []


def join():
    torch.set_num_threads(1)
    # Ranks meet at the handles' stores: this one is for nothing.
    dist.init_process_group("meshrun", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True,
                            timeout=datetime.timedelta(seconds=60))
    return {"supported": dist._supports_reconfigure(), "handle": dist._get_reconfigure_handle()}


def reconfigure(uuid, handles, timeout=30, as_set=False):
    work = dist._reconfigure(uuid, set(handles) if as_set else handles, timeout=datetime.timedelta(seconds=timeout))
    work.wait()
    return {"rank": dist.get_rank(), "size": dist.get_world_size(), "completed": work.is_completed()}


def interrupted(after, **call):
    """Ctrl-C while it waits for a member that does not come."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()
    return reconfigure(**call)


def all_reduce(value):
    x = torch.full((1000,), float(value))
    dist.all_reduce(x)
    return {"sum": x[0].item(), "same": bool((x == x[0]).all())}


@torch.compile(fullgraph=True, backend="aot_eager")
def own_piece(x):
    return meshrun.distributed.scatter_to_parallel_region(x, 0)


def compiled():
    with torch.no_grad():
        return {"piece": own_piece(torch.arange(6)).tolist()}


def collectives():
    """Each goes through another method of the backend."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pieces = [torch.empty(2) for _ in range(size)]
    dist.all_gather(pieces, torch.full((2,), float(rank)))
    assert [piece.tolist() for piece in pieces] == [[r, r] for r in range(size)]
    whole = torch.empty(size * 2)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    assert torch.equal(whole, torch.arange(size).repeat_interleave(2).float())
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
    assert part.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
    given, taken = [rank + s + 1 for s in range(size)], [s + rank + 1 for s in range(size)]
    got = torch.empty(sum(taken))
    dist.all_to_all_single(got, torch.cat([torch.full((n,), 10.0 * rank + s) for s, n in enumerate(given)]), taken, given)
    assert torch.equal(got, torch.cat([torch.full((n,), 10.0 * s + rank) for s, n in enumerate(taken)]))
    x = torch.arange(3.0) + (7 if rank == size - 1 else 0)
    dist.broadcast(x, src=size - 1)
    assert x.tolist() == [7, 8, 9]
    every = [None] * size
    dist.all_gather_object(every, {"rank": rank})
    assert [one["rank"] for one in every] == list(range(size))
    if size > 1:
        y = torch.empty(1)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((1,), float(rank)), (rank + 1) % size),
                                            dist.P2POp(dist.irecv, y, (rank - 1) % size)]):
            work.wait()
        assert y.item() == (rank - 1) % size
    sizes = [r + 1 for r in range(size)]
    v = meshrun.distributed.all_gather_v(torch.full((rank + 1, 2), float(rank)), sizes, dim=0)
    assert torch.equal(v[:, 0], torch.cat([torch.full((n,), float(r)) for r, n in enumerate(sizes)]))
    dist.barrier()
    return {"rank": rank, "size": size}


def ddp():
    """A step of DDP: the mean of all ranks' gradients."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layer = nn.Linear(3, 1, bias=False)
    nn.init.constant_(layer.weight, float(rank + 1))
    model = nn.parallel.DistributedDataParallel(layer)
    model(torch.full((1, 3), float(rank))).sum().backward()
    mean = sum(range(size)) / size
    assert torch.allclose(layer.weight.grad, torch.full((1, 3), mean)), layer.weight.grad
    return {"weight": layer.weight[0, 0].item()}


def start(value):
    """An operation that this rank waits for later."""
    WORKS.append(dist.all_reduce(torch.full((10,), float(value)), async_op=True))
    return {}


def finish():
    WORKS.pop().wait()
    return {}


def variable(name, value):
    os.environ.pop(name, None)
    if value:
        os.environ[name] = value
    return {}


def forked(uuid, handles):
    """What a child of fork() gets for its parent's group."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            reconfigure(uuid, handles)
        except Exception as error:
            os.write(write, json.dumps({"error": type(error).__name__, "text": str(error)}).encode())
        os._exit(0)
    os.close(write)
    said = os.read(read, 10000)
    os.waitpid(child, 0)
    return json.loads(said)


def main():
    print(json.dumps(join()), flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        began = time.monotonic()
        try:
            answer = globals()[call.pop("do")](**call)
        except (Exception, KeyboardInterrupt) as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer | {"seconds": time.monotonic() - began}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
