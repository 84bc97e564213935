"""What each rank of tests/python/communication does: one function a case, called with (rank, size), which asserts."""

import concurrent.futures
import contextlib
import io
import os
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import meshrun.communication as bagua
from manager_ranks import environment, raised
from meshrun.communication import ReduceOp
from meshrun.distributed import DistributedManager, GroupError


def raises(kind, call, *words):
    raised(kind, call, *map(str, words))


def documented(rank, size):
    """Bagua's examples."""
    send, recv = torch.arange(2) + 1 + 2 * rank, torch.zeros(2, dtype=torch.int64)
    bagua.allreduce(send, recv)
    assert recv.tolist() == [size * size, size * size + size]
    if size == 2:
        assert recv.tolist() == [4, 6]
    send = torch.tensor([1 + 1j, 2 + 2j]) + 2 * rank * (1 + 1j)
    recv = torch.zeros(2, dtype=torch.cfloat)
    bagua.allreduce(send, recv)
    assert torch.equal(recv, torch.tensor([size * size * (1 + 1j), (size * size + size) * (1 + 1j)]))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert (bagua.get_rank(), bagua.get_world_size(), bagua.get_local_size()) == (rank, size, size)
    state = bagua.broadcast_object(optimizer.state_dict(), 0)
    if bagua.get_rank() > 0:
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.1 and optimizer.state[model.weight]["step"] == 1


def reductions(rank, size):
    values = [float(r + 1) for r in range(size)]
    expected = {ReduceOp.SUM: sum(values), ReduceOp.PRODUCT: torch.tensor(values).prod().item(), ReduceOp.MIN: 1,
                ReduceOp.MAX: size, ReduceOp.AVG: sum(values) / size}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for op, result in expected.items():
            x, y = torch.full((2, 3), rank + 1, dtype=dtype), torch.zeros(6, dtype=dtype)
            bagua.allreduce(x, y, op)
            assert torch.equal(y, torch.full((6,), result, dtype=dtype)), (op, y)
            bagua.allreduce_inplace(x, op)
            assert torch.equal(x.flatten(), y)
    bits = [1 << r for r in range(size)]
    for op, result in {ReduceOp.BOR: (1 << size) - 1, ReduceOp.BAND: bits[0] if size == 1 else 0,
                       ReduceOp.BXOR: (1 << size) - 1}.items():
        for dtype in (torch.int32, torch.int64, torch.uint8):
            x = torch.tensor([bits[rank]], dtype=dtype)
            bagua.allreduce_inplace(x, op)
            assert x.item() == result, (op, x)
    x, y = torch.full((3,), rank + 1.0), torch.full((2,), rank + 1)
    bagua.allreduce_coalesced_inplace([x, y], ReduceOp.MAX)
    assert x.tolist() == [size] * 3 and y.tolist() == [size] * 2
    bagua.hierarchical_allreduce_inplace(x.fill_(rank), ReduceOp.AVG)
    assert x.tolist() == [(size - 1) / 2] * 3
    assert [int(op) for op in ReduceOp] == [0, 1, 2, 3, 7, 8, 9, 10] and ReduceOp.AVG == 10
    root = size - 1
    x, y = torch.full((4,), rank + 1.0), torch.full((4,), -1.0)
    bagua.reduce(x, y if rank == root else None, root)
    assert y.tolist() == ([sum(values)] * 4 if rank == root else [-1] * 4)
    bagua.reduce(x, y, dst=0, op=ReduceOp.MAX)
    assert rank != 0 or y.tolist() == [size] * 4
    bagua.reduce_inplace(x, root)
    assert x.tolist() == [sum(values) if rank == root else rank + 1] * 4
    x = torch.arange(2.0 * size)
    y = torch.zeros(2)
    bagua.reduce_scatter(x, y)
    assert y.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
    bagua.reduce_scatter_inplace(x, ReduceOp.AVG)
    assert x.tolist() == list(range(2 * size))


