"""What each rank of tests/python/shard does: one function a case, called with (rank, size, mesh), which asserts.

Every rank makes the whole tensors from the same seeds, so it knows what the sharded ones must be.
"""

import contextlib
import copy
import io
import os
import pickle
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import distribute_module as distribute_dtensors
from torch.nn import functional

from meshrun.distributed import DistributedManager
from meshrun.domain_parallel import (ShardTensor, ShardTensorError, ShardTensorSpec, TensorPromotionMode, scatter_tensor,
                                     sync_module_over_mesh)
from meshrun.domain_parallel.grad_ops import ContiguousGrad, GradReducer
from meshrun.domain_parallel.halo import HaloConfig, halo_padding, unhalo_padding
from meshrun.domain_parallel.ring import RingPassingConfig, perform_ring_iteration, perform_ring_iteration_async


def whole(*shape, seed=1, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def cuts(extent, size):
    """Uneven, with an empty piece where there is one to spare."""
    first = extent // 2 + 1
    return ([extent] if size == 1 else [first, extent - first] if size == 2
            else [first, 0, *[extent - first] + [0] * (size - 3)])


def part(tensor, dim, rank, size):
    return tensor.split(cuts(tensor.shape[dim], size), dim)[rank]


def sharded(tensor, dim, rank, size, mesh, requires_grad=False):
    x = ShardTensor.from_local(part(tensor, dim, rank, size).clone(), mesh, [Shard(dim)])
    return x.requires_grad_(requires_grad)


def raises(kinds, call, *words):
    try:
        call()
    except kinds as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("no error")


def close(a, b, most=1e-12):
    assert a.shape == b.shape, (a.shape, b.shape)
    assert (a - b).norm() <= most * max(b.norm().item(), 1e-300), (a - b).norm() / b.norm()


def tells_what_it_is(rank, size, mesh):
    x = whole(7, 6)
    s = sharded(x, 0, rank, size, mesh)
    assert isinstance(s, ShardTensor) and isinstance(s, torch.Tensor) and not isinstance(x, ShardTensor)
    assert not isinstance(3, ShardTensor) and isinstance(nn.Parameter(s), ShardTensor)
    assert s.shape == x.shape and s.placements == (Shard(0),) and tuple(s.device_mesh.shape) == (size,)
    assert torch.equal(s._local_tensor, part(x, 0, rank, size)) and torch.equal(s.to_local(), s._local_tensor)
    assert torch.equal(s.full_tensor(), x) and not isinstance(s.full_tensor(), ShardTensor)
    assert s.offsets() == [sum(cuts(7, size)[:rank])] and s.offsets(0) == s.offsets()[0] == s.spec.offsets(-1)
    assert s.spec == s._spec and hash(s.spec) == hash(s._spec) and s.spec.shape == x.shape
    assert s.spec.local_shape == part(x, 0, rank, size).shape
    assert s.spec.sharding_shapes() == {0: tuple(torch.Size([n, 6]) for n in cuts(7, size))}
    assert not any(hasattr(x, name) for name in ("to_local", "full_tensor", "redistribute", "placements", "_spec", "_local_tensor"))
    raises(AttributeError, lambda: x.to_local(), "'Tensor' object has no attribute 'to_local'")
    assert ShardTensor.patches_enabled()


def is_made_in_each_way(rank, size, mesh):
    x = whole(9, 4)
    s = sharded(x, 0, rank, size, mesh)
    again = ShardTensor(s.to_local(), s.spec, requires_grad=True)
    assert again.requires_grad and again.is_leaf and torch.equal(again.full_tensor(), x)
    given = ShardTensor.from_local(s.to_local(), mesh, [Shard(0)], {0: [(n, 4) for n in cuts(9, size)]})
    assert given.spec == s.spec
    assert ShardTensorSpec(mesh, [Shard(0)], shape=x.shape, sharding_shapes={0: [(n, 4) for n in cuts(9, size)]}) == s.spec
    pieces = [*x.chunk(size), *[x[:0]] * size]
    chunked = ShardTensor.from_local(pieces[rank], mesh, [Shard(0)], "chunk")
    assert chunked.spec == ShardTensorSpec(mesh, [Shard(0)], shape=x.shape) and torch.equal(chunked.full_tensor(), x)
    assert ShardTensor.from_local(pieces[rank], mesh, [Shard(-2)], "chunk", global_shape=x.shape).spec == chunked.spec
    same = ShardTensor.from_local(x, mesh)
    assert same.placements == (Replicate(),) and torch.equal(same.to_local(), x)
    summed = ShardTensor.from_local(x, mesh, [Partial()])
    close(summed.full_tensor(), size * x)
    close(ShardTensor.from_local(x, mesh, [Partial("avg")]).full_tensor(), x)
    scattered = scatter_tensor(x if rank == size - 1 else None, size - 1, mesh, (Shard(1),), requires_grad=True)
    assert scattered.requires_grad and torch.equal(scattered.full_tensor().detach(), x)
    if size > 1:
        raises(ShardTensorError, lambda: ShardTensor.from_local(x[:rank + 1], mesh, [Shard(0)], "chunk"), "torch.chunk")


def moves(rank, size, mesh):
    x = whole(8, 5)
    s = sharded(x, 0, rank, size, mesh, requires_grad=True)
    moved = s.redistribute(placements=[Shard(1)])
    assert moved.placements == (Shard(1),) and torch.equal(moved.full_tensor(), x)
    weights = whole(8, 5, seed=2)
    (moved * weights).sum().backward()
    assert isinstance(s.grad, ShardTensor) and s.grad.spec == s.spec and torch.equal(s.grad.full_tensor(), weights)
    later = s.detach().redistribute(mesh, [Replicate()], async_op=True)
    assert torch.equal(later.to_local(), x)
    s.grad = None
    (s.full_tensor() * weights).sum().backward()
    close(s.grad.full_tensor(), weights)  # Replicate: each rank's gradient is the whole one
    s.grad = None
    (s.to_local(grad_placements=[Shard(0)]) * part(weights, 0, rank, size)).sum().backward()
    assert torch.equal(s.grad.full_tensor(), weights)
    local = x.clone().requires_grad_()  # each rank's share of a sum gets the whole gradient, or its own rows of it
    summed = ShardTensor.from_local(local, mesh, [Partial()], grad_placements=[Replicate()])
    (summed * weights).sum().backward()
    close(local.grad, weights)
    raises((RuntimeError,), lambda: s.redistribute(mesh), "placements")
    raises((ValueError,), lambda: s.redistribute(mesh, [Partial()]), "Partial")
    raises((ValueError,), lambda: s.redistribute(mesh, [Shard(2)]), "2")
    local = whole(3, 2, seed=rank).requires_grad_()
    (ShardTensor.from_local(local, mesh, [Shard(0)]) * 2).sum().backward()
    assert torch.equal(local.grad, torch.full_like(local, 2))


def moves_to_other_meshes(rank, size, mesh):
    x, weights = whole(7, 6), whole(7, 6, seed=2)
    shapes = [(1, size), (size, 1), *([(2, 2)] if size == 4 else [])]
    others = [init_device_mesh("cpu", shape, mesh_dim_names=("other_rows", "other_columns")) for shape in shapes]
    backwards = torch.arange(size).flip(0)
    if DistributedManager.is_initialized():
        others.append(DeviceMesh("cpu", backwards.reshape(size, 1), mesh_dim_names=("backwards", "alone")))
        others += [DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]), mesh_dim_names=("columns", "rows"))] if size == 4 else []
    elif size > 1:
        # torch's groups ascend, and pieces are counted by coordinates.
        reverse = DeviceMesh("cpu", backwards, mesh_dim_names=("backwards",))
        raises(ShardTensorError, lambda: ShardTensor.from_local(x, reverse, [Shard(0)]), "order")
        raises(ShardTensorError, lambda: sharded(x, 0, rank, size, mesh).redistribute(reverse, [Shard(0)]), "order")
    for other in others:
        s = sharded(x, 0, rank, size, mesh, requires_grad=True)
        for placements in ([Shard(1), Shard(0)], [Replicate(), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Replicate()]):
            moved = s.redistribute(other, placements, async_op=placements[0] == Shard(1))
            assert moved.placements == tuple(placements) and torch.equal(moved.device_mesh.mesh, other.mesh)
            assert torch.equal(moved.full_tensor(), x)
            there = ShardTensor.from_local(weights, other).redistribute(placements=placements)
            s.grad = None
            (moved * moved * there).sum().backward()
            assert s.grad.spec == s.spec
            close(s.grad.full_tensor(), 2 * x * weights)
            back = moved.redistribute(mesh, [Shard(0)])
            assert torch.equal(back.device_mesh.mesh, mesh.mesh) and torch.equal(back.full_tensor(), x)
        summed = ShardTensor.from_local(x, mesh, [Partial()]).redistribute(other, [Shard(0), Shard(1)])
        close(summed.full_tensor(), size * x)
        raises(ShardTensorError, lambda: s.redistribute(other, [Shard(0), Partial()]), "Partial")
        raises(ShardTensorError, lambda: s.redistribute(other, [Shard(0)]), "2 axes")
        raises(ValueError, lambda: s + moved, "two meshes")
    if size == 4:
        pair = init_device_mesh("cpu", (2, 2), mesh_dim_names=("of_pairs", "pair"))["pair"]
        own = [rank // 2 * 2, rank // 2 * 2 + 1]
        raises(ShardTensorError, lambda: s.redistribute(pair, [Shard(0)]), "[0, 1, 2, 3]", f"ranks {own} of")
        one = ShardTensor.from_local(x, pair)
        raises(ShardTensorError, lambda: one.redistribute(mesh, [Shard(0)]), f"ranks {own} of", "[0, 1, 2, 3]")
    raises(TypeError, lambda: s.redistribute("cpu", [Shard(0)]), "DeviceMesh")


def prints(rank, size, mesh):
    x = torch.arange(6.0).reshape(3, 2)
    s = ShardTensor.from_local(x, mesh, [Shard(0)])
    text = repr(s)
    assert text.startswith("ShardTensor(tensor([[0., 1.],") and "Shard(0)" in text and f"[{3 * size}, 2]" in text, text
    assert str(s) == text == f"{s}" and "requires_grad=True" in repr(s.detach().requires_grad_())
    assert "Mul" in repr(s.detach().requires_grad_() * 2) and repr(nn.Parameter(s)).startswith("Parameter containing:\nShardTensor(")
    assert f"{(s * 0 + 1).mean():.2f}" == "1.00"
    assert repr(x) == "tensor([[0., 1.],\n        [2., 3.],\n        [4., 5.]])"
    assert "domain" in repr(s.spec) or "dim_0" in repr(s.spec), repr(s.spec)


def pickles_and_copies(rank, size, mesh):
    x = whole(7, 3)
    s = sharded(x, 0, rank, size, mesh, requires_grad=True)
    (s * s).sum().backward()

    def saved(value, **options):
        file = io.BytesIO()
        torch.save(value, file)
        file.seek(0)
        return torch.load(file, **options)

    model = nn.Linear(3, 2).double()
    model.scale = nn.Parameter(sharded(x, 0, rank, size, mesh))
    for again in (pickle.loads(pickle.dumps(s)), copy.copy(s), copy.deepcopy(s), saved(s, weights_only=True),
                  saved({"a": [s]}, weights_only=False)["a"][0]):
        assert isinstance(again, ShardTensor) and again.spec == s.spec and again.requires_grad and again.is_leaf
        assert torch.equal(again.to_local(), s.to_local())
    again = copy.deepcopy(s)
    assert torch.equal(again.grad.full_tensor(), s.grad.full_tensor())
    with torch.no_grad():
        again.add_(1)
    assert torch.equal(s.full_tensor().detach(), x), "the copy shares its memory"
    raises(RuntimeError, lambda: copy.deepcopy(s * 2), "detach()")
    clone = copy.deepcopy(model)
    assert isinstance(clone.scale, nn.Parameter) and clone.scale.spec == s.spec
    state = saved(model.state_dict(), weights_only=True)
    with torch.no_grad():
        model.scale.zero_()
    model.load_state_dict(state)
    assert torch.equal(model.scale.full_tensor().detach(), x)
    assert pickle.loads(pickle.dumps(s.spec)) == s.spec == copy.deepcopy(s.spec)
    twice = copy.deepcopy([s, s])
    assert twice[0] is twice[1]
    # A view takes its own rows along, not the memory that it is in.
    view = s.detach()[:, :1]
    assert len(pickle.dumps(view)) < 4096 and torch.equal(pickle.loads(pickle.dumps(view)).full_tensor(), x[:, :1])


def memory_of_the_whole_is_refused(rank, size, mesh):
    s = sharded(whole(4, 3), 0, rank, size, mesh)
    for name, call in (("numpy", s.numpy), ("tolist", s.tolist), ("__array__", s.__array__), ("__dlpack__", s.__dlpack__)):
        raises(ShardTensorError, call, f"{name}()", "full_tensor()", "to_local()")
    assert (s * 0 + 2).sum().item() == 24.0 and int((s * 0 + 2).sum()) == 24
    assert torch.ones(2).tolist() == [1, 1]


def plain_leaves_get_plain_gradients(rank, size, mesh):
    x, w0 = whole(6, 4), whole(4, seed=3)
    s = sharded(x, 0, rank, size, mesh)
    w, v = w0.clone().requires_grad_(), w0.clone().requires_grad_()
    for times in (1, 2):
        ((s * w).tanh().sum() + (w * w).sum()).backward()
        ((x * v).tanh().sum() + (v * v).sum()).backward()
        assert not isinstance(w.grad, ShardTensor)
        close(w.grad, v.grad)
    # Autograd asks in several ways.
    got, = torch.autograd.grad((s * w).sum(), w)
    close(got, x.sum(0))
    net = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 1)).double()
    own = copy.deepcopy(net)
    net(s).square().mean().backward()
    own(x).square().mean().backward()
    for (name, a), b in zip(net.named_parameters(), own.parameters()):
        close(a.grad, b.grad, 1e-11)


