"""What each rank of tests/python/operators does: one function a case, called with (rank, size), which asserts.

Every rank makes the unsharded tensors from the same seeds, so it knows what the collectives must give it.
"""

import contextlib
import io
import sys
import threading
import time
import unittest.mock

import torch
import torch.distributed as dist

import meshrun.torch
import ranks
from meshrun.distributed import autograd, fft, mappings, utils
from meshrun.distributed.fused import fused_all_reduce
from meshrun.torch._effects import COMMUNICATING

ops = torch.ops.meshrun
NOT_OF_ONE = "not of one call's backward pass"
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64]


def patterns(size):
    """Extents by rank: uneven, some empty, all on the last rank."""
    return [[r + 1 for r in range(size)], [0 if r % 2 else r + 2 for r in range(size)], [0] * (size - 1) + [5]]


def seeded(shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(-1000, 1000, shape, generator=generator, dtype=dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)


def whole(sizes, dim, seed, dtype=torch.float64):
    shape = [3, 2, 4]
    shape[dim] = sum(sizes)
    return seeded(shape, seed, dtype)


def same(actual, expected):
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, (actual.shape, expected.shape)
    norm = expected.abs().double().norm().item()
    difference = (actual - expected).abs().double().norm().item()
    assert difference <= 1e-12 * norm, (difference, norm)


def values(rank, size):
    for sizes in patterns(size):
        for dim in (0, 1, -1):
            for dtype in DTYPES:
                pieces = whole(sizes, dim, 3, dtype).split(sizes, dim)
                shapes = [list(piece.shape) for piece in pieces]
                full = torch.cat(pieces, dim)
                for given in (sizes, shapes):
                    assert torch.equal(utils.all_gather_v_wrapper(pieces[rank], given, dim), full)
                root = size - 1
                got = utils.gather_v_wrapper(pieces[rank], sizes, dim, root)
                assert torch.equal(got, full if rank == root else torch.zeros_like(full))
                assert rank == root or got.untyped_storage().nbytes() <= full.element_size()
                sent = full if rank == root else full.narrow(dim, 0, 0)
                assert torch.equal(utils.scatter_v_wrapper(sent, sizes, dim, root), pieces[rank])
                every = [whole(sizes, dim, 10 + r, dtype) for r in range(size)]
                wide = torch.float32 if dtype == torch.bfloat16 else dtype
                total = every[0].to(wide)
                for other in every[1:]:
                    total = total + other.to(wide)  # in rank order, as the ranks add
                expected = total.to(dtype).split(sizes, dim)[rank]
                assert torch.equal(utils.all_gather_v_bwd_wrapper(every[rank], sizes, dim), expected)
    # Equal pieces need no sizes.
    equal = seeded((2 * size, 3), 5)
    assert torch.equal(utils.all_gather_v_wrapper(equal[2 * rank:2 * rank + 2]), equal)


def columns(extent, size):
    """A split that is uneven and not the rule's."""
    rest = extent - (size - 1)
    return [rest] + [1] * (size - 1)


def exchanges(rank, size):
    dims = [(0, 1), (1, -1), (-1, 0)]
    for dtype in DTYPES:
        for dim0, dim1 in dims:
            full = seeded((5, 6, 7), 9, dtype)
            held = columns(full.shape[dim1], size)
            piece = full.split(held, dim1)[rank]
            expected = full.split(utils.compute_split_shapes(full.shape[dim0], size), dim0)[rank]
            for given in (None, held):
                pieces, work = utils.distributed_transpose(piece, dim0, dim1, dim1_sizes=given)
                assert work is None and [p.shape[dim1] for p in pieces] == held
                assert torch.equal(torch.cat(pieces, dim1), expected)
            pieces, work = utils.distributed_transpose(piece, dim0, dim1, async_op=True)
            work.wait()
            assert torch.equal(torch.cat(pieces, dim1), expected)
        for dim in (0, -1):
            full, sizes, indices, table = graph(size, dim, dtype)
            pieces = full.split(sizes, dim)
            expected = torch.cat([pieces[i].index_select(dim, indices[i][rank]) for i in range(size)], dim)
            got = utils.indexed_all_to_all_v_wrapper(pieces[rank], indices[rank], table, dim)
            assert torch.equal(got, expected)
            back = utils.indexed_all_to_all_v_wrapper_bwd(got, indices[rank], table, sizes[rank], True, dim)
            times = torch.zeros(sizes[rank], dtype=torch.int64)
            for index in indices[rank]:
                times.index_add_(0, index, torch.ones_like(index))
            shape = [1] * full.dim()
            shape[dim] = -1
            expected = pieces[rank] * times.reshape(shape).to(dtype)
            assert torch.allclose(back, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5), dtype


def graph(size, dim, dtype=torch.float64):
    """Slices by rank, and which of them each rank sends to which: some repeat, some ranks send none."""
    sizes = [r + 2 for r in range(size)]
    generator = torch.Generator().manual_seed(77)
    indices = [[torch.randint(0, sizes[i], ((i + 2 * j) % 4,), generator=generator) for j in range(size)]
               for i in range(size)]
    return whole(sizes, dim, 4, dtype), sizes, indices, [[len(index) for index in row] for row in indices]


def bend(y):
    return (torch.view_as_real(y) if y.is_complex() else y).sin()


def derivatives(rank, size, full, own, sharded, unsharded, one_loss=False):
    """The result, the gradient and a product with the second derivative, against the unsharded computation.

    own: this rank's part of an input. unsharded: the results of all ranks. The loss is the sum of the ranks' losses,
    or, of ranks that all hold the same result, one of them.
    """
    expected = unsharded(full)
    weights = [seeded(bend(y).shape, 30 + (0 if one_loss else r)) for r, y in enumerate(expected)]
    v = seeded(full.shape, 99, full.dtype)

    def product(gradient, along):
        return (torch.view_as_real(gradient) * torch.view_as_real(along)).sum() if along.is_complex() else \
            (gradient * along).sum()

    x = own(full).clone().requires_grad_()
    y = sharded(x)
    same(y.detach(), expected[rank].detach())
    first, = torch.autograd.grad((bend(y) * weights[rank]).sum(), x, create_graph=True)
    second, = torch.autograd.grad(product(first, own(v)), x)

    plain = full.clone().requires_grad_()
    losses = [(bend(y) * w).sum() for y, w in zip(unsharded(plain), weights)]
    whole_first, = torch.autograd.grad(losses[0] if one_loss else sum(losses), plain, create_graph=True)
    whole_second, = torch.autograd.grad(product(whole_first, v), plain)
    same(first.detach(), own(whole_first.detach()))
    same(second, own(whole_second))


def gradients(rank, size):
    for sizes in patterns(size):
        for dim in (0, 1, -1):
            full = whole(sizes, dim, 6)
            pieces = lambda x: x.split(sizes, dim)
            own = lambda x: pieces(x)[rank]
            derivatives(rank, size, full, own, lambda x: autograd.all_gather_v(x, sizes, dim), lambda x: [x] * size)
            derivatives(rank, size, full, own, lambda x: autograd.AllGatherVAutograd.apply(x, sizes, dim),
                        lambda x: [x] * size)
            dst = size - 1
            derivatives(rank, size, full, own, lambda x: autograd.gather_v(x, sizes, dim, dst),
                        lambda x: [x if r == dst else x.narrow(dim, 0, 0) for r in range(size)])
            # Off the source the tensor is a template, and its gradient is zeros.
            at_source = lambda x: x if rank == 0 else torch.zeros_like(x)
            derivatives(rank, size, full, at_source, lambda x: autograd.scatter_v(x, sizes, dim), pieces)
            every = torch.stack([full + r for r in range(size)])
            derivatives(rank, size, every, lambda x: x[rank], lambda x: ops.reduce_scatter_v(x, sizes, dim),
                        lambda x: pieces(x.sum(0)))
            derivatives(rank, size, full, own, lambda x: mappings.gather_from_parallel_region(x, dim, sizes),
                        lambda x: [x] * size, one_loss=True)
    # A template of one dimension, which torch.cat would drop.
    derivatives(rank, size, seeded((2 * size,), 1), lambda x: x if rank == 0 else torch.zeros_like(x),
                lambda x: autograd.scatter_v(x, None), lambda x: x.split(2))
    for dim0, dim1 in [(0, 1), (-1, 0)]:
        full = seeded((5, 6, 7), 9)
        held = columns(full.shape[dim1], size)
        rows = utils.compute_split_shapes(full.shape[dim0], size)
        for given in (None, held):
            derivatives(rank, size, full, lambda x: x.split(held, dim1)[rank],
                        lambda x: torch.cat(utils.distributed_transpose(x, dim0, dim1, dim1_sizes=given)[0], dim1),
                        lambda x: x.split(rows, dim0))
        derivatives(rank, size, full, lambda x: x.split(held, dim1)[rank],
                    lambda x: ops.distributed_transpose(x, dim0, dim1), lambda x: x.split(rows, dim0))
    for dim in (0, -1):
        full, sizes, indices, table = graph(size, dim)

        def exchanged(x):
            pieces = x.split(sizes, dim)
            sent = lambda r: [pieces[i].index_select(dim, indices[i][r]) for i in range(size)]
            return [torch.cat(sent(r), dim) for r in range(size)]

        derivatives(rank, size, full, lambda x: x.split(sizes, dim)[rank],
                    lambda x: autograd.indexed_all_to_all_v(x, indices[rank], table, True, dim), exchanged)


def maps(rank, size):
    full = seeded((5, 3), 8)
    derivatives(rank, size, full, lambda x: x, lambda x: mappings.copy_to_parallel_region(x), lambda x: [x] * size)
    rule = utils.compute_split_shapes(5, size)
    derivatives(rank, size, full, lambda x: x, lambda x: mappings.scatter_to_parallel_region(x, 0),
                lambda x: x.split(rule))
    every = seeded((size, 4), 8)
    derivatives(rank, size, every, lambda x: x[rank], lambda x: mappings.reduce_from_parallel_region(x),
                lambda x: [x.sum(0)] * size, one_loss=True)
    derivatives(rank, size, full[:, :2].repeat(size, 1)[:2 * size], lambda x: x[2 * rank:2 * rank + 2],
                lambda x: mappings.gather_from_parallel_region(x, 0), lambda x: [x] * size, one_loss=True)
    x = torch.full((3,), float(rank + 1))
    assert mappings.reduce_from_parallel_region(x)[0] == size * (size + 1) / 2 and x[0] == rank + 1


def transforms(rank, size):
    group = dist.group.WORLD
    for shape, dim, s in [((2, 5, 9), (1, 2), None), ((4, 7, 2), (1, 0), (None, 5)), ((6, 8), (-2, -1), (4, 11)),
                          ((3, 8, 2, 9), (1, 3), (9, 8))]:
        for norm in ("ortho", "backward", "forward"):
            full = seeded(shape, 11)
            held = columns(shape[dim[1]], size)
            extents = [shape[d] if s is None or s[i] is None else s[i] for i, d in enumerate(dim)]
            rule = utils.compute_split_shapes(extents[0], size)
            for given in (None, held):
                derivatives(rank, size, full, lambda x: x.split(held, dim[1])[rank],
                            lambda x: fft.DistributedRFFT2.apply(x, s, dim, norm, group=group, input_sizes=given),
                            lambda x: torch.fft.rfft2(x, extents, dim, norm).split(rule, dim[0]))
            spectrum = torch.fft.rfft2(full, dim=dim)
            rows = columns(spectrum.shape[dim[0]], size)
            widths = utils.compute_split_shapes(extents[1], size)
            derivatives(rank, size, spectrum, lambda x: x.split(rows, dim[0])[rank],
                        lambda x: fft.DistributedIRFFT2.apply(x, extents, dim, norm, group=group, input_sizes=rows),
                        lambda x: torch.fft.irfft2(x, extents, dim, norm).split(widths, dim[1]))


def graphs_end_alike(rank, size):
    """Losses that do not use a result, and undefined cotangents: all ranks take part all the same."""
    x = torch.ones(rank + 1, requires_grad=True)
    gathered = autograd.gather_v(x, [r + 1 for r in range(size)])
    own = torch.ones((), requires_grad=True)
    loss = gathered.sum() if rank == 0 else autograd.tie(own * 3, gathered)
    loss.backward()
    assert torch.equal(x.grad, torch.ones(rank + 1)) and (rank == 0 or own.grad == 3)
    with torch.no_grad():
        assert not autograd.all_gather_v(x, None if size == 1 else [r + 1 for r in range(size)]).requires_grad
    assert not autograd.all_gather_v(x.detach(), [r + 1 for r in range(size)]).requires_grad
    # One node a call, and none inside it.
    y = autograd.all_gather_v(x * 2, [r + 1 for r in range(size)])
    assert y.grad_fn.next_functions[0][0].name() == "MulBackward0" and y.is_leaf is False
    with torch.inference_mode():
        assert ops.all_gather_v(torch.ones(2)).shape == (2 * size,)
        assert ops.copy_to_parallel_region(torch.ones(2)).shape == (2,)


def refused(rank, size, call, *words):
    """`call` is a ValueError of one sentence, the same on every rank, within seconds."""
    began = time.monotonic()
    try:
        call()
    except ValueError as error:
        text = str(error)
    else:
        raise AssertionError(f"no error; {words} was expected")
    assert time.monotonic() - began < 5
    said = [None] * size
    dist.all_gather_object(said, text)
    assert len(set(said)) == 1 and "\n" not in text.strip(), said
    for word in words:
        assert word in text, text


def wrong_calls(rank, size):
    last = rank == size - 1
    x = torch.ones(3, 4)
    refuse = lambda call, *words: refused(rank, size, call, *words)
    refuse(lambda: autograd.all_gather_v(x, [3] * (size + last)), f"rank {size - 1}")
    refuse(lambda: autograd.all_gather_v(x, [3 + last] * size), f"sizes[{size - 1}] is 4", "has 3 along dim 0")
    refuse(lambda: autograd.all_gather_v(x, [3] * size, 2 if last else 0), "dim is 2")
    refuse(lambda: utils.all_gather_v_bwd_wrapper(x, [4 - last] * size, 1), "4")
    refuse(lambda: autograd.gather_v(x, [3] * size, 0, size if last else 0), f"dst is {size}")
    refuse(lambda: autograd.scatter_v(x, [3] + [0] * (size - 1), 0, -1 if last else 0), "src is -1")
    table = [[1] * size] * size
    refuse(lambda: autograd.indexed_all_to_all_v(x, [torch.tensor([3 if last else 0])] * size, table), "3")
    refuse(lambda: autograd.indexed_all_to_all_v(x, [torch.tensor([0])] * size, table[int(last):]))
    refuse(lambda: utils.distributed_transpose(x, 0, 0 if last else 1), "dim0 and dim1 are both 0")
    refuse(lambda: utils.distributed_transpose(x, 0, 5 if last else 1), "dim1 is 5")
    refuse(lambda: ops.distributed_transpose_adjoint(x, 0, 1, [4] * size, 3), "dim1_sizes") if size > 1 else None
    spectrum = x.to(torch.complex64)
    transform = lambda x, *given: fft.DistributedRFFT2.apply(x, None, (0, 1), *given, group=None)
    refuse(lambda: transform(x, "none" if last else "ortho"), 'norm is "none"')
    refuse(lambda: transform(spectrum if last else x), "ComplexFloat")
    refuse(lambda: fft.DistributedIRFFT2.apply(spectrum, (3, 0 if last else 6), (0, 1), group=None), "s holds 0")
    refuse(lambda: ops.rfft2_adjoint(x if last else spectrum, [3, 4], [3, 4 * size], [0, 1]))
    square = torch.ones(4, 4)
    if size > 1:
        refuse(lambda: fft.DistributedRFFT2.apply(square, None, (1, 0) if last else (0, 1), group=None), "[-2, -1]", "[-1, -2]")
        refuse(lambda: transform(x, "forward" if last else "ortho"), '"forward"', '"ortho"')
        refuse(lambda: autograd.all_gather_v(x.double() if last else x, [3] * size), "float32", "float64")
        refuse(lambda: autograd.all_gather_v(x.clone().requires_grad_(last), [3] * size), "gradient")
        refuse(lambda: mappings.reduce_from_parallel_region(torch.ones(3 + last)))
        refuse(lambda: fused_all_reduce([torch.ones(2 + last)]))
    y = torch.ones(3, requires_grad=True)
    if size > 1:  # in a backward pass
        z = autograd.all_gather_v(y, [3] * size)
        refuse(lambda: (z * 1).sum().backward() if not last else utils.all_gather_v_wrapper(torch.ones(2)))
    with raises(IndexError):
        mappings.scatter_to_parallel_region(x, 2)
    with raises(ValueError, "no group"):
        autograd.all_gather_v(x, None, group="nowhere")
    with raises(TypeError):
        autograd.all_gather_v(x, None, group=3)
    with raises(RuntimeError):
        utils.reduce_loss(1.0)


def nodes(rank, size):
    """Backward calls of different nodes never pair up, whatever ranks' losses reach and whoever wants a gradient."""
    rows = 2 * size
    index = [torch.arange(2)] * size
    calls = [lambda x: autograd.all_gather_v(x, [rows] * size), lambda x: autograd.gather_v(x, [rows] * size),
             lambda x: autograd.scatter_v(x, [2] * size),
             lambda x: autograd.indexed_all_to_all_v(x, index, [[2] * size] * size),
             lambda x: torch.cat(utils.distributed_transpose(x, 0, 1)[0]),
             lambda x: fft.DistributedRFFT2.apply(x, None, (0, 1), group=None).abs(),
             mappings.copy_to_parallel_region, lambda x: mappings.scatter_to_parallel_region(x, 0)]
    leaf = lambda needs=True: torch.ones(rows, 2, requires_grad=needs)
    for call in calls if size > 1 else ():
        first, second = call(leaf()), call(leaf())
        loss = first.sum() + (0 if rank == 1 else second.sum())
        refused(rank, size, loss.backward, NOT_OF_ONE)
    for call in calls[-2:] if size > 1 else ():
        for wants in ((rank == 1, True), (True, rank == 1), (rank == 0, rank != 0)):
            loss = sum(call(leaf(each)).sum() for each in wants)
            # A call that only one rank makes meets the others' next one.
            refused(rank, size, lambda: (loss.backward(), utils.all_gather_v_wrapper(torch.ones(2, 2))))
    # A backward pass beside a call that is in none.
    for backward, forward in ((calls[-2], lambda: mappings.reduce_from_parallel_region(torch.ones(rows, 2))),
                              (calls[-2], lambda: dist.all_reduce(torch.ones(rows, 2))),
                              (calls[-1], lambda: mappings.gather_from_parallel_region(torch.ones(2, 2), 0))):
        if size > 1:
            loss = (backward(leaf(rank == 0)) * torch.ones((), requires_grad=True)).sum()
            refused(rank, size, lambda: loss.backward() if rank == 0 else forward(), NOT_OF_ONE)
    # Right programs: rank 0 looks at its model first, alone, without and with gradients.
    w = leaf()
    if rank == 0:
        with torch.no_grad():
            calls[-1](w), calls[-2](w)
    calls[-2](w).sum().backward()
    if rank == 0:
        calls[-1](w), calls[-2](w)
    dist.barrier()
    kept = calls[-1](w).sum()
    utils.all_gather_v_wrapper(torch.ones(1))
    calls[-2](w).sum().backward()
    kept.backward(retain_graph=True)
    kept.backward()
    assert torch.equal(w.grad, torch.full((rows, 2), 2.0 * size + 2)), w.grad


@contextlib.contextmanager
def raises(kind, word=""):
    try:
        yield
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def groups(rank, size):
    halves = [dist.new_group(range(0, size, 2)), dist.new_group(range(1, size, 2)) if size > 1 else None]
    mine = halves[rank % 2]
    members = list(range(rank % 2, size, 2))
    for named in (mine, mine.group_name):
        got = autograd.all_gather_v(torch.full((rank + 1,), float(rank)), [r + 1 for r in members], group=named)
        assert got.tolist() == [float(r) for r in members for _ in range(r + 1)]
    # With Gloo beside: its groups carry the operators too.
    gloo = dist.new_group(backend="gloo")
    x = torch.full((rank + 1,), float(rank), requires_grad=True)
    got = autograd.all_gather_v(x, [r + 1 for r in range(size)], group=gloo)
    (got * torch.arange(len(got))).sum().backward()
    start = rank * (rank + 1) // 2
    assert x.grad.tolist() == [float(size * i) for i in range(start, start + rank + 1)]


def small_functions(rank, size):
    assert utils.compute_split_shapes(9, 4) == [2, 2, 2, 3] and utils.compute_split_shapes(3, 4) == [0, 0, 0, 3]
    assert utils.compute_split_shapes(10, 4) == [3, 3, 3, 1] and utils.compute_split_shapes(5, 1) == [5]
    x = torch.tensor([[1 + 1j, 2 + 2j, 3 - 1j]])
    assert utils.pad_helper(x, 1, 5, "conj").tolist() == [[1 + 1j, 2 + 2j, 3 - 1j, 3 + 1j, 2 - 2j]]
    assert utils.pad_helper(x, 0, 2).tolist() == [x[0].tolist(), [0, 0, 0]]
    pieces = utils.split_tensor_along_dim(torch.arange(18).reshape(2, 9), -1, 4)
    assert [piece.tolist() for piece in pieces] == [[[0, 1], [9, 10]], [[2, 3], [11, 12]], [[4, 5], [13, 14]], [[6, 7, 8], [15, 16, 17]]]
    with raises(IndexError, "dim is 1"):
        utils.split_tensor_along_dim(torch.ones(2), 1, 2)
    image = torch.ones(2, 3, 4, 5)
    assert utils.get_memory_format(image) == utils.get_memory_format(image[0]) == torch.contiguous_format
    assert utils.get_memory_format(image.to(memory_format=torch.channels_last)) == torch.channels_last
    assert utils.truncate_helper(x, -1, 2).tolist() == [[1 + 1j, 2 + 2j]]
    for wrong in (lambda: utils.pad_helper(x, 1, 6, "conj"), lambda: utils.pad_helper(x, 1, 2),
                  lambda: utils.truncate_helper(x, 1, 4), lambda: utils.pad_helper(x, 1, 5, "other")):
        with raises(ValueError):
            wrong()
    own = {"b": torch.full((2, 3), float(rank)), "a": [torch.tensor(rank, dtype=torch.float64), (torch.ones(1),)]}
    total = fused_all_reduce(own)
    assert list(total) == ["b", "a"] and total["a"][1] == [size]
    assert total["b"].dtype == torch.float32 and torch.equal(total["b"], torch.full((2, 3), size * (size - 1) / 2))
    assert total["a"][0].dtype == torch.float64 and total["a"][1][0] == size
    assert fused_all_reduce([torch.tensor(rank)], op=dist.ReduceOp.MAX)[0] == size - 1
    mean = fused_all_reduce(torch.tensor(float(rank)), op=dist.ReduceOp.AVG, weight=float(rank + 1))
    assert abs(mean.item() - sum(r * (r + 1) for r in range(size)) / (size * (size + 1) / 2)) < 1e-6
    total = fused_all_reduce({1: torch.tensor(2.0), "1": torch.tensor(rank + 1.0)})
    assert total == {1: 2 * size, "1": size * (size + 1) / 2}, total
    names = ["p", "q"] if rank % 2 else ["q", "p"]
    total = fused_all_reduce({name: torch.tensor(float("pq".index(name) + rank)) for name in names})
    assert list(total) == names and total["q"] - total["p"] == size, total
    held = TensorDict({"y": torch.tensor(float(rank)), "x": TensorDict({"z": torch.ones(2)})})
    total = fused_all_reduce(held)
    assert type(total) is TensorDict and type(total["x"]) is TensorDict and list(total) == ["y", "x"]
    assert total["y"] == size * (size - 1) // 2 and total["x"]["z"].tolist() == [size, size] and held["y"] == rank
    assert fused_all_reduce({}) == {} and fused_all_reduce([]) == []
    later, work = fused_all_reduce({"x": torch.tensor(rank + 1)}, async_op=True)
    assert work.wait() and work.is_completed() and later["x"] == size * (size + 1) // 2
    later, work = fused_all_reduce({"x": torch.tensor(rank + 1)}, async_op=True)
    with unittest.mock.patch.object(sys.modules["meshrun.distributed.fused"], "_ops", InterruptedOnce()):
        with raises(KeyboardInterrupt):
            work.wait()
        assert work.wait() and later["x"] == size * (size + 1) // 2
    with raises(ValueError):
        fused_all_reduce([torch.ones(1), torch.ones(1, dtype=torch.int64)])
    with raises(TypeError):
        fused_all_reduce({"x": 3})


class InterruptedOnce:
    """The operators, of which the first wait_fused() is interrupted."""

    def __init__(self):
        self.calls = 0

    def wait_fused(self, handle):
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        return ops.wait_fused(handle)


class TensorDict(dict):
    """What fused_all_reduce asks of a tensordict.TensorDict."""

    batch_size = torch.Size()

    def empty(self):
        return TensorDict()


def shared_modules(rank, size):
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False)))
    assert utils.mark_module_as_shared(module, None) is module
    plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.Linear(4, 2, bias=False)))
    plain.load_state_dict(module.state_dict())
    inputs = [seeded((5, 3), 50 + r, torch.float32) for r in range(size)]
    for _ in range(2):  # the second pass adds to the first one's sums
        module(inputs[rank]).sin().sum().backward()
        sum(plain(x).sin().sum() for x in inputs).backward()
    for mine, other in zip(module.parameters(), plain.parameters()):
        assert torch.allclose(mine.grad, other.grad, rtol=1e-5, atol=1e-6)
    with raises(RuntimeError, 'parameter "0.weight" is marked as shared already'):
        utils.mark_module_as_shared(module, None)
    with raises(RuntimeError, "would take the mark's place"):
        module[0].weight.register_post_accumulate_grad_hook(print)
    utils.unmark_module_as_shared(module)
    module[0].weight.register_post_accumulate_grad_hook(lambda parameter: None).remove()
    module.zero_grad()
    module(inputs[rank]).sum().backward()
    with raises(RuntimeError, "not marked"):
        utils.unmark_module_as_shared(module)
    if size == 3:  # 256 + 1 is 256 in bfloat16, where each sum is rounded
        half = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
        torch.nn.init.ones_(half.weight)
        utils.mark_module_as_shared(half, None)
        half(torch.full((1, 1), 256.0 if rank == 1 else 1.0, dtype=torch.bfloat16)).sum().backward()
        assert half.weight.grad.item() == 258, half.weight.grad
    if size > 1:  # two that are alike, of which ranks reach different ones
        first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        for one in (first, second):
            torch.nn.init.ones_(one.weight), torch.nn.init.ones_(one.bias)
            utils.mark_module_as_shared(one, None)
        own = second if rank == size - 1 else first
        refused(rank, size, lambda: own(torch.ones(1, 2)).sum().backward(), "this group's shared module number")


