"""What each rank of tests/python/shard_trainings does: unchanged modules train on sharded samples, alone and under PyTorch's wrappers, as
they do on one rank. One function a case, called with (rank, size, mesh), which asserts; the mesh has the axes "dp" and "domain".
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from meshrun.distributed import DistributedManager
from meshrun.domain_parallel import ShardTensor, ShardTensorError, distribute_module
from shard_ranks import close, environment, raises, whole

STEPS = 10
ROWS, WIDTH = 8, 6


def cut(x, dim, position, count):
    """Uneven, and the third piece is empty."""
    sizes = [[x.shape[dim]], [x.shape[dim] - 3, 3], [x.shape[dim] - 3, 3, 0], [1, x.shape[dim] - 3, 0, 2]][count - 1]
    return x.split(sizes, dim)[position].clone()


class Batches:
    """Whole batches for one rank, and this rank's sharded part of each."""

    def __init__(self, mesh, *shape, dim=1):
        self.mesh, self.shape, self.dim = mesh, shape, dim
        self.dp, self.domain = mesh["dp"], mesh["domain"]

    def batch(self, step):
        return whole(*self.shape, seed=100 + step)

    def sharded(self, step):
        own = self.batch(step).chunk(self.dp.size(), 0)[self.dp.get_local_rank()]
        return ShardTensor.from_local(cut(own, self.dim, self.domain.get_local_rank(), self.domain.size()), self.domain,
                                      [Shard(self.dim)])


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 10), nn.GELU(), nn.LayerNorm(10), nn.Linear(10, WIDTH)).double()