def promotes_as_told(rank, size, mesh):
    s = sharded(whole(4, 3), 0, rank, size, mesh)
    assert ShardTensor.get_promotion_mode() is TensorPromotionMode.SILENT
    with ShardTensor.promotion_mode("disabled"):
        raises(ValueError, lambda: s + torch.ones(3).double(), "PromotionMode")
        s + torch.tensor(1.0)  # without dimensions
    with ShardTensor.promotion_mode(TensorPromotionMode.WARN):
        assert ShardTensor.get_promotion_mode() is TensorPromotionMode.WARN
    ShardTensor.set_promotion_mode("silent")
    assert ShardTensor.get_promotion_mode() is TensorPromotionMode.SILENT
    raises(ValueError, lambda: ShardTensor.set_promotion_mode("loud"), "loud")


def modules_are_made_alike(rank, size, mesh):
    def made(by):
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False)).double()
        net.table = nn.Parameter(torch.full((2, 3), by + 0.5j, dtype=torch.complex64).t(), requires_grad=False)  # not contiguous
        net.register_buffer("flag", torch.tensor([by % 2 == 0]))
        with torch.no_grad():
            for tensor in (*net.parameters(), *net.buffers()):
                tensor.copy_(torch.full_like(tensor, by))
        return net

    for source in {0, size - 1}:
        net, there = made(rank), made(source)
        net.part = nn.Parameter(sharded(whole(4, 3), 0, rank, size, mesh))
        before = net.part.to_local().detach().clone()
        sync_module_over_mesh(net, mesh, source, verify=True)
        for name, tensor in (*there.named_parameters(), *there.named_buffers()):
            assert torch.equal({**dict(net.named_parameters()), **dict(net.named_buffers())}[name], tensor), name
        assert torch.equal(net.part.to_local(), before) and net[0].weight.requires_grad
    sync_module_over_mesh(nn.Identity(), mesh, verify=True)
    raises((ValueError,), lambda: sync_module_over_mesh(net, mesh, size), "src_mesh_rank", str(size))
    raises(TypeError, lambda: sync_module_over_mesh(net, "domain"), "DeviceMesh")
    only = nn.ParameterList([nn.Parameter(sharded(whole(4, 3), 0, rank, size, mesh))])
    raises(RuntimeError, lambda: sync_module_over_mesh(only, mesh), "none of it is plain")
    # One rank's mistake is told on all.
    meta = nn.Linear(2, 2, device="meta" if rank == size - 1 else "cpu")
    raises(ShardTensorError, lambda: sync_module_over_mesh(meta, mesh), f"rank {size - 1}", "'weight' is a meta tensor")
    if size > 1:
        raises(ShardTensorError, lambda: sync_module_over_mesh(nn.Linear(2, 2 + (rank == size - 1)), mesh), "metadata differs",
               f"ranks 0 and {size - 1}", "(2, 2)", "(3, 2)")
    if size == 4:
        two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "domain"))
        raises(ShardTensorError, lambda: sync_module_over_mesh(net, two), "1-D mesh")
        net = made(rank)
        sync_module_over_mesh(net, two["domain"], 1)
        assert (net[0].weight == rank // 2 * 2 + 1).all()


def inference_sees_tensors_made_outside(rank, size, mesh):
    x = sharded(whole(4, 9, 6), 1, rank, size, mesh)
    of_all = whole(4, 9, 6)
    torch.manual_seed(1)
    attend = torch.nn.MultiheadAttention(6, 2, batch_first=True).double().eval()
    views = [lambda a: a.transpose(0, 1), lambda a: a[:, 3], lambda a: a.unbind(0)[1], lambda a: a.chunk(2, 1)[0], lambda a: a.permute(2, 0, 1),
             lambda a: a[:, None], lambda a: a.view(4, 9, 2, 3), lambda a: a.detach(), lambda a: a[None].expand(2, -1, -1, -1),
             lambda a: attend(a, a, a)[0], lambda a: a.transpose(0, 1) * 2]
    for view in views:
        with torch.inference_mode():
            close(view(x).full_tensor(), view(of_all))
    with torch.inference_mode():
        seen, made = x[:, 3], x * 2
        assert made.is_inference() and not seen.is_inference()
        version = seen._version
        x.add_(1)
        assert seen._version > version
    weight = whole(4, 6, seed=2).requires_grad_()
    loss = (seen * weight).sum()
    x.mul_(2)
    raises(RuntimeError, loss.backward, "modified by an inplace operation")


def empty_parts_see_complex_numbers(rank, size, mesh):
    of_all = whole(3, 4, 5, dtype=torch.cfloat)
    pieces = [0] * (size - 1) + [4]
    x = ShardTensor.from_local(of_all.split(pieces, 1)[rank].clone(), mesh, [Shard(1)]).requires_grad_()
    for program in (lambda a: torch.view_as_real(a * 2).sum(), lambda a: torch.fft.fft(a, dim=1).real.sum(),
                    lambda a: torch.view_as_complex(torch.view_as_real(a) * 2).abs().sum()):
        y = of_all.clone().requires_grad_()
        wanted, = torch.autograd.grad(program(y), y)
        found, = torch.autograd.grad(program(x), x)
        close(found.full_tensor(), wanted, 1e-5)


def quantiles_equal_the_whole_ones(rank, size, mesh):
    of_all = whole(4, 9, 6)
    of_all[1, 2, 3] = torch.nan
    x, y = sharded(of_all, 1, rank, size, mesh, True), of_all.clone().requires_grad_()
    several = torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)
    for call in (torch.quantile, torch.nanquantile):
        for q in (0.3, several):
            for dim in (None, 0, 1, -1):
                for keepdim in (False, True):
                    wanted, found = call(y, q, dim, keepdim), call(x, q, dim, keepdim)
                    assert torch.allclose(found.full_tensor(), wanted, equal_nan=True), (call, q, dim)
                    gradients = [torch.autograd.grad(result.nan_to_num().square().sum(), a)[0] for result, a in ((wanted, y), (found, x))]
                    close(gradients[1].full_tensor(), gradients[0])
    raises(RuntimeError, lambda: torch.quantile(x, 1.5, 0), "0")


