"""What each rank of tests/python/afno does: DistributedAFNO against the model that one rank alone has, in float64."""

import copy
import io
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from manager_ranks import raised
from meshrun.distributed import DistributedManager, UndefinedGroupError, utils
from meshrun.models import DistributedAFNO, DistributedAFNONet

FIELD, PATCH, CHANNELS, EMBED, BLOCKS, DEPTH, FRACTION = (16, 24), (4, 2), 12, 24, 12, 2, 0.7
OPTIONS = {"inp_shape": FIELD, "patch_size": PATCH, "in_chans": CHANNELS, "out_chans": CHANNELS, "embed_dim": EMBED,
           "depth": DEPTH, "mlp_ratio": 2.0, "num_blocks": BLOCKS, "hard_thresholding_fraction": FRACTION}


def alone(state, x):
    """The network of OPTIONS as its paper has it: convolutions, and products of complex numbers."""
    p, q = PATCH
    h, w = FIELD[0] // p, FIELD[1] // q
    y = F.conv2d(x, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=PATCH).permute(0, 2, 3, 1)
    y = y + state["pos_embed"].view(1, h, w, -1)
    for i in range(DEPTH):
        def of(name):
            return state[f"blocks.{i}.{name}"]

        def product(z, number):
            weight, bias = torch.complex(*of(f"filter.w{number}")), torch.complex(*of(f"filter.b{number}"))
            return torch.einsum("bhwki,kio->bhwko", z, weight) + bias

        z = F.layer_norm(y, (EMBED,), of("norm1.weight"), of("norm1.bias"), 1e-6)
        modes = torch.fft.rfft2(z, dim=(1, 2), norm="ortho").unflatten(-1, (BLOCKS, -1))
        total = h // 2 + 1
        kept = int(total * FRACTION)
        rows, columns = slice(total - kept, total + kept), slice(0, kept)
        some = torch.view_as_real(product(modes[:, rows, columns], 1))
        some = product(torch.view_as_complex(torch.relu(some)), 2)
        mixed = torch.zeros_like(modes)
        mixed[:, rows, columns] = torch.view_as_complex(F.softshrink(torch.view_as_real(some), 0.01))
        y = torch.fft.irfft2(mixed.flatten(-2), s=(h, w), dim=(1, 2), norm="ortho") + z + y
        z = F.layer_norm(y, (EMBED,), of("norm2.weight"), of("norm2.bias"), 1e-6)
        z = F.gelu(F.linear(z, of("mlp.fc1.weight"), of("mlp.fc1.bias")))
        y = y + F.linear(z, of("mlp.fc2.weight"), of("mlp.fc2.bias"))
    y = F.linear(y, state["head.weight"]).view(x.shape[0], h, w, p, q, CHANNELS)
    return y.permute(0, 5, 1, 3, 2, 4).reshape(x.shape[0], CHANNELS, *FIELD)


def close(got, expected, name):
    difference = ((got - expected).norm() / expected.norm()).item()
    assert got.shape == expected.shape and difference < 1e-12, (name, got.shape, expected.shape, difference)


def piece_of(whole, dim, group):
    manager = DistributedManager()
    size = whole.shape[dim] // manager.group_size(group)
    return whole.narrow(dim, size * manager.group_rank(group), size)


