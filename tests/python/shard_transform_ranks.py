"""Programs under PyTorch's transforms of functions (torch.func, dual numbers, batched gradients) on ShardTensors, beside the same on
whole tensors."""

import warnings

import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import meshrun.torch
from meshrun.domain_parallel import ShardTensor
from shard_ranks import environment, part

SHAPE = 2, 4, 6
WEIGHT = torch.linspace(-1, 1, 18, dtype=torch.float64).view(3, 6)
KERNEL = torch.linspace(-1, 2, 60, dtype=torch.float64).sin().view(5, 4, 3)
INDICES = torch.tensor([0, 2, 2])


def replicated(a):
    return a.redistribute(placements=[Replicate()]) if isinstance(a, ShardTensor) else a


PROGRAMS = {
    "sin": lambda a: a.sin() * a,
    "linear": lambda a: F.linear(a, WEIGHT),
    "convolution": lambda a: F.conv1d(a, KERNEL, padding=1),
    "layer_norm": lambda a: F.layer_norm(a, (6,)),
    "group_norm": lambda a: F.group_norm(a, 2),
    "softmax": lambda a: a.softmax(1),
    "gelu": F.gelu,
    "sum": lambda a: a.sum(1),
    "var": lambda a: a.var(-1) + a.mean(-1),
    "matmul": lambda a: a @ a.transpose(1, 2),
    "einsum": lambda a: torch.einsum("bij,kj->bki", a, WEIGHT),
    "attention": lambda a: F.scaled_dot_product_attention(a, a, a),
    "cat": lambda a: torch.cat([a, a * 2], 1),
    "pad": lambda a: F.pad(a, (1, 1)),
    "index": lambda a: a[:, INDICES],
    "rfft": lambda a: torch.fft.rfft(a, dim=-1).abs(),
    "cumsum": lambda a: a.cumsum(1),
    "avg_pool": lambda a: F.avg_pool1d(a, 2),
    "interpolate": lambda a: F.interpolate(a, scale_factor=2, mode="linear"),
    "logsumexp": lambda a: a.logsumexp(-1),
    "norm": lambda a: a.norm(dim=-1),
    "where": lambda a: torch.where(a > 0, a, a * 0.1),
    "roll": lambda a: a.roll(1, 1),
    "sort": lambda a: a.sort(-1).values,
    "amax": lambda a: a.amax(-1),
    "outer": lambda a: a.flatten().outer(WEIGHT[0]),
    "cdist": lambda a: torch.cdist(a, a + 1),
    "dropout of evaluation": lambda a: F.dropout(a, 0.5, training=False),
    "reshape": lambda a: a.reshape(2, 4, 2, 3),
    "mm": lambda a: a[0] @ WEIGHT.T,
    "argmax": lambda a: a + a.argmax(-1, keepdim=True),
    "plain target": lambda a: torch.zeros(SHAPE, dtype=a.dtype).add_(replicated(a)),
    "in place": lambda a: a.clone().add_(a).mul_(2),
}


def dual(program, a, tangent):
    with forward_ad.dual_level():
        result = program(forward_ad.make_dual(a, tangent))
        found = forward_ad.unpack_dual(result).tangent
        return torch.zeros_like(result) if found is None else found


def scalar(program):
    return lambda x: program(x).sin().sum()


TRANSFORMS = {
    "grad": lambda program, a, t: torch.func.grad(scalar(program))(a),
    "grad of grad": lambda program, a, t: torch.func.grad(lambda x: torch.func.grad(scalar(program))(x).square().sum())(a),
    "vjp": lambda program, a, t: torch.func.vjp(program, a)[1](program(a).detach().cos())[0],
    "jvp": lambda program, a, t: torch.func.jvp(program, (a,), (t,))[1],
    "dual": dual,
    "vmap": lambda program, a, t: torch.vmap(lambda x: program(x.unsqueeze(0)))(a),
    "jacrev": lambda program, a, t: torch.func.jacrev(lambda x: program(x).sum(0))(a),
    "jacfwd": lambda program, a, t: torch.func.jacfwd(lambda x: program(x).sum(0))(a),
    "vmap of grad": lambda program, a, t: torch.vmap(torch.func.grad(lambda x: scalar(program)(x.unsqueeze(0))))(a),
}
# What they give for whole tensors, row by row: PyTorch's own jacrev of cdist is wrong, since a kernel of its does not broadcast.
WHOLE = TRANSFORMS | {"jacrev": lambda program, a, t: torch.autograd.functional.jacobian(lambda x: program(x).sum(0), a)}
# What a program that cannot be transformed is told.
TOLD = "would move elements between ranks", "would lose the tangent of a dual number", "take derivatives one by one"


def one(transform, program, dim, rank, size, mesh):
    """Whether it can be transformed; raises AssertionError where a number is wrong, or an error is not a sentence."""
    name = f"{transform} of {program}, cut along {dim}"
    of_all, tangent = (torch.linspace(low, 3, 48, dtype=torch.float64).mul(7).sin().view(SHAPE) for low in (-2, -1))
    try:
        wanted = WHOLE[transform](PROGRAMS[program], of_all, tangent)
    except Exception:
        return False  # PyTorch itself cannot
    operands = [ShardTensor.from_local(part(tensor, dim, rank, size), mesh, [Shard(dim)], "infer") for tensor in (of_all, tangent)]
    try:
        got = TRANSFORMS[transform](PROGRAMS[program], *operands)
    except (ValueError, NotImplementedError) as error:
        assert any(told in str(error) for told in TOLD), f"{name}: {error}"
        return False
    got = got.full_tensor() if isinstance(got, ShardTensor) else got
    assert got.shape == wanted.shape, f"{name}: {got.shape}, not {wanted.shape}"
    worst = (got - wanted).abs().max().item()
    assert worst < 1e-10, f"{name}: {worst}"
    return True


def transforms(rank, size, port, names):
    """`names`: the dimensions to cut."""
    environment(rank, size, port)
    dist.init_process_group("meshrun")
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("domain",))
    count = tried = 0
    for dim in map(int, names):
        for transform in TRANSFORMS:
            for program in PROGRAMS:
                count += one(transform, program, dim, rank, size, mesh)
                tried += 1
    # Not all are told that they cannot.
    assert count > 0.7 * tried, (count, tried)
    if rank == 0:
        print(f"  {size} ranks, dimensions {', '.join(names)}: {count} of {tried} programs equal the whole one's")
    dist.destroy_process_group()
