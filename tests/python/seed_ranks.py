"""What each rank of tests/python/seeds does: runs patched samples of other libraries' documents, and checks what they have
made. wrong_calls.py has the other part."""

import ast
import contextlib
import io
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist

import meshrun.communication as bagua
from meshrun.distributed import DistributedManager, autograd
from wrong_calls import launched, leave, one_rank_ends, raised, wrong_calls


def run(program, is_session):
    """Runs it as Python runs a script, or as its interpreter does. Returns its globals, and locals of its main()."""
    text = pathlib.Path(program).read_text()
    names, made = {"__name__": "__main__"}, {}

    def look(frame, event, argument):
        if event == "return" and frame.f_code.co_name == "main" and frame.f_code.co_filename == program:
            made.update(frame.f_locals)

    if is_session:
        for statement in ast.parse(text).body:
            exec(compile(ast.Interactive([statement]), program, "single"), names)
        return names, made
    code = compile(text, program, "exec")
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        exec(code, names)
    finally:
        sys.setprofile(before)
    return names, made


def equal_on_all_ranks(tensor):
    every = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(every, tensor)
    assert all(torch.equal(each, tensor) for each in every)


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def check_training(sample, rank, size, names, made):
    loss, trained = made["loss"].item(), parameters(made["arch"])
    assert made["i"] == 19 and torch.isfinite(made["loss"]), made
    equal_on_all_ranks(trained)
    leave()
    os.environ["MESHRUN_BACKEND"] = "gloo"
    try:
        torch.manual_seed(100 + rank)
        _, other = run(sample["program"], False)
        assert DistributedManager().backend == "gloo"
    finally:
        del os.environ["MESHRUN_BACKEND"]
    difference = ((parameters(other["arch"]) - trained).norm() / trained.norm()).item()
    assert difference < 1e-6, difference
    print(f"last loss {loss:.6g}; parameters are equal on all ranks, and Gloo's within 1e-6")


def check_manager(sample, rank, size, names, made):
    assert (names["manager"].rank, names["manager"].world_size) == (rank, size)


def check_afno(sample, rank, size, names, made):
    constructor = names["DistributedAFNO"]
    options = {"patch_size": 4, "embed_dim": 24, "depth": 1, "num_blocks": 12}
    DistributedManager.initialize()  # makes the group, by MODEL_PARALLEL_SIZE
    assert DistributedManager().group_size("model_parallel") == size
    from meshrun.models import DistributedAFNO

    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    fields = []
    for cls in (constructor, DistributedAFNO):
        torch.manual_seed(3)
        model = cls((16, 16), 3, **options)
        y = getattr(model, "_impl", model)(x)
        y.square().sum().backward()
        fields.append([y.detach(), *(p.grad for p in model.parameters())])
    assert len(fields[0]) == len(fields[1]) and all(map(torch.equal, *fields))
    equal_on_all_ranks(fields[0][0])
    print(f"output {list(y.shape)} of norm {y.detach().norm().item():.6g}, as meshrun's own class has it, with its "
          "gradients")
    if size > 1:
        _, text = raised(ValueError, lambda: constructor((16, 16), 3, channel_parallel_inputs=True, **options))
        print(f"channel_parallel_inputs with 3 channels: {text}")