def products_take_plain_operands_of_several_shapes(rank, size, mesh):
    of_all = whole(4, 9, 6)
    x = sharded(of_all, 1, rank, size, mesh)
    for rows in (3, 5, 1, 3):
        weight = whole(rows, 6, seed=rows)
        products = [lambda a: torch.nn.functional.linear(a, weight), lambda a: torch.nn.functional.linear(a, weight, weight[:, 0]),
                    lambda a: a @ weight.T, lambda a: torch.einsum("bij,kj->bki", a, weight), lambda a: torch.tensordot(a, weight, ([2], [1]))]
        for product in products:
            for requires_grad in (False, True):
                weight.requires_grad_(requires_grad)
                close(product(x).full_tensor(), product(of_all))


def new_tensors_are_plain(rank, size, mesh):
    x = sharded(whole(4, 9), 0, rank, size, mesh)
    made = x.new_tensor([1, 2])
    assert torch.equal(made, torch.tensor([1.0, 2.0], dtype=torch.float64)) and not isinstance(made, ShardTensor)
    assert x.new_tensor(3, dtype=torch.int64).dtype == torch.int64 and x.new_tensor([1.0], requires_grad=True).requires_grad
    raises(ShardTensorError, lambda: x.new(3), "new_zeros")


def handlers_pass_parts_on(rank, size, mesh):
    x = torch.full((2 + rank, 3), float(rank))
    for direction, source in (("forward", (rank - 1) % size), ("backward", (rank + 1) % size)):
        for method in ("p2p", "a2a"):
            config = RingPassingConfig(0, size, direction, method)
            got = perform_ring_iteration(x, mesh, config, (2 + source, 3))
            assert torch.equal(got, torch.full((2 + source, 3), float(source)))
            assert (perform_ring_iteration(torch.full((3, 2), float(rank)).t(), mesh, config) == source).all()
        got, works = perform_ring_iteration_async(x, mesh, RingPassingConfig(0, size, direction, "p2p"), recv_shape=(2 + source, 3))
        for work in works:
            work.wait()
        assert torch.equal(got, torch.full((2 + source, 3), float(source)))
    raises(ValueError, lambda: RingPassingConfig(0, size, "up"), "up")
    raises(ValueError, lambda: perform_ring_iteration_async(x, mesh, RingPassingConfig(0, size)), "p2p")

    whole_x = whole(3 * size, 2, seed=4)
    own = whole_x[3 * rank:3 * rank + 3].clone().requires_grad_()
    config = HaloConfig(0, 0, 2, edge_padding_size=1)
    padded = halo_padding(own, mesh, config)
    zero = torch.zeros(1, 2, dtype=torch.float64)
    expected = torch.cat([whole_x[3 * rank - 2:3 * rank] if rank else zero, own.detach(),
                          whole_x[3 * rank + 3:3 * rank + 5] if rank + 1 < size else zero])
    assert torch.equal(padded, expected) and torch.equal(unhalo_padding(padded, mesh, config), own)
    # Each row of a pair of ranks' border is in two tensors.
    padded.sum().backward()
    copies = torch.tensor([[1.0 + (i < 2 and rank > 0) + (i > 0 and rank + 1 < size)] * 2 for i in range(3)])
    assert torch.equal(own.grad, copies.double())

    spec = sharded(whole(4, 3), 0, rank, size, mesh).spec
    weight = torch.ones(3, requires_grad=True)
    (GradReducer.apply(weight, spec) * (rank + 1)).sum().backward()
    assert (weight.grad == size * (size + 1) / 2).all() and type(weight.grad) is torch.Tensor
    y = whole(3, 2).requires_grad_()
    ContiguousGrad.apply(y).backward(whole(2, 3).t())
    assert y.grad.is_contiguous() and torch.equal(y.grad, whole(2, 3).t())


