"""Wrong calls of one rank, which raise on all: for tests/python/seeds."""

import copy
import os
import time

import torch
import torch.distributed as dist

import meshrun.communication as bagua
from meshrun.distributed import DistributedManager, GroupError, MeshError, UndefinedGroupError, autograd, utils

LONGEST_S = 5


def leave():
    if DistributedManager.is_initialized():
        DistributedManager.cleanup(barrier=True)


def launched(rank, size, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)


def raised(kind, call):
    """(seconds, sentence); the sentence is one line, and the same on all ranks."""
    began = time.monotonic()
    try:
        call()
    except kind as error:
        text = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
    seconds = time.monotonic() - began
    assert "\n" not in text.strip(), text
    said = [None] * dist.get_world_size()
    dist.all_gather_object(said, (seconds, text))
    assert len({text for _, text in said}) == 1, said
    slowest = max(seconds for seconds, _ in said)
    assert slowest < LONGEST_S, (slowest, text)
    return slowest, text


def wrong(rank, size):
    """Calls of which one rank's is wrong: what is wrong, error, call."""
    last, manager = rank == size - 1, DistributedManager()
    sizes, other = [r + 1 for r in range(size)], [r + 1 for r in range(size - 1)] + [size + 1]
    own = torch.ones(rank + 1, size, requires_grad=True)
    whole = torch.ones(sum(sizes), size, requires_grad=True)
    table = [[1] * size for _ in range(size)]
    longer = copy.deepcopy(table)
    longer[0][0] = 2
    index = [torch.zeros(1, dtype=torch.int64)] * size
    far = [torch.full((1,), 99)] * size
    double = own.double() if last else own

    yield "all_gather_v: sizes", ValueError, lambda: autograd.all_gather_v(own, other if last else sizes)
    yield "all_gather_v: a piece that does not fit", ValueError, lambda: autograd.all_gather_v(
        own[:0] if last else own, sizes)
    yield "all_gather_v: dim", ValueError, lambda: autograd.all_gather_v(own, sizes, 1 if last else 0)
    yield "all_gather_v: dtype", ValueError, lambda: autograd.all_gather_v(double, sizes)
    yield "all_gather_v: number of sizes", ValueError, lambda: autograd.all_gather_v(own, sizes[1:] if last else sizes)
    yield "gather_v: dst", ValueError, lambda: autograd.gather_v(own, sizes, 0, 1 if last else 0)
    yield "gather_v: dst outside", ValueError, lambda: autograd.gather_v(own, sizes, 0, size if last else 0)
    yield "gather_v: dtype", ValueError, lambda: autograd.gather_v(double, sizes)
    yield "scatter_v: src", ValueError, lambda: autograd.scatter_v(whole, sizes, 0, 1 if last else 0)
    yield "scatter_v: src outside", ValueError, lambda: autograd.scatter_v(whole, sizes, 0, -7 if last else 0)
    yield "scatter_v: sizes", ValueError, lambda: autograd.scatter_v(whole, other if last else sizes)
    yield "scatter_v: dim", ValueError, lambda: autograd.scatter_v(whole, sizes, 5 if last else 0)
    yield "indexed_all_to_all_v: table", ValueError, lambda: autograd.indexed_all_to_all_v(
        own, index, longer if last else table)
    yield "indexed_all_to_all_v: index", ValueError, lambda: autograd.indexed_all_to_all_v(
        own, far if last else index, table)
    yield "indexed_all_to_all_v: lists", ValueError, lambda: autograd.indexed_all_to_all_v(
        own, index[1:] if last else index, table)
    yield "indexed_all_to_all_v: dtype", ValueError, lambda: autograd.indexed_all_to_all_v(double, index, table)
    yield "another function", ValueError, lambda: (autograd.gather_v if last else autograd.all_gather_v)(own, sizes)

    square = torch.ones(size, size)
    yield "distributed_transpose: dims", ValueError, lambda: utils.distributed_transpose(
        square, *((1, 0) if last else (0, 1)))
    yield "distributed_transpose: dim", ValueError, lambda: utils.distributed_transpose(square, 0, 7 if last else 1)
    yield "distributed_transpose: equal dims", ValueError, lambda: utils.distributed_transpose(
        square, 0, 0 if last else 1)
    yield "distributed_transpose: extent", ValueError, lambda: utils.distributed_transpose(square[:size - last], 0, 1)
    yield "distributed_transpose: dtype", ValueError, lambda: utils.distributed_transpose(
        square.int() if last else square, 0, 1)
    yield "distributed_transpose: sizes", ValueError, lambda: utils.distributed_transpose(
        square, 0, 1, dim1_sizes=other if last else [size] * size)
    yield "reduce_loss: dst_rank", ValueError, lambda: utils.reduce_loss(1.0, size if last else 0)

    create, orthogonal = manager.create_process_subgroup, manager.create_orthogonal_process_group
    wrong_group = (GroupError, MeshError, UndefinedGroupError)
    yield "create_process_subgroup: size", wrong_group, lambda: create("new", size + 1 if last else size)
    yield "create_process_subgroup: name", wrong_group, lambda: create("other" if last else "new", size)
    yield "create_process_subgroup: parent", wrong_group, lambda: create("new", 1, "nothing")
    yield "create_orthogonal_process_group: name", wrong_group, lambda: orthogonal("new", "nothing")
    yield "initialize_mesh: shape", wrong_group, lambda: manager.initialize_mesh(
        (1, size) if last else (size, 1), ("dp", "tp"))
    yield "initialize_mesh: names", wrong_group, lambda: manager.initialize_mesh((size,), ("tp" if last else "dp",))
    yield "group: name", RuntimeError, lambda: manager.group("nothing")
    yield "group_size: name", RuntimeError, lambda: manager.group_size("nothing")
    yield "all_gather_v: group", RuntimeError, lambda: autograd.all_gather_v(own, sizes, group="nothing")
    yield "distributed_transpose: group", RuntimeError, lambda: utils.distributed_transpose(
        square, 0, 1, group="nothing")

    four, five = torch.ones(4), torch.ones(4 + last)
    complete, part = torch.ones(4 * size), torch.ones(4)
    yield "allreduce: recv_tensor", ValueError, lambda: bagua.allreduce(four, torch.ones(4 + last))
    yield "allreduce: number of elements", ValueError, lambda: bagua.allreduce(five, torch.ones(4 + last))
    yield "allreduce: dtypes", ValueError, lambda: bagua.allreduce(four, four.double() if last else four.clone())
    yield "allreduce: op", ValueError, lambda: bagua.allreduce_inplace(
        four, bagua.ReduceOp.MAX if last else bagua.ReduceOp.SUM)
    yield "allreduce: unknown op", ValueError, lambda: bagua.allreduce_inplace(four, 77 if last else 0)
    yield "allreduce: op of dtype", ValueError, lambda: bagua.allreduce_inplace(four, bagua.ReduceOp.BOR)
    yield "reduce: dst", ValueError, lambda: bagua.reduce(four, part, 1 if last else 0)
    yield "broadcast: src", ValueError, lambda: bagua.broadcast(four, 1 if last else 0)
    yield "broadcast: src outside", ValueError, lambda: bagua.broadcast(four, size if last else 0)
    yield "broadcast: number of elements", ValueError, lambda: bagua.broadcast(five)
    yield "broadcast: dtype", ValueError, lambda: bagua.broadcast(four.int() if last else four)
    yield "broadcast_object: src", ValueError, lambda: bagua.broadcast_object("text", 1 if last else 0)
    yield "broadcast_object: object", ValueError, lambda: bagua.broadcast_object(lambda: 0)
    yield "allgather: recv_tensor", ValueError, lambda: bagua.allgather(part, complete[:-1] if last else complete)
    yield "gather: dst", ValueError, lambda: bagua.gather(part, complete, 1 if last else 0)
    yield "scatter: src", ValueError, lambda: bagua.scatter(complete, part, 1 if last else 0)
    yield "scatter: recv_tensor", ValueError, lambda: bagua.scatter(complete, part[:-1] if last else part, 0)
    yield "reduce_scatter: recv_tensor", ValueError, lambda: bagua.reduce_scatter(complete, part[:-1] if last else part)
    yield "alltoall: number of elements", ValueError, lambda: bagua.alltoall(
        complete[:-1] if last else complete, complete.clone())
    yield "alltoall_v: counts", ValueError, lambda: bagua.alltoall_v(
        complete, [1 + last] * size, [4 * r for r in range(size)], complete.clone(), [1] * size,
        [4 * r for r in range(size)])
    yield "new_group: ranks", Exception, lambda: bagua.new_group([0] if last else [0, 1])
    yield "new_group: rank outside", Exception, lambda: bagua.new_group([0, size + last])
    yield "init_process_group: again", ValueError, bagua.init_process_group
    yield "another function of Bagua's", ValueError, lambda: (
        bagua.barrier() if last else bagua.allreduce_inplace(four))


