"""One rank of physicsnemo_collectives: PhysicsNeMo's own functions on CPU tensors over Gloo. Rank 0 writes JSON lines.

argv: site-packages of PhysicsNeMo, a file to meet at, sizes in bytes with commas, rounds."""

import contextlib
import importlib.machinery
import json
import os
import statistics
import sys
import time
import types
import warnings

SITE, MEETING, SIZES, ROUNDS = sys.argv[1], sys.argv[2], [int(s) for s in sys.argv[3].split(",")], int(sys.argv[4])
RANK, WORLD = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
sys.path.append(SITE)
warnings.simplefilter("ignore")

import torch
import torch.distributed as dist

PATCHES = {
    "import": "the packages physicsnemo, physicsnemo.core and physicsnemo.distributed are entered without their __init__, which imports "
              "warp, tensordict and more; the modules timed are as they are",
    "all_to_all": "Gloo has no all_to_all of lists: all_to_all_single on flat buffers (a list that is one run of memory is used as it is, "
                  "results are copied out), or a send and a receive for each peer without more copies; the faster of the two counts",
    "all_gather": "Gloo gathers equal pieces only: a broadcast for each uneven piece, as torch's NCCL backend does it",
}
ORIGINAL_ALL_GATHER = dist.all_gather


def enter(name):
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(SITE, *name.split("."))]
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = package


def flat(tensors):
    """The tensors' elements as one run of memory, without a copy where they are one."""
    whole = [t for t in tensors if t.numel()]
    if not whole:
        return tensors[0].new_empty(0)
    follow = all(a.data_ptr() + a.nbytes == b.data_ptr() and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
                 for a, b in zip(whole, whole[1:]))
    if follow and all(t.is_contiguous() for t in whole):
        return whole[0].as_strided((sum(t.numel() for t in whole),), (1,), whole[0].storage_offset())
    return torch.cat([t.reshape(-1) for t in tensors])


def by_single(outputs, inputs, group=None, async_op=False):
    received = outputs[0].new_empty(sum(t.numel() for t in outputs))
    dist.all_to_all_single(received, flat(inputs), [t.numel() for t in outputs], [t.numel() for t in inputs], group=group)
    for output, piece in zip(outputs, received.split([t.numel() for t in outputs])):
        output.copy_(piece.view(output.shape))


def by_sends(outputs, inputs, group=None, async_op=False):
    works = [dist.isend(inputs[peer], peer, group) for peer in range(WORLD) if peer != RANK and inputs[peer].numel()]
    works += [dist.irecv(outputs[peer], peer, group) for peer in range(WORLD) if peer != RANK and outputs[peer].numel()]
    outputs[RANK].copy_(inputs[RANK])
    for work in works:
        work.wait()


def all_gather(outputs, tensor, group=None, async_op=False):
    if len({t.numel() for t in outputs}) == 1:
        return ORIGINAL_ALL_GATHER(outputs, tensor, group=group)
    outputs[RANK].copy_(tensor)
    for peer, output in enumerate(outputs):
        dist.broadcast(output, peer, group)
    return None


def operations(numel, skewed):
    """Name to a call, on the data of tests/bench/collectives; 128 columns, 16 where the tensor is small."""
    from physicsnemo.distributed import utils
    columns = 128 if numel >= 4096 else 16
    rows = numel // columns
    sizes = [rows // WORLD] * WORLD if not skewed else [rows * (r + 1) // (WORLD * (WORLD + 1) // 2) for r in range(WORLD)]
    sizes[-1] += rows - sum(sizes)
    group = dist.group.WORLD
    piece, whole = torch.rand(sizes[RANK], columns), torch.rand(rows, columns)
    indices = [torch.randint(rows, (size,)) for size in sizes]
    table = [sizes] * WORLD
    gradient = torch.rand(sizes[RANK] * WORLD, columns)
    return {
        "all_gather_v": lambda: utils.all_gather_v_wrapper(piece, sizes, 0, group),
        "reduce_scatter_v": lambda: utils.all_gather_v_bwd_wrapper(whole, sizes, 0, True, group),
        "gather_v": lambda: utils.gather_v_wrapper(piece, sizes, 0, 0, group),
        "scatter_v": lambda: utils.scatter_v_wrapper(whole, sizes, 0, 0, group),
        "indexed_all_to_all_v": lambda: utils.indexed_all_to_all_v_wrapper(whole, indices, table, 0, group),
        "indexed_all_to_all_v_backward":
            lambda: utils.indexed_all_to_all_v_wrapper_bwd(gradient, indices, table, rows, True, 0, group),
    }


def measure(call, rounds):
    times = []
    for turn in range(-10, rounds):
        dist.barrier()
        started = time.perf_counter()
        result = call()
        elapsed = time.perf_counter() - started
        del result
        if turn >= 0:
            times.append(elapsed)
    slowest = torch.tensor(times)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    ordered = sorted((slowest * 1e6).tolist())
    return {"median_us": statistics.median(ordered), "p10_us": ordered[len(ordered) // 10], "p90_us": ordered[len(ordered) * 9 // 10]}


def say(value):
    if RANK == 0:
        print(json.dumps(value), flush=True)


def main():
    torch.set_num_threads(1)
    for name in ("physicsnemo", "physicsnemo.core", "physicsnemo.distributed"):
        enter(name)
    dist.init_process_group("gloo", init_method=f"file://{MEETING}", rank=RANK, world_size=WORLD)
    dist.all_gather = all_gather
    say({"torch": torch.__version__, "ranks": WORLD, "load_average": os.getloadavg(), "patches": PATCHES})
    for name in operations(1024, False):
        for skewed in (False, True):
            for size in SIZES:
                torch.manual_seed(1)
                best = None
                for replacement in (by_single, by_sends):
                    dist.all_to_all = replacement
                    figures = dict(measure(operations(size // 4, skewed)[name], ROUNDS), replacement=replacement.__name__)
                    if best is None or figures["median_us"] < best["median_us"]:
                        best = figures
                    if name == "all_gather_v":
                        best["replacement"] = "all_gather"
                        break
                say({"operation": name, "bytes": size, "skewed": skewed, **best})
    dist.destroy_process_group()


with contextlib.suppress(BrokenPipeError):
    main()