def wrong_calls_are_told(rank, size, mesh):
    x = whole(4, 3)
    s = sharded(x, 0, rank, size, mesh)
    raises(TypeError, lambda: ShardTensor.from_local(x, "cpu", [Shard(0)]), "DeviceMesh")
    raises(TypeError, lambda: ShardTensor(x, None), "ShardTensorSpec")
    raises(ShardTensorError, lambda: ShardTensor(whole(5, 5), s.spec), "[5, 5]")
    raises(ShardTensorError, lambda: ShardTensor.from_local(s, mesh, [Shard(0)]), "plain")
    raises(ShardTensorError, lambda: ShardTensor.from_local(x, mesh, Shard(0)), "sequence")
    raises(ShardTensorError, lambda: ShardTensor.from_local(x, mesh, ["S0"]), "S0")
    raises(ShardTensorError, lambda: ShardTensor.from_local(x, mesh, [Shard(0), Shard(1)]), "2")
    raises(ShardTensorError, lambda: ShardTensor.from_local(x, mesh, [Shard(5)]), "5")
    raises(ShardTensorError, lambda: ShardTensor.from_local(x, mesh, [Shard(0)], "guess"), "guess")
    raises(ShardTensorError, lambda: ShardTensor.from_local(x, mesh, [Shard(0)], {}), "mesh dimension 0")
    raises(ShardTensorError, lambda: scatter_tensor(x, "0", mesh, (Shard(0),)), "global_src")
    raises(ShardTensorError, lambda: scatter_tensor(x, size, mesh, (Shard(0),)), f"rank {size}")
    raises(ShardTensorError, lambda: scatter_tensor(x, 0, mesh, (Partial(),)), "Partial")
    raises(ShardTensorError, lambda: s.offsets(1), "mesh dimension 1")
    if size > 1:
        raises(ShardTensorError, lambda: ShardTensor.from_local(whole(4, 3 + rank), mesh, [Shard(0)]), "4")
        raises(ShardTensorError, lambda: ShardTensor.from_local(x, mesh, [Shard(rank % 2)]))