def moves(rank, size):
    root = size - 1
    blocks = [float(r) for r in range(size) for _ in range(3)]
    for dtype in (torch.float32, torch.bool, torch.complex128, torch.int16):
        x = torch.full((3,), rank % 2, dtype=dtype)
        y = torch.zeros(size, 3, dtype=dtype)
        bagua.allgather(x, y)
        assert torch.equal(y[:, 0], (torch.arange(size) % 2).to(dtype))
    x, y = torch.full((3,), float(rank)), torch.full((3 * size,), -1.0)
    y[3 * rank:3 * rank + 3] = rank
    bagua.allgather_inplace(y)
    assert y.tolist() == blocks
    y.fill_(-1)
    bagua.gather(x, y if rank == root else None, root)
    assert y.tolist() == (blocks if rank == root else [-1] * 3 * size)
    z = torch.full((3 * size if rank == root else 3,), float(rank))
    bagua.gather_inplace(z, 3, root)
    assert z.tolist() == (blocks if rank == root else [rank] * 3)
    whole = torch.tensor(blocks)
    bagua.scatter(whole if rank == root else None, x.fill_(-1), root)
    assert x.tolist() == [rank] * 3
    z = whole.clone() if rank == root else torch.full((3,), -1.0)
    bagua.scatter_inplace(z, 3, root)
    assert z.tolist() == (blocks if rank == root else [rank] * 3)
    bagua.broadcast(x, root)
    assert x.tolist() == [root] * 3
    bagua.broadcast(x.fill_(rank))
    assert x.tolist() == [0] * 3
    x, y = torch.full((3,), float(rank)), torch.full((2,), rank)
    bagua.broadcast_coalesced([x, y], root)
    assert x.tolist() == [root] * 3 and y.tolist() == [root] * 2
    given = torch.tensor([10.0 * rank + r for r in range(size)])
    taken = torch.tensor([10.0 * r + rank for r in range(size)])
    y = torch.zeros(size)
    bagua.alltoall(given, y)
    assert torch.equal(y, taken)
    z = given.clone()
    bagua.alltoall_inplace(z)
    assert torch.equal(z, taken)
    # Rank r sends r + 1 elements to each.
    counts, displs = [rank + 1] * size, [r * (rank + 1) for r in range(size)]
    recv_counts = [r + 1 for r in range(size)]
    recv_displs = [r * (r + 1) // 2 for r in range(size)]
    y = torch.full((size * (size + 1) // 2 + 1,), -1.0)
    bagua.alltoall_v(given.repeat_interleave(rank + 1), counts, displs, y, recv_counts, recv_displs)
    assert torch.equal(y, torch.cat([taken.repeat_interleave(torch.tensor(recv_counts)), torch.tensor([-1.0])]))
    z = given.clone()
    one, places = [1] * size, list(range(size))
    bagua.alltoall_v_inplace(z, one, places, one, places)
    assert torch.equal(z, taken)
    if rank == 0 and size > 1:
        bagua.send(torch.arange(5.0), 1)
    if rank == 1:
        bagua.recv(x := torch.zeros(5), 0)
        assert x.tolist() == [0, 1, 2, 3, 4]
    strided = torch.zeros(4, 2)
    strided[:, 0] = rank
    bagua.allreduce_inplace(strided[:, 0])
    assert strided.tolist() == [[size * (size - 1) / 2, 0]] * 4
    bagua.barrier()


def groups(rank, size):
    everybody = bagua.new_group()
    comm = everybody.get_global_communicator()
    assert (comm.rank(), comm.nranks(), comm.ranks(), everybody.ranks) == (rank, size, list(range(size)), list(range(size)))
    evens = bagua.new_group(list(range(0, size, 2)))
    comm = evens.get_global_communicator()
    x = torch.tensor([float(rank)])
    if rank % 2 == 0:
        bagua.allreduce_inplace(x, comm=comm)
        assert x.item() == sum(range(0, size, 2)) and comm.rank() == rank // 2
        inside = evens.get_intra_node_communicator()
        assert inside.ranks() == evens.intra_ranks == list(range(0, size, 2))
        bagua.barrier(inside)
    else:
        assert comm.rank() == -1 and not comm.is_member()
        try:
            bagua.allreduce_inplace(x, comm=comm)
        except ValueError as error:
            assert "\n" not in str(error).strip()
        else:
            raise AssertionError("no error")
    between = everybody.get_inter_node_communicator()
    assert between.nranks() == 1 and between.is_member() == (rank == 0)
    manager = DistributedManager()
    DistributedManager.create_process_subgroup("pairs", 2 if size % 2 == 0 else 1)
    pairs = bagua.from_torch_group(manager.group("pairs"))
    comm = pairs.get_global_communicator()
    bagua.allreduce_inplace(x.fill_(rank), comm=comm)
    assert x.item() == sum(dist.get_process_group_ranks(manager.group("pairs"))) and comm.ranks() == dist.get_process_group_ranks(manager.group("pairs"))
    theirs = bagua.from_torch_group(dist.new_group()).get_global_communicator()
    bagua.broadcast(x.fill_(rank), size - 1, comm=theirs)
    assert x.item() == size - 1
    first, second = bagua.new_group().get_global_communicator(), bagua.new_group().get_global_communicator()
    assert first.name != second.name and not first.check_abort()
    bagua.barrier()
    first.abort()
    assert first.check_abort() and not second.check_abort()
    for call in (lambda: bagua.allreduce_inplace(x, comm=first), lambda: bagua.barrier(first)):
        try:
            call()
        except dist.DistBackendError as error:
            assert "abort" in str(error), error
        else:
            raise AssertionError("no error")
    bagua.barrier(second)


def wrong_calls(rank, size):
    one = torch.ones(4)
    raises(ValueError, lambda: bagua.allreduce(one, torch.ones(5)), 4, 5)
    raises(ValueError, lambda: bagua.allreduce_inplace(torch.ones(4 + (rank == size - 1)), ReduceOp.BXOR), "bitwise xor")
    raises(ValueError, lambda: bagua.allreduce_inplace(one, 5), 5)
    raises(ValueError, lambda: bagua.broadcast(one, size), size)
    raises(ValueError, lambda: bagua.init_process_group(), "before")
    raises(GroupError, lambda: bagua.new_group([0, size]), size)
    raises(ValueError, lambda: torch.ops.meshrun.bagua_broadcast(one, 0, "nobody's"), "nobody's")
    raises(ValueError, lambda: bagua.broadcast_object((lambda: 0) if rank == 0 else None), "rank 0")
    if size > 1:
        raises(ValueError, lambda: bagua.allreduce_inplace(torch.ones(4 + (rank == size - 1))), 4, 5)
        raises(GroupError, lambda: bagua.new_group([0] if rank == 0 else [0, 1]), "[0]", "[0, 1]")
        raises(ValueError, lambda: bagua.allreduce_inplace(one) if rank else bagua.barrier(), "allreduce")
    bagua.allreduce_inplace(one)
    assert one.tolist() == [size] * 4


def wrong_types(rank, size):
    """What one rank gives and PyTorch's dispatcher would refuse there is an error on all ranks."""
    one, two, none, is_wrong = torch.ones(4), torch.zeros(4), [0] * size, rank == size - 1
    coo, block = one.to_sparse(), torch.eye(4).to_sparse_csr()
    quantized = torch.quantize_per_tensor(one, 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([one, two], layout=torch.jagged)
    meta = torch.empty(4, device="meta")
    wrong_tensors = [(None, "None"), ([one], "a list"), (1.0, "a float"), ("x", "a str"), (coo, "Sparse"),
                     (block, "SparseCsr"), (quantized, "quantized"), (nested, "nested"), (meta, "meta"),
                     (one.to_mkldnn(), "Mkldnn")]
    conjugated = torch.ones(4, dtype=torch.complex64).conj()
    wrong_lists = [([], "empty"), ([conjugated], "conjugated"), (None, "None"), (one, "a Tensor"), ([one, None], "tensors[1]"),
                   ([[one]], "tensors[0]"), ([coo], "Sparse"), ([one, meta], "meta"), ({"a": one}, "a str")]
    for wrong, word in wrong_tensors:
        given = wrong if is_wrong else one
        raises(ValueError, lambda: bagua.allreduce(given, two), "allreduce: send_tensor", word)
        raises(ValueError, lambda: bagua.allreduce(two, given), "allreduce: recv_tensor", word)
        raises(ValueError, lambda: bagua.broadcast(given), "broadcast: tensor", word)
        raises(ValueError, lambda: bagua.alltoall_v(given, none, none, two, none, none), "send_tensor", word)
    for wrong, word in wrong_lists:
        given = wrong if is_wrong else [one, two]
        raises(ValueError, lambda: bagua.allreduce_coalesced_inplace(given), "allreduce_coalesced_inplace: ", word)
        raises(ValueError, lambda: bagua.broadcast_coalesced(given), "broadcast_coalesced: ", word)
    raises(ValueError, lambda: bagua.allreduce_inplace(one, "sum" if is_wrong else bagua.ReduceOp.SUM), "ReduceOp.SUM", "'sum'")
    blocks = torch.ones(4 * size if rank == 0 else 4)
    for wrong in ("0", None, 0.5, [0], one, 2**64):
        given = wrong if is_wrong else 0
        raises(ValueError, lambda: bagua.allreduce_inplace(one, given), "op")
        raises(ValueError, lambda: bagua.broadcast(one, given), "src")
        raises(ValueError, lambda: bagua.reduce(one, two, given), "dst")
        raises(ValueError, lambda: bagua.gather_inplace(blocks, given if is_wrong else 4, 0), "count")
        raises(ValueError, lambda: bagua.broadcast_object(one, given), "src")
        parts = [given] * size
        raises(ValueError, lambda: bagua.alltoall_v_inplace(one, parts, none, none, none), "send_counts[0]")
    parts = None if is_wrong else none
    raises(ValueError, lambda: bagua.alltoall_v_inplace(one, parts, none, none, none), "send_counts")
    # What only the root uses may be left out elsewhere, and not there.
    raises(ValueError, lambda: bagua.scatter(None, two, 0), "send_tensor")
    raises(ValueError, lambda: bagua.reduce(one, None, 0), "recv_tensor")
    raises(ValueError, lambda: bagua.reduce(one, 3 if is_wrong else two, 0), "recv_tensor", "an int")
    # An error of a message is its own rank's alone.
    for wrong in (None, coo, meta) if size > 1 else ():
        for call in (bagua.send, bagua.recv):
            try:
                call(wrong, (rank + 1) % size)
            except ValueError as error:
                assert "tensor" in str(error), error
            else:
                raise AssertionError("no error")
    for call in (bagua.barrier, lambda comm: bagua.allreduce_inplace(one, comm=comm)):
        try:
            call(bagua.new_group())
        except TypeError as error:
            assert "a BaguaProcessGroup" in str(error), error
        else:
            raise AssertionError("no error")
    assert one.tolist() == [1] * 4
    bagua.allreduce_inplace(one)
    assert one.tolist() == [size] * 4


def traced(rank, size):
    """Fake tensors send nothing, although their data are on the meta device."""
    with FakeTensorMode():
        one, many = torch.ones(4), torch.zeros(4 * size)
        bagua.allreduce_inplace(one)
        bagua.allgather(one, many)
        bagua.broadcast_coalesced([one, many])
        bagua.reduce(one, None if rank else many, 0)
    graph = make_fx(lambda x: bagua.allreduce_inplace(x) or x, tracing_mode="fake")(torch.ones(4))
    assert torch.ops.meshrun.bagua_allreduce_inplace.default in [node.target for node in graph.graph.nodes]
    assert graph(torch.ones(4)).tolist() == [size] * 4


def aborts(rank, size):
    """abort() of another thread ends the calls that wait, on all ranks; later ones raise, and check_abort() says it."""
    if size == 1:
        return
    comm, other = bagua.new_group().get_global_communicator(), bagua.new_group().get_global_communicator()
    x = torch.ones(4)
    bagua.allreduce_inplace(x, comm=comm)
    calls = (lambda: bagua.allreduce_inplace(x, comm=comm), lambda: bagua.barrier(comm),
             lambda: bagua.broadcast(x, 0, comm))

    def aborted(call):
        began = time.monotonic()
        try:
            call()
        except dist.DistBackendError as error:
            assert "abort() was called" in str(error), error
            assert time.monotonic() - began < 5
        else:
            raise AssertionError("no error")

    assert not comm.is_aborted() and not comm.check_abort()
    idle = rank == size - 1  # the others' call waits for it
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        begins = threading.Event()
        waiting = None if idle else pool.submit(lambda: begins.set() or aborted(calls[0]))
        if not idle:
            begins.wait()
        bagua.barrier(other)
        if rank == 0:
            assert not waiting.done()
            comm.abort()
        if not idle:
            waiting.result(10)
    learns_of_abort(comm)
    assert comm.is_aborted() == (rank == 0)
    for call in calls:
        aborted(call)
    assert comm.check_abort() and not other.is_aborted() and not other.check_abort()
    bagua.allreduce_inplace(x.fill_(1), comm=other)
    assert x.tolist() == [size] * 4


def learns_of_abort(comm):
    """check_abort() of a rank that calls nothing else says it in the end."""
    began = time.monotonic()
    while not comm.check_abort():
        assert time.monotonic() - began < 5
        time.sleep(0.001)


def default_device(rank, size):
    torch.set_default_device("meta")
    try:
        held = bagua.broadcast_object({"x": torch.arange(3, device="cpu") + rank, "rank": rank}, size - 1)
    finally:
        torch.set_default_device(None)
    assert held["x"].tolist() == [size - 1, size, size + 1] and held["rank"] == size - 1


def streams(rank, size):
    """A group takes a stream object, which the CPU does not use."""
    stream = torch.Stream(stream_id=0, device_index=0, device_type=1)
    for given, name in ((None, "without"), (stream, "with")):
        x = torch.ones(2)
        for group in (bagua.BaguaProcessGroup(list(range(size)), given, f"{name} a stream"),
                      bagua.new_group(stream=given), bagua.from_torch_group(dist.group.WORLD, given)):
            bagua.allreduce_inplace(x.fill_(1), comm=group.get_global_communicator())
            assert x.tolist() == [size] * 2
    for call in (lambda: bagua.BaguaProcessGroup([0], "fast", "wrong"), lambda: bagua.new_group(stream=3)):
        try:
            call()
        except TypeError as error:
            assert "torch.Stream" in str(error), error
        else:
            raise AssertionError("no error")


def compiled(rank, size):
    """In a compiled program the operators stay, in order, and write what they say that they write."""
    def step(x, y):
        z = x * 2
        bagua.allreduce_inplace(z)
        bagua.allgather(z, y)
        bagua.broadcast(z, size - 1)
        return z + 1

    x, y = torch.full((3,), rank + 1.0), torch.zeros(3 * size)
    z = torch.compile(step, fullgraph=True, backend="aot_eager")(x, y)
    total = size * (size + 1.0)
    assert z.tolist() == [total + 1] * 3 and y.tolist() == [total] * 3 * size and x.tolist() == [rank + 1] * 3

    def unread(x):
        """What this rank writes but does not read afterwards, others wait for."""
        y = x * 2
        root = rank == size - 1
        reduced, gathered = (torch.zeros(3), torch.zeros(3 * size)) if root else (None, None)
        bagua.reduce(y, reduced, size - 1)
        bagua.gather(y, gathered, size - 1)
        kept, other = y * 1, y + 1
        bagua.allreduce_inplace(kept)
        bagua.broadcast_coalesced([other, y.clone()])
        bagua.scatter(y.repeat(size) if root else None, torch.zeros(3), size - 1)
        return (reduced, gathered, kept) if root else (y,)

    for got, expected in zip(torch.compile(unread, fullgraph=True, backend="aot_eager")(x), unread(x)):
        assert torch.equal(got, expected), (got, expected)
    bagua.barrier()
    w = torch.ones(3, requires_grad=True)
    saved = w * 1
    squared = saved * saved
    with torch.no_grad():
        bagua.allreduce_inplace(saved)
    try:
        squared.sum().backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
    else:
        raise AssertionError("autograd did not notice")


def opcheck(rank, size):
    if size == 2:  # ranks call a message's operators equally often, and in one order
        one, two = torch.ones(4), torch.zeros(4)
        name, arguments = ("send", (one, 1)) if rank == 0 else ("recv", (two, 0))
        torch.library.opcheck(getattr(torch.ops.meshrun, f"bagua_{name}").default, (*arguments, ""))
        bagua.barrier()
    if size > 1:  # it calls an operator as often as it likes, but equally often on all ranks
        return
    operators, one, two = torch.ops.meshrun, torch.ones(4), torch.zeros(4)
    calls = {"allreduce": (one, two, 0), "allreduce_inplace": (one, 0), "allreduce_coalesced_inplace": ([one, two], 0),
             "reduce": (one, two, 0, 0), "reduce_inplace": (one, 0, 0), "broadcast": (one, 0),
             "broadcast_coalesced": ([one, two], 0), "allgather": (one, two), "allgather_inplace": (one,),
             "gather": (one, two, 0), "gather_inplace": (one, 4, 0), "scatter": (one, two, 0),
             "scatter_inplace": (one, 4, 0), "reduce_scatter": (one, two, 0), "reduce_scatter_inplace": (one, 0),
             "alltoall": (one, two), "alltoall_inplace": (one,), "alltoall_v": (one, [4], [0], two, [4], [0]),
             "alltoall_v_inplace": (one, [4], [0], [4], [0])}
    for name, arguments in calls.items():
        torch.library.opcheck(getattr(operators, f"bagua_{name}").default, (*arguments, ""))
    raises(ValueError, lambda: operators.bagua_send(one, 1, ""), 1)


CASES = [documented, reductions, moves, groups, wrong_calls, wrong_types, traced, aborts, default_device, streams,
         compiled, opcheck]


def spawned(rank, size, port, names):
    environment(rank, size, port)
    DistributedManager.initialize()
    assert not bagua.is_initialized()
    bagua.init_process_group()
    assert bagua.is_initialized()
    for case in CASES:
        if names and case.__name__ not in names:
            continue
        noise = io.StringIO()
        try:
            with contextlib.redirect_stderr(noise), warnings.catch_warnings():
                case(rank, size)
        except BaseException as error:
            error.add_note(f"in the case {case.__name__} on rank {rank} of {size}; {noise.getvalue()[-2000:]}")
            raise
        if rank == 0:
            print(f"  {size} ranks: {case.__name__}", flush=True)
    comm = bagua.new_group().get_global_communicator()
    DistributedManager.cleanup(barrier=True)
    assert not bagua.is_initialized()
    try:
        bagua.barrier(comm)
    except dist.DistBackendError as error:
        assert "cleanup" in str(error), error
    else:
        raise AssertionError("a communicator outlives its world")


def joins_again(rank, size, port, names):
    """A handle of the world before raises, also where the next world has a communicator of the same name."""
    environment(rank, size, port)
    DistributedManager.initialize()
    bagua.init_process_group()
    first = bagua.new_group([0]).get_global_communicator()
    DistributedManager.cleanup(barrier=True)
    DistributedManager.initialize()
    bagua.init_process_group()
    second = bagua.new_group().get_global_communicator()
    assert first.name == second.name and first.key != second.key
    x = torch.tensor([1.0])
    for call in (lambda: bagua.allreduce_inplace(x, comm=first), lambda: bagua.barrier(first)):
        try:
            call()
        except (dist.DistBackendError, ValueError) as error:  # of a rank that was not in it
            assert "\n" not in str(error).strip(), error
        else:
            raise AssertionError("a communicator outlives its world")
    assert x.item() == 1
    bagua.allreduce_inplace(x, comm=second)
    assert x.item() == size
    key = second.key
    del second
    raises(ValueError, lambda: torch.ops.meshrun.bagua_broadcast(x, 0, key), key)
    DistributedManager.cleanup(barrier=True)
    if rank == 0:
        print(f"  {size} ranks: joins_again", flush=True)


def begins_alone(rank, size, port, names):
    """get_local_rank() joins the job itself, as init_process_group() does; a store is torch.distributed's."""
    environment(rank, size, port)
    assert bagua.get_local_rank() == rank and not bagua.is_initialized()
    store = dist.FileStore(f"{os.environ['MESHRUN_TEST_DIRECTORY']}/bagua-{size}", size)
    bagua.init_process_group(store)
    x = torch.tensor([1.0])
    bagua.allreduce_inplace(x)
    dist.all_reduce(x)
    assert x.item() == size * size
    began = time.monotonic()
    bagua.barrier()
    assert time.monotonic() - began < 60
    if rank == 0:
        print(f"  {size} ranks: begins_alone", flush=True)


def connects_without_lock(rank, size, port, names):
    """With Gloo the first use of the default group waits for the others; Python's other threads go on meanwhile."""
    environment(rank, size, port)
    DistributedManager.initialize(backend="gloo")
    bagua.init_process_group()
    store = dist.FileStore(f"{os.environ['MESHRUN_TEST_DIRECTORY']}/lock-{size}", size)
    if rank > 0:
        store.wait(["rank 0 has begun"])
        assert bagua.broadcast_object(None) == "from rank 0"
    else:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            begins = threading.Event()
            done = pool.submit(lambda: begins.set() or bagua.broadcast_object("from rank 0"))
            begins.wait()
            store.set("rank 0 has begun", "1")
            assert done.result(60) == "from rank 0"
    DistributedManager.cleanup(barrier=True)
    if rank == 0:
        print(f"  {size} ranks: connects_without_lock", flush=True)


if __name__ == "__main__":
    sys.exit("tests/python/communication starts it")