def wrong_calls(rank, size, port, names):
    launched(rank, size, port)
    bagua.init_process_group()
    slowest, count = (0, ""), 0
    for name, kind, call in wrong(rank, size):
        try:
            seconds, text = raised(kind, call)
        except BaseException as error:
            error.add_note(f"{name}, on rank {rank} of {size}")
            raise
        slowest, count = max(slowest, (seconds, name)), count + 1
        if rank == 0 and "show" in names:
            print(f"  {name}: {text}", flush=True)
    x = torch.ones(4)
    bagua.allreduce_inplace(x)
    dist.all_reduce(x)
    assert x.tolist() == [size * size] * 4
    leave()
    if rank == 0:
        print(f"  {size} ranks: {count} wrong calls raise on all ranks, the slowest after {slowest[0]:.2f} s "
              f"({slowest[1]})", flush=True)


def one_rank_ends(rank, size, port, names):
    """A rank cannot tell the others of a group that it does not know; it ends with its error, then they have theirs."""
    launched(rank, size, port)
    DistributedManager.initialize()
    last = rank == size - 1
    dist.barrier()
    began = time.monotonic()
    try:
        autograd.all_gather_v(torch.ones(2), [2] * size, group="nothing" if last else None)
    except RuntimeError as error:
        seconds, text = time.monotonic() - began, str(error).strip()
    else:
        raise AssertionError("no error")
    assert seconds < LONGEST_S and "\n" not in text, (seconds, text)
    assert '"nothing"' in text if last else f"rank {size - 1}" in text, text
    if rank == 0:
        print(f"  {size} ranks: one that ends with an error of its own ends the others' wait after {seconds:.2f} s",
              flush=True)