def meshes_are_found_again(rank, size, mesh):
    s = sharded(whole(4, 3), 0, rank, size, mesh)
    assert tuple(s.device_mesh.mesh.flatten().tolist()) == tuple(mesh.mesh.flatten().tolist())
    # Another DeviceMesh object with the same ranks and names is the same mesh.
    other = init_device_mesh("cpu", tuple(mesh.shape), mesh_dim_names=mesh.mesh_dim_names)
    assert sharded(whole(4, 3), 0, rank, size, other).spec == s.spec
    named = init_device_mesh("cpu", (size,), mesh_dim_names=("other",))
    o = sharded(whole(4, 3), 0, rank, size, named)
    assert o.spec != s.spec and o.device_mesh.mesh_dim_names == ("other",) and torch.equal(o.full_tensor(), whole(4, 3))
    with mesh:
        assert ShardTensor.from_local(whole(2, 2), placements=[Shard(0)]).spec.mesh == mesh
    if size == 4:
        two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "domain"))
        x = whole(5, 6)
        rows, columns = cuts(5, 2), cuts(6, 2)
        own = x.split(rows)[rank // 2].split(columns, 1)[rank % 2]
        t = ShardTensor.from_local(own, two, [Shard(0), Shard(1)])
        assert torch.equal(t.full_tensor(), x) and t.offsets() == [rows[0] * (rank // 2), columns[0] * (rank % 2)]
        assert t.spec.sharding_shapes()[1] == tuple(torch.Size([own.shape[0], n]) for n in columns)
        one = ShardTensor.from_local(x.split(columns, 1)[rank % 2], two["domain"], [Shard(1)])
        assert torch.equal(one.full_tensor(), x) and torch.equal(pickle.loads(pickle.dumps(t)).full_tensor(), x)
        assert torch.equal(scatter_tensor(x if rank == 3 else None, 3, two, (Replicate(), Shard(0))).full_tensor(), x)


def neighbors_attend(rank, size, mesh):
    from meshrun.domain_parallel.neighborhood import na1d, na2d

    for attend, shape, dim, more in ((na1d, (2, 9, 2, 3), 1, {"dilation": 2}), (na2d, (1, 7, 5, 2, 3), 1, {"is_causal": (True, False)})):
        q = whole(*shape).requires_grad_()
        expected = attend(q, q * 2, q + 1, 3, **more)
        expected.square().sum().backward()
        own = sharded(whole(*shape), dim, rank, size, mesh, requires_grad=True)
        got = attend(own, own * 2, own + 1, 3, **more)
        got.square().sum().backward()
        close(got.full_tensor().detach(), expected.detach())
        close(own.grad.full_tensor(), q.grad)
    x = whole(1, 4, 1, 2)
    close(na1d(x, x, x, 4), functional.scaled_dot_product_attention(*[x.transpose(1, 2)] * 3).transpose(1, 2))
    raises(ValueError, lambda: na1d(x, x, x, 5), "kernel_size 5", "4 positions")
    raises(ValueError, lambda: na2d(x, x, x, (3, 3, 3)), "kernel_size has 3 elements")
    raises(NotImplementedError, lambda: na1d(x, x, x, 3, stride=2), "stride is 2")


def optimizers_train_sharded_parameters(rank, size, mesh):
    x0, target = whole(7, 3), whole(7, 3, seed=5)
    ways = [(torch.optim.AdamW, {}), (torch.optim.AdamW, {"foreach": True}), (torch.optim.AdamW, {"fused": True}),
            (torch.optim.SGD, {"momentum": 0.9, "foreach": True})]
    for make, options in ways:
        results = []
        for x, t in ((sharded(x0, 0, rank, size, mesh), sharded(target, 0, rank, size, mesh)), (x0.clone(), target)):
            p = nn.Parameter(x)
            optimizer = make([p], lr=0.05, **options)
            for _ in range(10):
                optimizer.zero_grad()
                (p - t).square().sum().backward()
                norm = nn.utils.clip_grad_norm_([p], 2.0)
                optimizer.step()
            results.append((p, norm))
        close(results[0][0].full_tensor().detach(), results[1][0].detach(), 1e-12)
        close(results[0][1].full_tensor() if isinstance(results[0][1], ShardTensor) else results[0][1], results[1][1])


def programs_without_sharded_tensors_compile_as_before(rank, size, mesh):
    """What torch.Tensor and DTensor got is not seen by torch.compile."""
    if size != 1:
        return
    d = distribute_tensor(whole(3, 4), mesh, [Shard(0)]).requires_grad_()
    torch.compile(lambda a: (a * 2).relu().sum(), backend="aot_eager", fullgraph=True)(d).full_tensor().backward()
    assert isinstance(d.grad, DTensor)
    x = whole(3, 4)
    for program in (lambda a: torch.tensor(a.tolist()).sum() + a.sum(), lambda a: copy.deepcopy(a) + 1, lambda a: len(f"{a.shape}") + a,
                    lambda a: [hasattr(a, "to_local"), hasattr(a, "offsets")] == [False, False] and a * 2, nn.Linear(4, 2).double()):
        expected = program(x)
        assert torch.equal(torch.compile(program, backend="eager")(x).double(), expected.double())
    try:
        import numpy  # noqa: F401
    except ImportError:
        return
    close(torch.as_tensor(torch.compile(lambda a: a.numpy().sum(), backend="eager")(x)), x.sum())


def seeded_anew(seed, x):
    """Sharded tensors begin again with their random numbers at another seed."""
    torch.manual_seed(seed + 1)
    functional.dropout(x, 0.5)
    torch.manual_seed(seed)


def compiled_alike(program, *inputs, backend="aot_eager", most=1e-12, times=2, fullgraph=True):
    """Runs the program as written and compiled, forward and backward, with the same random numbers; all must be equal."""
    results = []
    for run in (program, torch.compile(program, backend=backend, fullgraph=fullgraph)):
        seeded_anew(5, inputs[0])
        for _ in range(times):
            given = [x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x for x in inputs]
            value = run(*given)
            value.backward()
            results.append([x.full_tensor() if isinstance(x, ShardTensor) else x for x in
                            [value.detach(), *(x.grad for x in given if isinstance(x, torch.Tensor) and x.grad is not None)]])
    for expected, got in zip(results[:times], results[times:]):
        assert len(expected) == len(got)
        for a, b in zip(got, expected):
            close(a, b, most)


def programs_on_sharded_tensors_compile(rank, size, mesh):
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Dropout(0.3), nn.Linear(6, 4)).double()

    def program(x, y):
        z = (y * 2).sin().sum()
        return (net(x) + x).square().sum() + z + x.mean(0).softmax(-1).sum()

    counters["meshrun"].clear()
    x, y = sharded(whole(6, 4), 0, rank, size, mesh), whole(3)
    compiled_alike(program, x, y)
    assert counters["meshrun"] == {"compiled programs": 1}, counters["meshrun"]
    for parameter in net.parameters():
        assert not isinstance(parameter.grad, ShardTensor)
    # A pooled field, whose halos travel, and a product of two sharded operands.
    field = sharded(whole(1, 2, 9, 5), 2, rank, size, mesh)
    conv = nn.Conv2d(2, 3, 3, padding=1).double()
    compiled_alike(lambda f: functional.max_pool2d(conv(f), 3, 2, 1).pow(2).sum(), field)
    compiled_alike(lambda a, b: (a @ b.transpose(0, 1)).tanh().sum(), x, sharded(whole(6, 4, seed=2), 0, rank, size, mesh))
    q = sharded(whole(1, 2, 7, 4), 2, rank, size, mesh)
    compiled_alike(lambda q: functional.scaled_dot_product_attention(q, q * 2, q + 1).square().sum(), q)
    # Parameters get whole gradients, as written and compiled.
    gradients = []
    for run in (program, torch.compile(program, backend="aot_eager")):
        seeded_anew(6, x)
        net.zero_grad()
        run(x, y).backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
    for a, b in zip(*gradients):
        close(a, b)


def compiled_programs_are_for_one_layout(rank, size, mesh):
    counters["meshrun"].clear()
    program = torch.compile(lambda x: (x * 2).sum(0).exp(), backend="aot_eager", fullgraph=True)
    x = whole(6, 4)
    for dim in (0, 1, 0, 1):
        close(program(sharded(x, dim, rank, size, mesh)).full_tensor(), (x * 2).sum(0).exp())
    close(program(ShardTensor.from_local(x, mesh, [Replicate()])).full_tensor(), (x * 2).sum(0).exp())
    if size > 1:
        summand = x if rank == 0 else torch.zeros_like(x)
        close(program(ShardTensor.from_local(summand, mesh, [Partial()])).full_tensor(), (x * 2).sum(0).exp())
    close(program(x), (x * 2).sum(0).exp())
    close(program(sharded(whole(5, 4), 0, rank, size, mesh)).full_tensor(), (whole(5, 4) * 2).sum(0).exp())
    assert counters["meshrun"]["compiled programs"] == (5 if size > 1 else 4), counters["meshrun"]
    assert "programs as written" not in counters["meshrun"]
    # Python's numbers become inputs of a graph when they change.
    times = torch.compile(lambda x, n: (x * n).sum(), backend="aot_eager", fullgraph=True)
    for n in (2, 3, 4, 5, 3):
        close(times(sharded(x, 0, rank, size, mesh), n).full_tensor(), x.sum() * n)


def compiled_programs_know_handlers_and_modes(rank, size, mesh):
    x = sharded(whole(6, 4), 0, rank, size, mesh)
    plain = torch.full((4,), 2.0, dtype=torch.float64)
    program = torch.compile(lambda x, y: (x * y).sum(), backend="aot_eager")
    close(program(x, plain).full_tensor(), 2 * whole(6, 4).sum())
    with ShardTensor.promotion_mode("disabled"):
        raises(ValueError, lambda: program(x, plain), "disabled")
    with kept_registries():
        ShardTensor.register_dispatch_handler(torch.ops.aten.mul.Tensor, lambda a, b: ShardTensor(a._local_tensor * 5, a._spec))
        close(program(x, plain).full_tensor(), 5 * whole(6, 4).sum())
    close(program(x, plain).full_tensor(), 2 * whole(6, 4).sum())


def compiled_programs_write_to_plain_memory_that_others_share(rank, size, mesh):
    program = torch.compile(lambda x, total, plain: (total.add_(1), x.sum() + plain.sum())[1], backend="aot_eager")
    x = sharded(whole(6, 4), 0, rank, size, mesh)
    apart, memory = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    close(program(x, apart, memory).full_tensor(), whole(6, 4).sum())
    close(program(x, apart[:3], memory[1:]).full_tensor(), whole(6, 4).sum())
    assert apart.sum() == 7
    close(program(x, memory[:3], memory[1:]).full_tensor(), whole(6, 4).sum() + 2)
    if size == 1:  # a part that is not contiguous, of the memory that is written
        field = torch.zeros(6, 4, dtype=torch.float64)
        total = torch.compile(lambda x, total: (total.add_(1), x.sum())[1], backend="aot_eager")
        part = ShardTensor.from_local(field, mesh, [Shard(0)])[:, :2]
        total(part, torch.zeros(6, 4, dtype=torch.float64))
        close(total(part, field).full_tensor(), torch.tensor(12.0, dtype=torch.float64))


def compiled_programs_ask_for_parts_outside(rank, size, mesh):
    x = sharded(whole(6, 4), 0, rank, size, mesh)

    def program(x):
        y = x.relu()
        if isinstance(y, ShardTensor):
            y = y.redistribute(placements=[Replicate()]) + 1
        return y.to_local().sum() + x.full_tensor().sum() + len(y.placements)

    close(torch.compile(program, backend="aot_eager")(x), program(x))
    for call in (lambda x: (x * 2).to_local(), lambda x: (x * 2).full_tensor(), lambda x: x.placements):
        raises(Exception, lambda: torch.compile(call, backend="eager", fullgraph=True)(x), "ShardTensor")
    assert torch.compile(lambda x: hasattr(x, "spec"), backend="eager")(x)
    assert not torch.compile(lambda x: hasattr(x * 2, "to_local"), backend="eager", fullgraph=True)(whole(2))


def compiled_programs_break_where_dtensors_and_sharded_tensors_meet(rank, size, mesh):
    layer = nn.Linear(4, 4).double()
    distribute_dtensors(layer, mesh)
    x = sharded(whole(6, 4), 0, rank, size, mesh)
    compiled_alike(lambda x: layer(x).square().sum() + (x * 2).sum(), x, fullgraph=False)
    compiled_alike(lambda x: (x * 2).sum() + layer(x * 3).square().sum(), x, fullgraph=False)


def programs_that_cannot_be_compiled_run_as_written(rank, size, mesh):
    x = sharded(whole(6, 4), 0, rank, size, mesh)

    def looking(x):
        return x.median() + x.sum()

    def writing(x):
        x.add_(1)
        return x.sum()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        close(torch.compile(looking, backend="aot_eager")(x).full_tensor(), looking(x).full_tensor())
    assert size == 1 or any("leaves a graph" in str(warning.message) for warning in said), [str(warning.message) for warning in said]
    twice = [x.clone(), x.clone()]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        close(torch.compile(writing, backend="aot_eager")(twice[0]).full_tensor(), writing(twice[1]).full_tensor())
    assert any("writes to a sharded tensor" in str(warning.message) for warning in said), [str(warning.message) for warning in said]
    close(twice[0].full_tensor(), twice[1].full_tensor())

    # Views of what is given, and of each other, stay views.
    def halves(x):
        y = x * 1
        return y[:, :2], y[:, 1:]

    for program, take in ((lambda x: x[1:3], lambda y: y), (halves, lambda y: y[0])):
        sums = []
        for run in (program, torch.compile(program, backend="aot_eager")):
            leaf = x.detach().requires_grad_()
            given = leaf * 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results = run(given)
            take(results).mul_(3)
            (given.sum() + (results[1].sum() if isinstance(results, tuple) else results.square().sum())).backward()
            sums.append(leaf.grad.full_tensor())
        close(sums[1], sums[0])
    raises(RuntimeError, lambda: torch.compile(lambda x: x @ x, backend="aot_eager")(x), "mat")
    with torch.no_grad():
        close(torch.compile(lambda x: x.t().exp(), backend="aot_eager")(x).full_tensor(), x.t().exp().full_tensor())


@contextlib.contextmanager
def kept_registries():
    names = "_dispatch_registry", "_function_registry", "_named_function_registry"
    before = {name: dict(getattr(ShardTensor, name)) for name in names}
    try:
        yield
    finally:
        for name in names:
            setattr(ShardTensor, name, before[name])


def handlers_of_operators_run_below_autograd(rank, size, mesh):
    x = whole(5, 4)
    s = sharded(x, 0, rank, size, mesh, requires_grad=True)
    calls = []

    def doubled(a, b):
        calls.append((torch.is_grad_enabled(), type(b)))
        local = b._local_tensor if isinstance(b, ShardTensor) else b
        return ShardTensor(a._local_tensor * local * 2, a._spec)

    with kept_registries():
        ShardTensor.register_dispatch_handler(torch.ops.aten.mul.Tensor, doubled)
        y = s * s
        assert len(calls) == 1 and torch.equal(y.full_tensor().detach(), 2 * x * x)
        y.sum().backward()  # the formula of mul calls mul twice
        assert len(calls) == 3
        close(s.grad.full_tensor(), 4 * x)
        # A later one wins, and its end brings this one back.
        ShardTensor.register_dispatch_handler(torch.ops.aten.mul.Tensor, lambda a, b: a)
        assert torch.equal((s.detach() * s.detach()).full_tensor(), x)
        del ShardTensor._dispatch_registry[torch.ops.aten.mul.Tensor]
        assert torch.equal((s * s).full_tensor().detach(), x * x)
    assert torch.equal((s * s).full_tensor().detach(), x * x) and torch.equal(x * x, x * x) and len(calls) == 3
    raises(ShardTensorError, lambda: ShardTensor.register_dispatch_handler(torch.mul, doubled), "torch.ops.aten")


def handlers_of_functions_make_their_own_graph(rank, size, mesh):
    x = whole(5, 4)
    s = sharded(x, 0, rank, size, mesh, requires_grad=True)
    calls = []

    def tripled(func, types, args, kwargs):
        calls.append((func, types, args, kwargs))
        a, b = args
        return ShardTensor.from_local(a.to_local() * b.to_local() * 3, a.device_mesh, a.placements)

    with kept_registries():
        ShardTensor.register_function_handler(torch.mul, tripled)
        for y in (torch.mul(s, s), s * s, s.mul(s)):
            close(y.full_tensor().detach(), 3 * x * x)
        y.sum().backward()
        close(s.grad.full_tensor(), 6 * x)
        plain = x[0].clone().requires_grad_()
        seen = []
        ShardTensor.register_function_handler(torch.mul, lambda f, t, a, k: seen.append(a[1]) or a[0])
        s * plain
        assert isinstance(seen[0], ShardTensor) and seen[0].placements == (Replicate(),)
        s * 2
        assert not isinstance(seen[1], ShardTensor)
    assert calls[0][0] is torch.mul and len(calls) == 3
    assert torch.equal((s * s).full_tensor().detach(), x * x)
    # A function without an operator.
    image = ShardTensor.from_local(whole(1, 2, 3, 4), mesh, [Replicate()])
    with kept_registries():
        before = nn.functional.interpolate
        ShardTensor.register_function_handler(nn.functional.interpolate, lambda f, t, a, k: ("mine", f is before, k.get("scale_factor")))
        assert nn.functional.interpolate(image, scale_factor=2) == ("mine", True, 2)
        assert nn.Upsample(scale_factor=2)(image)[0] == "mine"
        assert nn.functional.interpolate(whole(1, 2, 3, 4), scale_factor=2).shape == (1, 2, 6, 8)
        ShardTensor._enable_shard_patches = False
        assert not ShardTensor.patches_enabled() and nn.functional.interpolate(image, scale_factor=2).shape == (1, 2, 6, 8)
        ShardTensor._enable_shard_patches = True
        assert ShardTensor.patches_enabled()
    assert nn.functional.interpolate is before
    raises(ShardTensorError, lambda: ShardTensor.register_function_handler(lambda x: x, tripled), "custom_op")


def handlers_of_custom_operators_are_found_by_name(rank, size, mesh):
    if not hasattr(torch.ops.shard_ranks, "twice"):
        @torch.library.custom_op("shard_ranks::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2
    x = whole(5, 4)
    s = sharded(x, 0, rank, size, mesh)
    with kept_registries():
        ShardTensor.register_named_function_handler(
            "shard_ranks.twice.default", lambda f, t, a, k: ShardTensor(f(a[0].to_local()) + 1, a[0].spec))
        assert torch.equal(torch.ops.shard_ranks.twice(s).full_tensor(), 2 * x + 1)
        assert torch.equal(torch.ops.shard_ranks.twice(x), 2 * x)
    raises(ShardTensorError, lambda: ShardTensor.register_named_function_handler("shard_ranks.thrice.default", None), "custom_op")
    raises(ShardTensorError, lambda: ShardTensor.register_named_function_handler("thrice", None), "module.name.default")


def dtensors_come_and_go(rank, size, mesh):
    x = whole(4 * size, 6)
    for placement in (Shard(0), Shard(1), Replicate()):
        d = distribute_tensor(x.clone(), mesh, [placement]).requires_grad_()
        s = ShardTensor.from_dtensor(d)
        assert s.placements == (placement,) and torch.equal(s.full_tensor().detach(), x)
        assert s._local_tensor.data_ptr() == d._local_tensor.data_ptr()
        weights = whole(*x.shape, seed=3)
        (s * weights).sum().backward()
        assert isinstance(d.grad, DTensor) and d.grad.placements == d.placements
        close(d.grad.full_tensor(), weights)
        back = s.detach().requires_grad_()
        again = back.to_dtensor()
        assert isinstance(again, DTensor) and again.placements == d.placements and torch.equal(again.full_tensor().detach(), x)
        (again * distribute_tensor(weights, mesh, [Replicate()])).sum().full_tensor().backward()
        close(back.grad.full_tensor(), weights)
    summed = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    close(ShardTensor.from_dtensor(summed).full_tensor(), size * x)
    uneven = [*whole(size + 1, 3).chunk(size), *[x[:0, :3]] * size][rank]
    d = DTensor.from_local(uneven, mesh, [Shard(0)], run_check=False, shape=torch.Size([size + 1, 3]), stride=(3, 1))
    assert torch.equal(ShardTensor.from_dtensor(d).full_tensor(), whole(size + 1, 3))
    if size > 1:
        raises(ShardTensorError, sharded(whole(8, 3), 0, rank, size, mesh).to_dtensor, "torch.chunk")
    raises(TypeError, lambda: ShardTensor.from_dtensor(x), "DTensor")


def dtensors_are_operands(rank, size, mesh):
    x, w = whole(7, 6), whole(6, seed=2)
    s = sharded(x, 0, rank, size, mesh)
    for placement in (Replicate(), Shard(0)):
        d = distribute_tensor(w.clone(), mesh, [placement]).requires_grad_()
        own = w.clone().requires_grad_()
        for times in (1, 2):
            for y in (s * d, d * s, torch.cat([s * 2, (s * d)])[7:], torch.add(s, other=d) * d):
                assert isinstance(y, ShardTensor)
            ((s * d) + torch.mul(d, s)).tanh().sum().backward()
            ((x * own) + x * own).tanh().sum().backward()
            assert isinstance(d.grad, DTensor) and d.grad.placements == (placement,)
            close(d.grad.full_tensor(), own.grad)
    # Layers of torch's own tensor parallelism.
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(6, 4 * size), nn.GELU(), nn.Linear(4 * size, 2)).double()
    own = copy.deepcopy(net)
    for layer, placements in ((net[0], ([Shard(0)], [Shard(0)])), (net[2], ([Shard(1)], [Replicate()]))):
        for (name, parameter), placement in zip(list(layer.named_parameters()), placements):
            setattr(layer, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, placement)))
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.01) for module in (net, own)]
    for _ in range(3):
        for module, given, optimizer in ((net, s, optimizers[0]), (own, x, optimizers[1])):
            optimizer.zero_grad()
            module(given).square().mean().backward()
            optimizer.step()
    for a, b in zip(net.parameters(), own.parameters()):
        close(a.detach().full_tensor(), b.detach(), 1e-10)
    # DTensors among themselves are as before.
    assert isinstance(d.detach() + d.detach(), DTensor)