def hooked_parameters(rank, size):
    """Hooks of marked parameters run, whenever they were registered, and what they make of the gradients is summed."""
    def times_ten(gradient):
        return 10 * gradient

    def look(gradient):
        return None

    def watch(parameter):
        return torch.autograd.graph.register_multi_grad_hook([parameter], lambda gradients: None)

    register = [(lambda p: p.register_hook(times_ten), 10), (lambda p: p.register_hook(look), 1),
                (lambda p: p.register_hook(times_ten).remove(), 1), (watch, 1)]
    for add, factor in register:
        for when in ("before", "after", "between passes", "marked again"):
            layer = torch.nn.Linear(1, 1, bias=False)
            torch.nn.init.ones_(layer.weight)
            handles = [add(layer.weight)] if when == "before" else []
            utils.mark_module_as_shared(layer, None)
            expected = 0
            for step in range(2):
                if step == (0 if when == "after" else 1) and when != "before":
                    if when == "marked again":
                        utils.unmark_module_as_shared(layer)
                    handles.append(add(layer.weight))
                    if when == "marked again":
                        utils.mark_module_as_shared(layer, None)
                layer(torch.full((1, 1), rank + 1.0)).sum().backward()
                expected += (factor if handles else 1) * size * (size + 1) // 2
                assert layer.weight.grad.item() == expected, (when, step, layer.weight.grad, expected)
            utils.unmark_module_as_shared(layer)
            layer.weight.grad = None
            layer(torch.full((1, 1), rank + 1.0)).sum().backward()
            assert layer.weight.grad.item() == factor * (rank + 1), (when, layer.weight.grad)
    # A list of hooks in place of the one that the mark has seen.
    layer = utils.mark_module_as_shared(torch.nn.Linear(1, 1, bias=False), None)
    layer.weight._backward_hooks = {}
    with raises(RuntimeError, "has lost the mark's hook"):
        layer(torch.ones(1, 1)).sum().backward()


