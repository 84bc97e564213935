"""What each rank of tests/python/torch_backend does: one function a case, called with (rank, size), which asserts.

As a program it runs the cases named in its arguments on the group of its launcher's environment.
"""

import contextlib
import datetime
import io
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

import meshrun.torch

BACKEND = "meshrun"


def join(rank, size, port, **changes):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    given = {"backend": BACKEND, "timeout": datetime.timedelta(seconds=60), "rank": rank, "world_size": size}
    dist.init_process_group(**given | changes)


def collectives(rank, size):
    assert dist.get_backend() == BACKEND
    total = size * (size + 1) // 2
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        x = torch.full((3, 5), rank + 1, dtype=dtype)
        dist.all_reduce(x)
        assert torch.equal(x, torch.full_like(x, total)), x
    x = torch.full((4,), complex(rank, 1))
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((4,), complex(size * (size - 1) / 2, size))), x
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    assert x.item() == size - 1
    pieces = [torch.empty(2) for _ in range(size)]
    dist.all_gather(pieces, torch.full((2,), float(rank)))
    assert [piece.tolist() for piece in pieces] == [[r, r] for r in range(size)]
    whole = torch.empty(size * 2)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    assert torch.equal(whole, torch.arange(size).repeat_interleave(2).float())
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
    assert torch.equal(part, size * torch.tensor([2.0 * rank, 2.0 * rank + 1]))
    x = torch.arange(3.0) + (7 if rank == size - 1 else 0)
    dist.broadcast(x, src=size - 1)
    assert x.tolist() == [7, 8, 9]
    dist.barrier()


def uneven_all_to_all(rank, size):
    # Rank r sends r + s + 1 elements of value 10 r + s to rank s.
    given = [rank + s + 1 for s in range(size)]
    taken = [s + rank + 1 for s in range(size)]
    sent = torch.cat([torch.full((n,), 10.0 * rank + s) for s, n in enumerate(given)])
    got = torch.empty(sum(taken))
    dist.all_to_all_single(got, sent, taken, given)
    assert torch.equal(got, torch.cat([torch.full((n,), 10.0 * s + rank) for s, n in enumerate(taken)]))


def point_to_point(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    x = torch.empty(5)
    if rank % 2 == 0:
        if rank + 1 < size:
            dist.send(torch.full((5,), float(rank)), rank + 1, tag=3)
    else:
        assert dist.recv(x, rank - 1, tag=3) == rank - 1
        assert x.tolist() == [rank - 1] * 5
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((5,), float(rank)), right),
                                        dist.P2POp(dist.irecv, x, left)]):
        work.wait()
    assert x.tolist() == [left] * 5
    if rank == 0:
        seen = sorted(dist.recv(x) for _ in range(size - 1))
        assert seen == list(range(1, size)), seen
    else:
        dist.send(x, 0)


def objects(rank, size):
    every = [None] * size
    dist.all_gather_object(every, {"rank": rank, "text": "x" * (100 * rank)})
    assert [one["rank"] for one in every] == list(range(size))
    one = [f"from {rank}"]
    dist.broadcast_object_list(one, src=size - 1)
    assert one == [f"from {size - 1}"]


def subgroups(rank, size):
    for round in range(2):  # destroyed groups leave keys behind
        evens = dist.new_group(range(0, size, 2))
        odds = dist.new_group(range(1, size, 2)) if size > 1 else None
        mine = evens if rank % 2 == 0 else odds
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=mine)
        assert x.item() == sum(range(rank % 2, size, 2)), (round, x)
        dist.barrier()
        dist.destroy_process_group(mine)
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(x.fill_(1), group=gloo)
    assert x.item() == size


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 3))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 12, generator=generator), torch.randn(8, 3, generator=generator)


def train(model, rank, steps=20):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp(rank, size):
    trained = {}
    for name in (BACKEND, "gloo"):
        model = nn.parallel.DistributedDataParallel(network(), process_group=dist.new_group(backend=name))
        losses = train(model, rank)
        trained[name] = torch.cat([p.detach().flatten() for p in model.parameters()] + [torch.tensor(losses)])
    untrained = torch.cat([p.detach().flatten() for p in network().parameters()])
    assert not torch.equal(trained["gloo"][:100], untrained[:100])
    difference = ((trained[BACKEND] - trained["gloo"]).norm() / trained["gloo"].norm()).item()
    assert difference < 1e-6, difference


def fsdp2(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=init_device_mesh("cpu", (size,)))
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    train(model, rank)
    whole = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    plain = nn.parallel.DistributedDataParallel(network(), process_group=dist.new_group(backend="gloo"))
    train(plain, rank)
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    difference = ((whole - expected).norm() / expected.norm()).item()
    assert difference < 1e-6, difference