CASES = [value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == __name__
         and "rank" in value.__code__.co_varnames[:1] and value.__code__.co_varnames[:3] == ("rank", "size", "mesh")]


def run(rank, size, mesh, names, where):
    for case in CASES:
        if not names or case.__name__ in names:
            try:
                case(rank, size, mesh)
            except BaseException as error:
                error.add_note(f"case {case.__name__}, rank {rank} of {size}, {where}") if hasattr(error, "add_note") else None
                raise
    if rank == 0:
        print(f"  {size} ranks, {where}: {len(CASES)} cases", flush=True)


def environment(rank, size, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)


def managed(rank, size, port, names):
    environment(rank, size, port)
    DistributedManager.initialize()
    mesh = DistributedManager().initialize_mesh((size,), ("domain",))
    run(rank, size, mesh, names, "DistributedManager")


def on_backend(backend, rank, size, port, names):
    environment(rank, size, port)
    import meshrun.torch  # registers the backend

    dist.init_process_group(backend, rank=rank, world_size=size)
    run(rank, size, init_device_mesh("cpu", (size,)), names, backend)
    dist.destroy_process_group()


def under_their_names(rank, size, port, names):
    """A program of PhysicsNeMo's on meshrun.compat.physicsnemo, where PhysicsNeMo is not installed."""
    import meshrun.compat.physicsnemo as compat

    environment(rank, size, port)
    sys.modules["physicsnemo.distributed"] = sys
    raises(ImportError, compat.install, "physicsnemo.distributed was imported before")
    del sys.modules["physicsnemo.distributed"]
    compat.install()
    compat.install()
    import physicsnemo.distributed.manager
    from physicsnemo.distributed import DistributedManager as manager
    from physicsnemo.distributed import fused_all_reduce
    from physicsnemo.distributed.fused_all_reduce import fused_all_reduce as again
    from physicsnemo.domain_parallel import ShardTensor as tensor
    from physicsnemo.domain_parallel import ShardTensorSpec as spec
    from physicsnemo.domain_parallel import register_custom_ops, scatter_tensor, shard_tensor, sync_module_over_mesh
    from physicsnemo.domain_parallel._shard_tensor_spec import (_stride_from_contiguous_shape_C_style,
                                                                compute_sharding_shapes_from_chunking_global_shape)
    from physicsnemo.domain_parallel.shard_utils import halo, register_shard_wrappers, ring
    from physicsnemo.domain_parallel.shard_utils.grad_ops import GradReducer as reducer
    from physicsnemo.domain_parallel.shard_utils.patch_core import MissingShardPatch
    from physicsnemo.domain_parallel.sync import sync_module_over_mesh as sync

    import meshrun.domain_parallel as ours
    assert physicsnemo.distributed.manager.DistributedManager is manager is DistributedManager and fused_all_reduce is again
    assert tensor is ShardTensor is shard_tensor.ShardTensor and spec is ShardTensorSpec and reducer is GradReducer
    assert scatter_tensor is ours.scatter_tensor and sync is sync_module_over_mesh is ours.sync_module_over_mesh
    assert halo.HaloConfig is HaloConfig and ring.RingPassingConfig is RingPassingConfig and issubclass(MissingShardPatch, Exception)
    assert physicsnemo.distributed.__spec__.name == "meshrun.distributed"
    raises(ImportError, lambda: __import__("physicsnemo.domain_parallel.shard_utils.conv_patches"), "conv_patches", "C++")
    raises(ImportError, lambda: __import__("physicsnemo.nn"), "physicsnemo.nn")
    raises(AttributeError, lambda: shard_tensor.nothing, "physicsnemo.domain_parallel.shard_tensor", "'nothing'")
    register_custom_ops()
    register_shard_wrappers()
    manager.initialize()
    mesh = manager().initialize_mesh((size,), ("domain",))
    x = whole(5, 3)
    assert torch.equal(scatter_tensor(x if rank == 0 else None, 0, mesh, (Shard(0),)).full_tensor(), x)
    assert _stride_from_contiguous_shape_C_style((2, 3, 4)) == (12, 4, 1)
    if size == 2:
        assert compute_sharding_shapes_from_chunking_global_shape(mesh, (Shard(0),), (5, 3)) == {0: [(3, 3), (2, 3)]}


def on_meshrun(rank, size, port, names):
    on_backend("meshrun", rank, size, port, names)


def on_gloo(rank, size, port, names):
    on_backend("gloo", rank, size, port, names)


if __name__ == "__main__":
    # One rank by hand: RANK, WORLD_SIZE, MASTER_PORT and the names of cases.
    managed(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("MASTER_PORT", 29555)), sys.argv[1:])