def forward_mode(rank, size):
    """A tangent is refused, never dropped."""
    x = torch.ones(3, 2)
    calls = [lambda x: autograd.all_gather_v(x, [3] * size), lambda x: mappings.reduce_from_parallel_region(x),
             lambda x: mappings.scatter_to_parallel_region(x, 0),
             lambda x: utils.distributed_transpose(x, 0, 1, dim1_sizes=[2] * size)[0][0],
             lambda x: fft.DistributedRFFT2.apply(x, (3, 2 * size), (0, 1), group=None)]
    for call in calls:
        with raises(NotImplementedError, "forward-mode"):
            torch.func.jvp(call, (x,), (torch.ones_like(x),))
    copied, tangent = torch.func.jvp(lambda x: mappings.copy_to_parallel_region(x) * 2, (x,), (x,))
    assert torch.equal(copied, 2 * x) and torch.equal(tangent, 2 * x)


def coalesced(rank, size):
    """Tensors that are one memory would be summed in an order that nobody chose."""
    x = torch.full((6,), rank + 1.0)
    square = torch.full((4, 4), rank + 1.0)
    for tensors in ([x, x], [x[:4], x[3:]], [torch.ones(1), square[:, :2], square[:, 1:3]], [square.t(), square[3]]):
        refused(rank, size, lambda: dist.all_reduce_coalesced(tensors), "are the same memory")
    total = size * (size + 1) / 2
    dist.all_reduce_coalesced([x[:3], x[3:], square[:, ::2], square[:, 1::2]])
    assert torch.equal(x, torch.full((6,), total)) and torch.equal(square, torch.full((4, 4), total))