def dtensor(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(3)
    a, b = torch.randn(4 * size + 1, 6), torch.randn(6, 5)
    product = distribute_tensor(a, mesh, [Shard(0)]) @ distribute_tensor(b, mesh, [Replicate()])
    assert torch.allclose(product.full_tensor(), a @ b, atol=1e-6)
    turned = distribute_tensor(a, mesh, [Shard(0)]).redistribute(placements=[Shard(1)])
    assert torch.equal(turned.full_tensor(), a)


def functional(rank, size):
    import torch.distributed._functional_collectives as functional_collectives

    x = functional_collectives.all_reduce(torch.full((3,), float(rank)), "sum", dist.group.WORLD)
    assert torch.equal(x + 0, torch.full((3,), size * (size - 1) / 2))


def mismatch(rank, size):
    group = dist.new_group()
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(10 + (rank == size - 1)), group=group)
    except ValueError as error:
        text = str(error)
    else:
        raise AssertionError("no error")
    assert time.monotonic() - began < 5
    assert "10" in text and "11" in text and "\n" not in text.strip(), text
    said = [None] * size
    dist.all_gather_object(said, text)
    assert len(set(said)) == 1, said


def other_threads(rank, size):
    """A rank that waits for others lets its other threads run."""
    counted, over = 0, threading.Event()

    def count():
        nonlocal counted
        while not over.wait(0.001):
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    if rank == 0:
        # The others wait for it meanwhile.
        deadline = time.monotonic() + 20
        while counted < 100 and time.monotonic() < deadline:
            pass
    dist.all_reduce(torch.ones(1))
    over.set()
    thread.join()
    seen = [None] * size
    dist.all_gather_object(seen, counted)
    assert all(n > 20 for n in seen), seen


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([float(index) ** 2])


def fork_workers(rank, size):
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        total = torch.zeros(1)
        for x in loader:
            part = x.sum().reshape(1)
            dist.all_reduce(part)
            total += part
        assert total.item() == size * sum(i * i for i in range(40)), total


def futures(rank, size):
    """What DDP's hooks use: continuations in Python, on the engine's thread."""
    works = [dist.all_reduce(torch.full((1000,), float(i)), async_op=True) for i in range(50)]
    results = [work.get_future().then(lambda future: future.value()[0].sum().item()) for work in works]
    assert [result.wait() for result in results] == [1000.0 * i * size for i in range(50)]

    # A continuation that waits for other futures, as PowerSGD's do. One at a time: torch runs one that comes late on this thread.
    def again(future):
        return dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().wait()[0].sum().item()

    for i in range(20):
        result = dist.all_reduce(torch.full((10,), float(i)), async_op=True).get_future().then(again)
        assert result.wait() == 10.0 * i * size * size
    # On no thread of the program's: neither its lock nor its modes are in the way.
    lock, x, w = threading.Lock(), torch.full((1, 3), 1 / 3), torch.ones(3, 1, requires_grad=True)

    def locked(future):
        with lock:
            return future.value()[0] @ w

    if rank == size - 1:
        time.sleep(0.2)
    future = dist.all_reduce(x, async_op=True).get_future().then(locked)
    with lock, torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        dist.all_reduce(torch.ones(3))
    assert future.wait().dtype == torch.float32 and future.wait().requires_grad
    work = dist.all_reduce(torch.ones(3), async_op=True)
    future = work.get_future()
    work.wait()
    assert future.done()


def shared_memory(rank, size):
    """Inputs that lie in outputs: what is sent is what the tensors held before the call."""
    for n in (3, 1 << 18):
        values = torch.arange(size * n, dtype=torch.float64).view(size, n) + 1000 * rank
        expected = [torch.arange(rank * n, (rank + 1) * n, dtype=torch.float64) + 1000 * r for r in range(size)]
        pieces = list(values.clone())
        dist.all_to_all(pieces, pieces)
        assert torch.equal(torch.stack(pieces), torch.stack(expected))
        flat = torch.cat([torch.zeros(n, dtype=torch.float64), values.flatten()])  # it overlaps itself by all but one piece
        dist.all_to_all_single(flat[:size * n], flat[n:])
        assert torch.equal(flat[:size * n], torch.cat(expected))
        firsts = torch.stack([torch.arange(n, dtype=torch.float64) + 1000 * r for r in range(size)])
        whole = values.flatten().clone()
        dist.all_gather_into_tensor(whole, whole[:n])
        assert torch.equal(whole, firsts.flatten())
        pieces = list(values.clone())
        dist.all_gather(pieces, pieces[0])
        assert torch.equal(torch.stack(pieces), firsts)
        pieces = list(values.clone())
        dist.gather(pieces[0], pieces if rank == size - 1 else None, dst=size - 1)
        assert torch.equal(torch.stack(pieces), firsts if rank == size - 1 else values)
        pieces = list(values.clone())
        dist.scatter(pieces[0], pieces if rank == size - 1 else None, src=size - 1)
        assert torch.equal(pieces[0], torch.arange(rank * n, (rank + 1) * n, dtype=torch.float64) + 1000 * (size - 1))
        sums = sum(expected)
        whole = values.flatten().clone()
        dist.reduce_scatter_tensor(whole[:n], whole)
        assert torch.equal(whole[:n], sums)
        pieces = list(values.clone())
        dist.reduce_scatter(pieces[0], pieces)
        assert torch.equal(pieces[0], sums)