def check_autograd_module(sample, rank, size, names, made):
    DistributedManager.initialize()
    root, sizes = size - 1, [r + 1 for r in range(size)]

    def random(*shape, seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    def outcome(module, name, x, *arguments):
        """The result and, of a loss that weighs each rank's otherwise, the gradient."""
        x = x.detach().clone().requires_grad_()
        y = module[name](x, *arguments)
        (y * (rank + 2) + y.sin()).sum().backward()
        return y.detach(), x.grad

    table = [[(i + 2 * j + 1) % 4 for j in range(size)] for i in range(size)]
    indices = [torch.arange(table[rank][j]) % sizes[rank] for j in range(size)]
    own, whole = random(sizes[rank], 3, seed=rank), random(sum(sizes), 3, seed=9)
    calls = {"all_gather_v": (own, sizes), "gather_v": (own, sizes, 0, root), "scatter_v": (whole, sizes, 0, root),
             "indexed_all_to_all_v": (own, indices, table)}
    for name, arguments in calls.items():
        theirs, ours = outcome(names, name, *arguments), outcome(vars(autograd), name, *arguments)
        held = name != "gather_v" or rank == root
        assert not held or torch.equal(theirs[0], ours[0]), (name, theirs[0], ours[0])
        assert torch.equal(theirs[1], ours[1]), (name, theirs[1], ours[1])
        print(f"{name}: result of norm {theirs[0].norm().item() if held else 0:.6g}, "
              f"gradient of norm {theirs[1].norm().item():.6g}, as meshrun's own")


def check_allreduce(sample, rank, size, names, made):
    total = size * (size - 1)  # 2 * rank, over all ranks
    assert names["send_tensor"].dtype == torch.cfloat
    assert names["recv_tensor"].tolist() == [size * (1 + 1j) + total * (1 + 1j), size * (2 + 2j) + total * (1 + 1j)]


def check_broadcast_object(sample, rank, size, names, made):
    optimizer = names["optimizer"]
    assert (names["state_dict"] is not None) and optimizer.param_groups[0]["lr"] == 0.1
    state = optimizer.state_dict()["state"]
    equal_on_all_ranks(torch.cat([entry["exp_avg"].flatten() for entry in state.values()]))
    print(f"learning rate {optimizer.param_groups[0]['lr']}, after {int(state[0]['step'])} step")


def check_init_process_group(sample, rank, size, names, made):
    assert bagua.is_initialized() and bagua.get_local_rank() == rank and bagua.get_local_size() == size
    assert bagua.get_world_size() == size
    model, optimizer = names["model"], names["optimizer"]
    before = parameters(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().sum().backward()
        optimizer.step()
    assert not torch.equal(parameters(model), before)
    equal_on_all_ranks(parameters(model))
    # Bagua's group is of the same ranks.
    x = parameters(model).clone()
    bagua.allreduce_inplace(x, bagua.ReduceOp.AVG)
    assert torch.allclose(x, parameters(model))
    print("three steps; parameters are equal on all ranks")


CHECKS = {"afno": check_afno, "allreduce": check_allreduce, "autograd_module": check_autograd_module,
          "broadcast_object": check_broadcast_object, "init_process_group": check_init_process_group,
          "manager": check_manager, "training": check_training}


def samples(rank, size, port, names):
    """`names`: a file that tells of the samples. What a rank prints goes to a file of its own."""
    launched(rank, size, port)
    os.environ["MODEL_PARALLEL_SIZE"] = str(size)
    all_samples = json.loads(pathlib.Path(names[0]).read_text())
    for sample in all_samples:
        said = io.StringIO()
        torch.manual_seed(100 + rank)
        try:
            with contextlib.redirect_stdout(said):
                values, made = run(sample["program"], sample["is_session"])
                CHECKS[sample["name"]](sample, rank, size, values, made)
        except BaseException as error:
            error.add_note(f"in the sample {sample['name']} on rank {rank} of {size}")
            raise
        leave()
        pathlib.Path(f"{sample['program']}.{size}.{rank}").write_text(said.getvalue())
    if rank == 0 and size == 1:
        needs_all_of_its_patch(all_samples)


def needs_all_of_its_patch(all_samples):
    """A sample without one of its patch's hunks fails, so no hunk is there for nothing."""
    for sample in all_samples:
        for hunk in sample["without"]:
            if hunk["kind"] == "device" and torch.cuda.is_available():
                continue
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    values, made = run(hunk["program"], sample["is_session"])
                    CHECKS[sample["name"]](sample | hunk, 0, 1, values, made)
            except Exception as error:
                print(f"  {sample['name']} without '{hunk['kind']}: {hunk['reason']}': {type(error).__name__}: "
                      f"{str(error).splitlines()[0][:200]}", flush=True)
            else:
                raise AssertionError(f"{sample['name']} needs no '{hunk['kind']}: {hunk['reason']}'")
            leave()