def others_count(rank, size):
    """Threads of Python that run while this rank waits inside an operator for the last one, forward and backward."""
    def waits(call):
        counted, over = 0, threading.Event()

        def count():
            nonlocal counted
            while not over.wait(0.001):
                counted += 1

        thread = threading.Thread(target=count)
        thread.start()
        if rank == size - 1:
            deadline = time.monotonic() + 20
            while counted < 100 and time.monotonic() < deadline:
                pass
        call()
        over.set()
        thread.join()
        seen = [None] * size
        dist.all_gather_object(seen, counted)
        assert all(n > 20 for n in seen), seen

    x = torch.ones(2, requires_grad=True)
    waits(lambda: autograd.all_gather_v(x, None))
    y = autograd.all_gather_v(x, None).sum()
    waits(lambda: y.backward())
    waits(lambda: fused_all_reduce(torch.ones(2)))
    waits(lambda: fft.DistributedRFFT2.apply(torch.ones(4, 2), None, (0, 1), group=None))


def wrapped_shared_modules(rank, size):
    """A marked module inside DistributedDataParallel, or whose parameters are replaced, is right or an error."""
    from torch.distributed.fsdp import fully_shard

    own = [dist.new_group([r]) for r in range(size)][rank]

    def marked():
        layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(layer.weight)
        return utils.mark_module_as_shared(layer, own)

    def no_sync_is_refused():
        # One rank has nothing to average.
        return raises(RuntimeError, "no_sync()") if size > 1 else contextlib.nullcontext()

    x = torch.full((1, 1), rank + 1.0)
    layer = marked()
    ddp = torch.nn.parallel.DistributedDataParallel(layer)
    for _ in range(2):
        ddp(x).sum().backward()
    assert layer.weight.grad.item() == size + 1, layer.weight.grad  # twice the mean of 1 to size
    with ddp.no_sync(), no_sync_is_refused():
        ddp(x)
    with torch.no_grad(), ddp.no_sync():
        ddp(x)
    ddp(x).sum().backward()
    with raises(RuntimeError, "gradient_as_bucket_view"):
        torch.nn.parallel.DistributedDataParallel(marked(), gradient_as_bucket_view=True)(x)
    layer = marked()
    layer.load_state_dict({"weight": torch.zeros(1, 1)}, assign=True)
    with raises(RuntimeError, "'weight' is not the one that was marked"):
        layer(x)
    layer = marked()
    layer.weight = None
    with raises(RuntimeError, "mark the module again"):
        layer(x)
    # Other names for the marked parameters.
    for wrap in (torch.nn.DataParallel, lambda inner: torch.compile(inner, backend="aot_eager")):
        outer = utils.mark_module_as_shared(torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False)), own)
        outer[0] = wrap(outer[0])
        outer(x).sum().backward()
        assert next(outer.parameters()).grad.item() == rank + 1
    # A module that nobody calls.
    blocks = torch.nn.ModuleList([torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
    for block in blocks:
        torch.nn.init.ones_(block.weight)
    utils.mark_module_as_shared(blocks, own)
    chain = torch.nn.Sequential(*blocks)
    ddp = torch.nn.parallel.DistributedDataParallel(chain)
    with ddp.no_sync(), no_sync_is_refused():
        ddp(x)
    ddp(x).sum().backward()
    assert blocks[1].weight.grad.item() == (size + 1) / 2, blocks[1].weight.grad
    with raises(RuntimeError, "gradient_as_bucket_view"):
        torch.nn.parallel.DistributedDataParallel(chain, gradient_as_bucket_view=True)(x)
    blocks.load_state_dict({"0.weight": torch.zeros(1, 1), "1.weight": torch.zeros(1, 1)}, assign=True)
    with raises(RuntimeError, "'0.weight' is not the one that was marked"):
        chain(x)
    # Marked after it was wrapped, and with a scripted module in it.
    table = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1, 1))])
    chain = torch.nn.Sequential(torch.jit.script(torch.nn.Linear(1, 1, bias=False)))
    chain.table, chain.forward = table, lambda x: torch.nn.functional.linear(x, table[0])
    ddp = torch.nn.parallel.DistributedDataParallel(chain, find_unused_parameters=True)
    utils.mark_module_as_shared(chain, own)
    with ddp.no_sync(), no_sync_is_refused():
        ddp(x)
    # Compiled before there is a wrapper around it.
    torch._dynamo.reset()
    layer = marked()
    compiled = torch.compile(torch.nn.Sequential(layer), backend="aot_eager")
    compiled(x).sum().backward()
    ddp = torch.nn.parallel.DistributedDataParallel(compiled)
    with ddp.no_sync(), no_sync_is_refused():
        ddp(x)
    # Compiled around the wrapper.
    layer = marked()
    ddp = torch.nn.parallel.DistributedDataParallel(layer)
    outer = torch.compile(ddp, backend="aot_eager")
    for _ in range(2):
        outer(x).sum().backward()
    assert layer.weight.grad.item() == size + 1, layer.weight.grad
    with ddp.no_sync(), no_sync_is_refused():
        outer(x)
    # Compiled within the wrapper, and not by the program of the unmarked layer: torch.compile does not look at hooks again.
    torch._dynamo.reset()
    layer = marked()
    ddp = torch.nn.parallel.DistributedDataParallel(torch.compile(layer, backend="aot_eager"))
    ddp(x).sum().backward()
    with ddp.no_sync(), no_sync_is_refused():
        ddp(x)
    ddp(x).sum().backward()
    assert layer.weight.grad.item() == size + 1, layer.weight.grad
    # Over a group where there is nothing to average.
    layer = marked()
    ddp = torch.nn.parallel.DistributedDataParallel(layer, process_group=own)
    with ddp.no_sync():
        ddp(x).sum().backward()
    assert layer.weight.grad.item() == rank + 1, layer.weight.grad
    with raises(RuntimeError, "FSDP2"):
        fully_shard(marked())(x)
    layer = fully_shard(torch.nn.Linear(1, 1, bias=False))
    with raises(RuntimeError, "is a DTensor"):
        utils.mark_module_as_shared(layer, own)
    layer = utils.unmark_module_as_shared(marked())
    layer.load_state_dict({"weight": torch.zeros(1, 1)}, assign=True)
    assert layer(x) == 0
    torch.compile(marked(), fullgraph=True, backend="aot_eager")(x).sum().backward()