class Spectral(nn.Module):
    """A layer with complex parameters, as neural operators have them."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.modes = nn.Parameter(torch.randn(3, 5, dtype=torch.complex64, generator=generator))
        self.more = nn.Parameter(torch.randn(7, dtype=torch.complex64, generator=generator))
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (self.modes * x).abs().sum() + (self.more * x.sum()).real.square().sum() + (self.bias * x.real.sum()).sum()


def complex_parameters(rank, size):
    trained = {}
    for name in (BACKEND, "gloo"):
        group = dist.new_group(backend=name)
        for views in (False, True):
            model = nn.parallel.DistributedDataParallel(Spectral(), process_group=group, gradient_as_bucket_view=views)
            for step in range(3):
                model.zero_grad()
                model(torch.full((3, 5), complex(rank + 1, step))).backward()
            trained[name, views] = [p.grad.clone() for p in model.parameters()]
    for views in (False, True):
        for mine, other in zip(trained[BACKEND, views], trained["gloo", views]):
            assert torch.allclose(mine, other, rtol=1e-6), (mine, other)


def power_sgd(rank, size):
    """A hook of torch's whose continuations wait for collectives. One bucket: more are right, or an error on all ranks."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    trained = {}
    for name in (BACKEND, "gloo"):
        group = dist.new_group(backend=name)
        model = nn.parallel.DistributedDataParallel(network(), process_group=group)
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(model, rank, 5)
        trained[name] = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(trained[BACKEND], trained["gloo"], rtol=1e-4, atol=1e-5)

    # Its continuations call after later calls of the autograd thread.
    group = dist.new_group(backend=BACKEND)
    layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
    model = nn.parallel.DistributedDataParallel(layers, process_group=group, bucket_cap_mb=1)
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    is_refused = False
    try:
        for step in range(4):
            model(torch.full((2, 512), 0.1 * (rank + step))).square().sum().backward()
    except (RuntimeError, ValueError) as error:
        assert "use one bucket" in str(error), error
        is_refused = True
    said = [None] * size
    dist.all_gather_object(said, is_refused)
    assert len(set(said)) == 1, said


CASES = [collectives, uneven_all_to_all, point_to_point, objects, subgroups, functional, futures, shared_memory, other_threads,
         fork_workers, mismatch, dtensor, ddp, complex_parameters, power_sgd, fsdp2]


def run(rank, size, names):
    for case in CASES:
        if names and case.__name__ not in names:
            continue
        noise = io.StringIO()
        try:
            with contextlib.redirect_stderr(noise):
                case(rank, size)
        except BaseException as error:
            error.add_note(f"in the case {case.__name__} on rank {rank} of {size}; {noise.getvalue()[-2000:]}")
            raise
        if rank == 0:
            print(f"  {size} ranks: {case.__name__}", flush=True)


def spawned(rank, size, port, names):
    join(rank, size, port)
    run(rank, size, names)
    dist.destroy_process_group()


def joins_again(rank, size, port, names):
    """Again at the same port, and again at the same file; the last time the groups are left to the interpreter's end."""
    file = {"init_method": f"file://{os.environ['MESHRUN_TEST_DIRECTORY']}/store-{size}"}
    places = [{}, {}, file, file, {}]
    for number, changes in enumerate(places):
        join(rank, size, port, **changes)
        x = torch.ones(2000)
        dist.all_reduce(x)
        assert x.sum().item() == 2000 * size
        dist.barrier()
        if number + 1 < len(places):
            dist.destroy_process_group()
    if rank == 0:
        print(f"  {size} ranks: joins_again", flush=True)


def loses_a_rank(rank, size, port, names):
    join(rank, size, port)
    dist.barrier()
    if rank == 1:
        os._exit(0)
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        assert "rank 1" in str(error) and "\n" not in str(error).strip(), error
    else:
        raise AssertionError("no error")
    assert time.monotonic() - began < 5
    print(f"  {size} ranks: loses_a_rank", flush=True)


def interrupted(rank, size, port, names):
    """Ctrl-C while this rank waits for one that does not come; then the operation goes on."""
    join(rank, size, port)
    x = torch.ones(3)
    dist.all_reduce(x)
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
        began = time.monotonic()
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            dist.all_reduce(x)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the wait was not interrupted")
        assert 0.9 < time.monotonic() - began < 9
        dist.barrier()
    else:
        time.sleep(10)
        dist.all_reduce(x)
        dist.barrier()
    assert x.tolist() == [size * size] * 3, x
    dist.destroy_process_group()
    if rank == 0:
        print(f"  {size} ranks: interrupted", flush=True)


def ends_early(rank, size, port):
    """The interpreter ends while an operation is under way that no other rank takes part in."""
    join(rank, size, port)
    x = torch.ones(2000)
    dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(x, async_op=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group(BACKEND)
    run(dist.get_rank(), dist.get_world_size(), sys.argv[1:])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