class Checkpointed(nn.Module):
    """The network, whose first layers are computed again in the backward pass."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.layers, self.use_reentrant = network(), use_reentrant

    def forward(self, x):
        x = x.detach().requires_grad_()
        hidden = checkpoint(self.layers[:2], x, use_reentrant=self.use_reentrant)
        return self.layers[2:](hidden)


def loss_of(module, x):
    return (module(x) - x).square().mean()


def train(module, batch, parameters=None, loss=loss_of, **options):
    optimizer = torch.optim.AdamW(list(parameters or module.parameters()), lr=0.01, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(module, batch(step)).backward()
        nn.utils.clip_grad_norm_(list(parameters or module.parameters()), 1.0)
        optimizer.step()
    return module


def compare(module, own, whole_of=lambda tensor: tensor, most=1e-10):
    for a, b in zip(module.parameters(), own.parameters()):
        close(whole_of(a.detach()), b.detach(), most)


def alone(batches):
    return train(network(), batches.batch)


def under_ddp_on_the_data_axis(rank, size, mesh):
    batches = Batches(mesh, 4, ROWS, WIDTH)
    model = DistributedDataParallel(network(), process_group=mesh["dp"].get_group())
    compare(train(model, batches.sharded).module, alone(batches))


def under_ddp_on_all_ranks(rank, size, mesh):
    batches = Batches(mesh, 4, ROWS, WIDTH)
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        compare(train(DistributedDataParallel(network(), **options), batches.sharded).module, alone(batches))
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    own = network()
    of_own = torch.optim.AdamW(own.parameters(), lr=0.01)
    for step in range(0, STEPS, 2):  # two micro-batches a step
        optimizer.zero_grad(), of_own.zero_grad()
        with model.no_sync():
            loss_of(model, batches.sharded(step)).backward()
        loss_of(model, batches.sharded(step + 1)).backward()
        for each in (step, step + 1):
            loss_of(own, batches.batch(each)).backward()
        optimizer.step(), of_own.step()
    compare(model.module, own)


def under_fsdp2_on_the_data_axis(rank, size, mesh):
    batches = Batches(mesh, 4, ROWS, WIDTH)
    for options in ({}, {"reshard_after_forward": False}):
        model = network()
        for layer in (model[0], model[2], model[3], model):
            fully_shard(layer, mesh=mesh["dp"], **options)
        compare(train(model, batches.sharded), alone(batches), lambda tensor: tensor.full_tensor())


def under_fsdp1_on_the_data_axis(rank, size, mesh):
    batches = Batches(mesh, 4, ROWS, WIDTH)
    for use_orig_params in (True, False):
        model = FullyShardedDataParallel(network(), process_group=mesh["dp"].get_group(), device_id=torch.device("cpu"),
                                         use_orig_params=use_orig_params)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        own = network()
        of_own = torch.optim.AdamW(own.parameters(), lr=0.01)
        for step in range(STEPS):
            optimizer.zero_grad(), of_own.zero_grad()
            loss_of(model, batches.sharded(step)).backward()
            loss_of(own, batches.batch(step)).backward()
            optimizer.step(), of_own.step()
        with FullyShardedDataParallel.summon_full_params(model):
            compare(model.module, own)


def sharded_parameters_are_refused_by_wrappers(rank, size, mesh):
    def model():
        made = network()
        made.field = nn.Parameter(Batches(mesh, 4, ROWS, WIDTH).sharded(0))
        return made
    dp = mesh["dp"].get_group()
    raises(ShardTensorError, lambda: DistributedDataParallel(model(), process_group=dp), "field", "_to_ignore_for_model")
    raises(ShardTensorError, lambda: fully_shard(model(), mesh=mesh["dp"]), "field", "ignored_params")
    raises(ShardTensorError, lambda: FullyShardedDataParallel(model(), process_group=dp), "field", "ignored_states")
    # Kept out, on a mesh with the data axis: the gradient is the sum over both.
    made = network()
    field = whole(ROWS, WIDTH, seed=9)
    own = network()
    own.field = nn.Parameter(field.clone())
    made.field = nn.Parameter(ShardTensor.from_local(cut(field, 0, mesh["domain"].get_local_rank(), mesh["domain"].size()), mesh,
                                                     [Replicate(), Shard(0)]))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(made, ["field", ".field"])
    wrapped = DistributedDataParallel(made)
    x = Batches(mesh, 4, ROWS, WIDTH).batch(0)
    part = cut(x.chunk(mesh["dp"].size(), 0)[mesh["dp"].get_local_rank()], 1, mesh["domain"].get_local_rank(), mesh["domain"].size())
    s = ShardTensor.from_local(part, mesh, [Shard(0), Shard(1)])
    (wrapped(s) * made.field).square().mean().backward()
    (own(x) * own.field).square().mean().backward()
    close(made.field.grad.full_tensor(), own.field.grad, 1e-11)
    close(made[0].weight.grad, own[0].weight.grad, 1e-11)


def with_what_loops_use(rank, size, mesh):
    """Checkpointed activations, hooks, modules made on the meta device, GradScaler, foreach and fused optimizers."""
    batches = Batches(mesh, 4, ROWS, WIDTH)
    for use_reentrant in (False, True):
        compare(train(DistributedDataParallel(Checkpointed(use_reentrant)), batches.sharded).module,
                train(Checkpointed(use_reentrant), batches.batch))
    seen = []
    hooked = network()
    hooked[0].register_forward_pre_hook(lambda module, args: seen.append(isinstance(args[0], ShardTensor)))
    hooked[0].register_forward_hook(lambda module, args, output: output * 2)
    hooked[3].register_full_backward_hook(lambda module, ours, theirs: seen.append(theirs[0].shape))
    own = network()
    own[0].register_forward_hook(lambda module, args, output: output * 2)
    ddp = DistributedDataParallel(hooked)
    loss_of(ddp, batches.sharded(0)).backward()
    loss_of(own, batches.batch(0)).backward()
    assert seen[0] is True and seen[1][1:] == (ROWS, WIDTH), seen
    for a, b in zip(hooked.parameters(), own.parameters()):
        close(a.grad, b.grad, 1e-11)
    with torch.device("meta"):
        empty = network()
    empty.to_empty(device="cpu").load_state_dict(network().state_dict())
    for options in ({"foreach": True}, {"fused": True}):
        compare(train(DistributedDataParallel(copy.deepcopy(empty)), batches.sharded, **options).module,
                train(network(), batches.batch, **options))
    scaled, own = DistributedDataParallel(network()), network()
    for module, batch in ((scaled, batches.sharded), (own, batches.batch)):
        optimizer, scaler = torch.optim.SGD(module.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
        for step in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(loss_of(module, batch(step))).backward()
            scaler.step(optimizer)
            scaler.update()
    compare(scaled.module, own)


def under_autocast(rank, size, mesh):
    batches = Batches(mesh, 4, ROWS, WIDTH)
    ddp, own = DistributedDataParallel(network().float()), network().float()
    losses = []
    for module, batch in ((ddp, batches.sharded), (own, batches.batch)):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        for step in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(module, batch(step).float())
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    close(torch.tensor(losses[1].item()), losses[1].cpu().float(), 1e-6)
    compare(ddp.module, own, most=2e-2)


def convolutions_and_encoders(rank, size, mesh):
    torch.manual_seed(3)
    cases = [
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU(), nn.Conv2d(4, 3, 3, padding=1)), (4, 3, 9, 6), 2),
        (nn.Sequential(nn.Conv1d(WIDTH, 8, 5, padding=2), nn.BatchNorm1d(8), nn.SiLU(), nn.Conv1d(8, WIDTH, 1)), (4, WIDTH, 9), 2),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2), (4, 7, 8), 1),
    ]
    for module, shape, dim in cases:
        module = module.double()
        batches = Batches(mesh, *shape, dim=dim)
        if any(isinstance(layer, nn.BatchNorm1d) for layer in module.modules()) and mesh["dp"].size() > 1:
            continue  # statistics are those of a replica's batch
        own = train(copy.deepcopy(module), batches.batch)
        compare(train(DistributedDataParallel(copy.deepcopy(module)), batches.sharded).module, own, most=1e-8)


def under_distribute_module(rank, size, mesh):
    class OfBoth(Batches):
        def sharded(self, step):
            own = self.batch(step).chunk(self.dp.size(), 0)[self.dp.get_local_rank()]
            part = cut(own, self.dim, self.domain.get_local_rank(), self.domain.size())
            return ShardTensor.from_local(part, mesh, [Shard(0), Shard(self.dim)])

    batches = OfBoth(mesh, 4, ROWS, WIDTH)
    model = network()
    with torch.no_grad():
        if rank:
            model[0].weight.zero_()  # the first rank's are taken
    assert distribute_module(model, mesh) is model
    compare(train(model, batches.sharded), alone(batches))

    def cut_last_layer(name, part, on):
        if name == "3":
            part.weight = nn.Parameter(ShardTensor.from_local(cut(part.weight.detach(), 0, on["domain"].get_local_rank(), on["domain"].size()),
                                                              on, [Replicate(), Shard(0)]))

    seen = []
    model = distribute_module(network(), mesh, cut_last_layer, lambda part, inputs, on: seen.append(on.ndim) or inputs,
                              lambda part, outputs, on: outputs.redistribute(on, [Shard(0), Replicate()]))
    assert isinstance(model[3].weight, ShardTensor) and model(batches.sharded(0)).placements == (Shard(0), Replicate()) and seen == [2]
    compare(train(model, batches.sharded), alone(batches),
            lambda tensor: tensor.full_tensor() if isinstance(tensor, ShardTensor) else tensor)
    raises(ShardTensorError, lambda: distribute_module(network(), mesh, input_fn=lambda inputs: inputs), "input_fn", "three")
    if size > 1:
        raises(ShardTensorError, lambda: distribute_module(nn.Linear(3, 2 + rank % 2), mesh))


def again_with_the_same_numbers(rank, size, mesh):
    """What draws random numbers, where PyTorch computes it again."""
    domain = mesh["domain"]
    part = cut(whole(2, 9, 4), 1, domain.get_local_rank(), domain.size())

    def sample():
        return ShardTensor.from_local(part, domain, [Shard(1)]).requires_grad_()

    programs = [lambda x: F.dropout(x, 0.5) * x, lambda x: x * torch.rand_like(x), lambda x: torch.bernoulli(x.sigmoid()) * x,
                lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), lambda x: F.alpha_dropout(F.dropout(x, 0.2) * x, 0.5)]
    for program in programs:
        def gradient(call):
            torch.manual_seed(5)
            x = sample()
            F.dropout(call(x), 0.5).square().sum().backward()
            return x.grad.full_tensor()

        wanted = gradient(program)
        for use_reentrant in (False, True):
            assert torch.equal(gradient(lambda x: checkpoint(program, x, use_reentrant=use_reentrant)), wanted), (program, use_reentrant)

    def drawn():
        return F.dropout(sample(), 0.5).full_tensor()

    torch.manual_seed(5)
    first, second = drawn(), drawn()
    torch.manual_seed(5)
    with torch.random.fork_rng(devices=[]):
        assert torch.equal(drawn(), first) and torch.equal(drawn(), second)
    assert torch.equal(drawn(), first)
    state = torch.get_rng_state()
    assert torch.equal(drawn(), second) and not torch.equal(drawn(), second)
    torch.set_rng_state(state)
    assert torch.equal(drawn(), second)


CASES = [again_with_the_same_numbers, under_ddp_on_the_data_axis, under_ddp_on_all_ranks, under_fsdp2_on_the_data_axis, under_fsdp1_on_the_data_axis, under_distribute_module,
         sharded_parameters_are_refused_by_wrappers, with_what_loops_use, under_autocast, convolutions_and_encoders]


def trained(rank, size, port, names):
    """`names`: the size of the data axis, then cases."""
    environment(rank, size, port)
    data, *chosen = names
    DistributedManager.initialize()
    mesh = DistributedManager().initialize_mesh((int(data), size // int(data)), ("dp", "domain"))
    for case in CASES:
        if not chosen or case.__name__ in chosen:
            try:
                case(rank, size, mesh)
            except BaseException as error:
                if hasattr(error, "add_note"):
                    error.add_note(f"case {case.__name__}, rank {rank}, dp {data} of {size}")
                raise
    if rank == 0:
        print(f"  dp {data} x domain {size // int(data)}: {len(chosen or CASES)} cases", flush=True)