def opchecks(rank, size):
    from torch.library import opcheck
    from torch.utils._pytree import tree_map

    sizes = [r + 1 for r in range(size)]
    full, slices, indices, table = graph(size, 0, torch.float32)
    flat = utils._flat(table)
    rows = utils.compute_split_shapes(5, size)
    received = sum(row[rank] for row in table)
    f32 = lambda *shape: torch.randn(*shape)
    c64 = lambda *shape: torch.randn(*shape, dtype=torch.complex64)
    width = sum(sizes)
    group = dist.group.WORLD.group_name
    cases = [
        ("all_gather_v", (f32(sizes[rank], 4), sizes)),
        ("all_gather_v", (f32(4, sizes[rank]), [e for n in sizes for e in (4, n)], -1, False, group)),
        ("all_gather_v", (f32(2, 4),)),
        ("reduce_scatter_v", (f32(width, 4), sizes)),
        ("reduce_scatter_v", (f32(2, 3 * size), None, 1)),
        ("gather_v", (f32(sizes[rank]), sizes, 0, size - 1)),
        ("scatter_v", (f32(width if rank == 0 else 0), sizes)),
        ("scatter_v", (f32(3, width if rank == 0 else 1), sizes, 1)),
        ("fused_all_reduce", ([f32(2, 3), f32(1)], ["loss", "rate"], "AVG", 2.0, None, group)),
        ("indexed_all_to_all_v", (f32(slices[rank], 3), indices[rank], flat)),
        ("indexed_all_to_all_v_reverse", (f32(received, 3), indices[rank], flat, slices[rank])),
        ("distributed_transpose", (f32(5, sizes[rank], 2), 0, 1, sizes)),
        ("distributed_transpose_adjoint", (f32(rows[rank], width, 2), 0, 1, sizes, 5)),
        ("reduce_from_parallel_region", (f32(3),)),
        ("copy_to_parallel_region", (f32(3),)),
        ("scatter_to_parallel_region", (f32(2, 5), 1)),
        ("gather_from_parallel_region", (f32(sizes[rank], 2), 0, sizes)),
        ("rfft2", (f32(2, 5, sizes[rank]), [-1, width])),
        ("rfft2", (f32(sizes[rank], 5, 2), None, [1, 0], "backward", sizes, rows)),
        ("irfft2", (c64(2, rows[rank], width // 2 + 1), [5, width])),
        ("rfft2_adjoint", (c64(2, rows[rank], width // 2 + 1), [5, sizes[rank]], [5, width], [1, 2], "ortho", sizes)),
        ("irfft2_adjoint", (f32(2, 5, sizes[rank]), [rows[rank], width // 2 + 1], [5, width], [1, 2], "ortho", rows,
                            sizes)),
    ]
    for name, (tensor, *rest) in cases:
        # Without a gradient the checks are a part of the same.
        for needs_gradient in (True, False) if name == "all_gather_v" else (True,):
            given = (tree_map(lambda one: one.clone().requires_grad_(needs_gradient), tensor), *rest)
            try:
                opcheck(getattr(ops, name).default, given)
            except Exception as error:
                error.add_note(f"opcheck of {name}{tuple(rest)}")
                raise
    assert set(COMMUNICATING) <= {name for name, _ in cases}, cases
    for name in COMMUNICATING:
        for key in ("CPU", "CUDA", "Meta", "Autograd"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"meshrun::{name}", key), (name, key)


def step(x, weight, sizes, rank):
    """A step that uses one of each."""
    group = dist.group.WORLD
    y = autograd.all_gather_v(x * weight, sizes, 1)                              # [6, W]
    own = mappings.scatter_to_parallel_region(y, 1)
    shared = mappings.copy_to_parallel_region(weight, group)
    own = own * shared
    held = utils.compute_split_shapes(y.shape[1], dist.get_world_size())
    turned = torch.cat(utils.distributed_transpose(own, 0, 1, dim1_sizes=held)[0], 1)
    spectrum = fft.DistributedRFFT2.apply(x, (6, sum(sizes)), (0, 1), "ortho", group=group)
    back = fft.DistributedIRFFT2.apply(spectrum * 2, (6, sum(sizes)), (0, 1), "ortho", group=group)
    gathered = mappings.gather_from_parallel_region(back, 1, held)
    dst = autograd.gather_v(x.mean(0), sizes, 0, 0)
    loss = turned.sin().sum() + gathered.square().sum() + mappings.reduce_from_parallel_region(x.sum().cos())
    return autograd.tie(loss, dst) if rank else loss + dst.sum()


def compiled(rank, size):
    sizes = [r + 1 for r in range(size)]
    x = seeded((6, sizes[rank]), 60 + rank).requires_grad_()
    weight = seeded((), 3).requires_grad_()
    eager = step(x, weight, sizes, rank)
    expected = torch.autograd.grad(eager, (x, weight))
    traced = torch.compile(step, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        loss = traced(x, weight, sizes, rank)
        got = torch.autograd.grad(loss, (x, weight))
        assert torch.equal(loss, eager), (loss, eager)
        for a, b in zip(got, expected):
            same(a, b)
    with torch.no_grad():
        assert torch.equal(traced(x, weight, sizes, rank), eager)
    # By the name of a group, with a result that only one rank uses.
    name = dist.group.WORLD.group_name

    def named(x):
        gathered = utils.gather_v_wrapper(x, sizes, 1, 0, name)
        return gathered if rank == 0 else x * 2

    got = torch.compile(named, fullgraph=True, backend="aot_eager")(x.detach())
    if rank == 0:
        assert got.shape == (6, sum(sizes))
    metrics = lambda loss, rows: fused_all_reduce({"rows": rows, "loss": loss}, op=dist.ReduceOp.AVG)["loss"] * 2
    got = torch.compile(metrics, fullgraph=True, backend="aot_eager")(x.sum(), torch.ones(3))
    assert not got.requires_grad
    same(got, metrics(x.sum(), torch.ones(3)))
    # What a rank holds may change from call to call.
    dynamic = torch.compile(lambda x, sizes: autograd.all_gather_v(x, sizes).sin(), fullgraph=True, backend="aot_eager",
                            dynamic=True)
    for extra in range(3):
        lengths = [r + 2 + extra for r in range(size)]
        x = seeded((lengths[rank], 3), extra).requires_grad_()
        got, = torch.autograd.grad(dynamic(x, lengths).sum(), x)
        same(got, size * x.detach().cos())
    # A result leaves the program as a view, or beside its input.
    copy_to = mappings.copy_to_parallel_region
    for function in (lambda x: [copy_to(x).view(2, 2)], lambda x: [copy_to(x)[:2]], lambda x: [x * 1, copy_to(x * 1)],
                     lambda x: [x, copy_to(x)], lambda x: list(copy_to(x).split(2)), lambda x: [copy_to(x)]):
        got, expected = [], []
        for call, to in ((torch.compile(function, fullgraph=True, backend="aot_eager"), got), (function, expected)):
            x = torch.ones(4, requires_grad=True)
            sum((i + rank + 1) * part.sum() for i, part in enumerate(call(x))).backward()
            to.append(x.grad)
        assert torch.equal(got[0], expected[0]), (got, expected)
    # A rank that traces and ranks that do not agree.
    x = torch.ones(sizes[rank], requires_grad=True)
    function = lambda x: autograd.all_gather_v(x * 2, sizes).sum()
    (torch.compile(function, fullgraph=True, backend="aot_eager") if rank == 0 else function)(x).backward()
    assert torch.equal(x.grad, torch.full((sizes[rank],), 2.0 * size))
    x = torch.ones(4, requires_grad=True)
    function = lambda x: mappings.reduce_from_parallel_region(copy_to(x).sin()).sum()
    (torch.compile(function, fullgraph=True, backend="aot_eager") if rank == 0 else function)(x).backward()
    same(x.grad, size * x.detach().cos())
    # A shape that only other ranks know needs to be given.
    for call, word in ((lambda x: utils.distributed_transpose(x, 0, 1)[0][0], "dim1_sizes"),
                       (lambda x: fft.DistributedRFFT2.apply(x, None, (0, 1), group=name), "input_sizes")):
        try:
            torch.compile(call, fullgraph=True, backend="aot_eager")(torch.ones(4, 3))
        except Exception as error:
            assert word in str(error), error
        else:
            raise AssertionError("no error")


CASES = [values, exchanges, gradients, maps, transforms, nodes, graphs_end_alike, wrong_calls, groups, small_functions,
         shared_modules, hooked_parameters, wrapped_shared_modules, forward_mode, coalesced, others_count, opchecks, compiled]


def spawned(rank, size, port, names):
    """names: the cases to run, all by default; "-name" leaves one out."""
    ranks.join(rank, size, port)
    wanted = [name for name in names if not name.startswith("-")]
    for case in CASES:
        if wanted and case.__name__ not in wanted or f"-{case.__name__}" in names:
            continue
        noise = io.StringIO()
        began = time.monotonic()
        try:
            with contextlib.redirect_stderr(noise):
                case(rank, size)
        except BaseException as error:
            error.add_note(f"in the case {case.__name__} on rank {rank} of {size}; {noise.getvalue()[-2000:]}")
            raise
        if rank == 0:
            print(f"  {size} ranks: {case.__name__}, {time.monotonic() - began:.1f} s", flush=True)
    dist.destroy_process_group()