def equals_one_rank(spatial_group=None, inputs=False, outputs=False):
    """Outputs, and gradients of the input and of all parameters."""
    options = {**OPTIONS, "input_is_matmul_parallel": inputs, "output_is_matmul_parallel": outputs}
    torch.manual_seed(11 + dist.get_rank())  # rank 0's counts
    model = DistributedAFNONet(**options, spatial_group=spatial_group)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that modes pass the threshold
    model = model.double()
    state = {name: value.requires_grad_() for name, value in model.full_state_dict().items()}
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, CHANNELS, *FIELD, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(2, CHANNELS, *FIELD, dtype=torch.float64, generator=generator)
    y = alone(state, x)
    (y * weight).sum().backward()
    assert all(value.grad.abs().max() > 0 for value in state.values())

    def own(whole, is_cut):
        whole = piece_of(whole, 1, "model_parallel") if is_cut else whole
        return piece_of(whole, 3, spatial_group) if spatial_group else whole

    mine = own(x.detach(), inputs).clone().requires_grad_()
    got = model(mine)
    close(got.detach(), own(y.detach(), outputs), "output")
    (got * own(weight, outputs)).sum().backward()
    close(mine.grad, own(x.grad, inputs), "input")
    dims = model.parameter_shards()
    assert set(dims) == set(state)
    for name, parameter in model.named_parameters():
        close(parameter.grad, piece_of(state[name].grad, dims[name], "model_parallel"), name)
    largest = max(value.grad.abs().max().item() for value in state.values())
    for bound, norm_type in ((largest / 2, 2.0), (largest / 100, float("inf"))):
        expected = torch.nn.utils.clip_grad_norm_(state.values(), bound, norm_type)
        close(model.clip_grad_norm_(bound, norm_type), expected, f"norm {norm_type}")
        for name, parameter in model.named_parameters():
            close(parameter.grad, piece_of(state[name].grad, dims[name], "model_parallel"), f"clipped {name}")
    again = DistributedAFNONet(**options, spatial_group=spatial_group).double()
    again.load_full_state_dict({name: value.detach() for name, value in state.items()})
    with torch.no_grad():
        assert torch.equal(again(mine), got)


def channels(rank, size):
    DistributedManager.create_process_subgroup("model_parallel", size)
    for inputs in (False, True):
        for outputs in (False, True):
            equals_one_rank(inputs=inputs, outputs=outputs)


def field(rank, size):
    DistributedManager().initialize_mesh((-1, 2 if size == 4 else 1), ("spatial_parallel", "model_parallel"))
    equals_one_rank("spatial_parallel")
    equals_one_rank("spatial_parallel", inputs=True, outputs=True)


def saved_and_loaded(module):
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    return torch.load(stored, weights_only=False)


def copies(rank, size):
    """Gradients over the field's group are sums also in a copy, after a load, and of what was frozen at first."""
    DistributedManager().initialize_mesh((-1, 2 if size == 4 else 1), ("spatial_parallel", "model_parallel"))
    generator = torch.Generator().manual_seed(5)
    x, weight = torch.randn(2, 2, CHANNELS, *FIELD, dtype=torch.float64, generator=generator)

    def new():
        torch.manual_seed(11)
        model = DistributedAFNONet(**OPTIONS, spatial_group="spatial_parallel").double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
        return model

    first = new()
    state = {name: value.requires_grad_() for name, value in first.full_state_dict().items()}
    (alone(state, x) * weight).sum().backward()
    mine, own_weight = (piece_of(each, 3, "spatial_parallel") for each in (x, weight))

    def step(model):
        (model(mine) * own_weight).sum().backward()

    def is_right(model, case, passes=1):
        model.zero_grad()
        for _ in range(passes):
            step(model)
        dims = model.parameter_shards()
        for name, parameter in model.named_parameters():
            expected = passes * piece_of(state[name].grad, dims[name], "model_parallel")
            close(parameter.grad, expected, f"{case}: {name}")

    is_right(first, "first")
    for case, copied in ("deepcopy", copy.deepcopy(first)), ("torch.load", saved_and_loaded(first)):
        is_right(copied, case, 2)
    is_right(first, "after its copies", 2)

    assigned = new()
    step(assigned)
    assigned.load_state_dict({name: value.clone() for name, value in first.state_dict().items()}, assign=True)
    is_right(assigned, "assign")
    one = new()
    step(one)
    one.blocks[0].norm1.weight = torch.nn.Parameter(one.blocks[0].norm1.weight.detach().clone())
    is_right(one, "one new parameter", 2)

    for trained in ((), ("head.weight",)):
        frozen = new()
        for name, parameter in frozen.named_parameters():
            parameter.requires_grad_(name in trained)
        image = mine.clone().requires_grad_()
        frozen(image).sum().backward()
        assert image.grad.abs().max() > 0
        frozen.requires_grad_(True)
        is_right(frozen, f"unfrozen after {trained}", 2)

    average = copy.deepcopy(first).requires_grad_(False)  # as an exponential moving average is kept
    with torch.no_grad():
        assert torch.equal(average(mine), first(mine))
    is_right(average.requires_grad_(True), "average")

    if DistributedManager().group_size("spatial_parallel") > 1:
        one_copies = copy.deepcopy(first) if rank == 0 else first
        try:
            one_copies(mine)
        except ValueError as error:  # of this group, or with what the other one says
            assert "Ranks disagree" in str(error) and "rank 0 called mark_module_as_shared" in str(error), error
        else:
            raise AssertionError("no error")
        is_right(first, "after ranks that disagree")


def marked_modules(rank, size):
    """A module that its user marks; its copies have no mark, take one, and take a hook."""
    torch.manual_seed(7)
    plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    marked = utils.mark_module_as_shared(copy.deepcopy(plain), None)
    inputs = torch.randn(size, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def gradients(module, x):
        module.zero_grad()
        module(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in module.parameters()]

    def equal(module, x):
        for got, expected in zip(gradients(module, inputs[rank]), gradients(plain, x)):
            close(got, expected, "gradient")

    equal(marked, inputs.flatten(0, 1))
    marked[0].weight.note = "kept"
    copied = [copy.deepcopy(marked), saved_and_loaded(marked)]
    assert copied[1][0].weight.note == "kept"
    stored = io.BytesIO()
    torch.save(list(marked.parameters()), stored)
    stored.seek(0)
    assert all(torch.equal(*pair) for pair in zip(torch.load(stored, weights_only=True), marked.parameters()))
    for module in copied:
        equal(module, inputs[rank])
        seen = []
        handle = module[0].bias.register_post_accumulate_grad_hook(seen.append)
        equal(module, inputs[rank])
        handle.remove()
        assert len(seen) == 1 and seen[0] is module[0].bias
    equal(marked, inputs.flatten(0, 1))
    again = utils.mark_module_as_shared(copy.deepcopy(marked), None)
    equal(again, inputs.flatten(0, 1))
    for module in (marked, again):
        raised(RuntimeError, lambda: module[0].bias.register_post_accumulate_grad_hook(print), "mark's place")
    equal(utils.unmark_module_as_shared(again), inputs[rank])


def training(rank, size):
    """The constructor of PhysicsNeMo's class, a training, a graph of torch.compile, bfloat16, dropout."""
    DistributedManager.create_process_subgroup("model_parallel", size)
    torch.manual_seed(3)
    model = DistributedAFNO((16, 16), 3, patch_size=4, embed_dim=24, depth=2, num_blocks=12)
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    every = [None] * size
    dist.all_gather_object(every, losses)
    assert all(each == losses for each in every)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.allclose(compiled(x), model(x), atol=1e-6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = model(x)
        assert 0 < (low.float() - model(x)).abs().max() < 0.1
        net = DistributedAFNONet((16, 16), (4, 4), 3, 3, 24, 2, drop_rate=0.4, drop_path_rate=0.3, num_blocks=12)
        torch.manual_seed(9)
        first = net(x)
        torch.manual_seed(9)
        assert torch.equal(net(x), first) and not torch.equal(net(x), first)
        assert torch.equal(net.eval()(x), net(x))


def scaled(rank, size):
    """float16's tools on pieces: an overflow in one piece skips the step on all ranks, and norms do not overflow."""
    DistributedManager.create_process_subgroup("model_parallel", size)
    torch.manual_seed(3)
    model = DistributedAFNO((16, 16), 3, patch_size=4, embed_dim=24, depth=1, num_blocks=12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = ShardedGradScaler("cpu", process_group=DistributedManager().group("model_parallel"))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    scaler.scale(model(torch.ones(1, 3, 16, 16)).square().mean()).backward()
    if rank == 0:
        next(model.parameters()).grad.view(-1)[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15 and all(map(torch.equal, model.parameters(), before))
    model.half()
    elements = sum(value.numel() for value in model.full_state_dict().values())
    for norm_type, expected in ((2.0, 500 * elements**0.5), (1.0, 500.0 * elements), (math.inf, 500), (-math.inf, 500)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 500)
        norm = model.clip_grad_norm_(1.0, norm_type)
        assert math.isclose(norm.item(), expected, rel_tol=1e-4), (norm_type, norm, expected)
        wanted = torch.full((), 500 / expected).half()
        for parameter in model.parameters():
            assert torch.allclose(parameter.grad, wanted, rtol=2e-3, atol=1e-7), (parameter.grad.flatten()[0], wanted)


def wrong_calls(rank, size):
    raised(UndefinedGroupError, lambda: DistributedAFNO((16, 16), 3), "model_parallel", "MODEL_PARALLEL_SIZE")
    DistributedManager.create_process_subgroup("model_parallel", size)
    raised(ValueError, lambda: DistributedAFNO((16, 20), 3), "[16, 20]", "[16, 16]")
    raised(ValueError, lambda: DistributedAFNO((16, 16), 3, num_blocks=7), "256", "7")
    raised(ValueError, lambda: DistributedAFNO((16, 16), 3, depth=0), "depth", "0")
    if size > 1:
        raised(ValueError, lambda: DistributedAFNO((16, 16), 7, channel_parallel_inputs=True), "7", str(size))
        raised(ValueError, lambda: DistributedAFNO((16, 16), 3, embed_dim=24, num_blocks=12,
                                                   depth=1 + (rank == size - 1)), "depth=1", "depth=2")
    model = DistributedAFNO((16, 16), 3, embed_dim=24, depth=1, num_blocks=12)
    x = torch.ones(1, 3, 16, 16)
    raised(ValueError, lambda: model(x[:, :2] if rank == 0 else x), "(B, 3, 16, 16)", "[1, 2, 16, 16]")
    raised(ValueError, lambda: model(x.double() if rank == size - 1 else x), "float64", "float32")
    assert model(x).shape == (1, 3, 16, 16)
    if size > 1:
        raised(ValueError, lambda: DistributedDataParallel(copy.deepcopy(model))(x), "overwritten", "pos_embed")
    own = [dist.new_group([r]) for r in range(size)][rank]
    DistributedDataParallel(model, process_group=own)(x).sum().backward()
    try:
        model.load_full_state_dict({})
    except RuntimeError as error:
        assert "Missing key" in str(error) and "pos_embed" in str(error)
    else:
        raise AssertionError("no error")


def kept_by_an_elastic_training(rank, size):
    """A rank keeps what it has whole, so pieces are refused."""
    from meshrun.elastic import CheckpointDirectory

    DistributedManager.create_process_subgroup("model_parallel", size)
    model = DistributedAFNONet(**OPTIONS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if size == 1:
        return
    for call in (lambda: CheckpointDirectory("unused").save(model, optimizer, 1),
                 lambda: CheckpointDirectory("unused").load(torch.nn.Sequential(model), optimizer)):
        try:
            call()
        except NotImplementedError as error:
            assert "full_state_dict()" in str(error), error
        else:
            raise AssertionError("no error")


CASES = [channels, field, copies, marked_modules, training, scaled, wrong_calls, kept_by_an_elastic_training]


def spawned(rank, size, port, names):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    for case in CASES:
        if names and case.__name__ not in names:
            continue
        DistributedManager.initialize()
        # Also after torch.compile, which makes LibTorch's device guard count GPUs that are not there.
        assert size > 1 or DistributedManager().cuda == torch.cuda.is_available()
        try:
            case(rank, size)
        except BaseException as error:
            error.add_note(f"in the case {case.__name__} on rank {rank} of {size}")
            raise
        DistributedManager.cleanup(barrier=True)
        if rank == 0:
            print(f"  {size} ranks: {case.__name__}", flush=True)
