"""Optimizer states and kept values of meshrun.elastic through a checkpoint, in one process: tests/python/elastic runs it."""

import collections
import enum
import os
import pickle
import random
import subprocess
import sys
import tempfile
import typing
import warnings

import torch

from meshrun import _kept_bytes, elastic
from meshrun._optimizer_states import _KINDS
from meshrun.distributed import DistributedManager
from meshrun.elastic import CheckpointDirectory, CheckpointFileError, ElasticContext, ElasticState, KeptValues

# Options that ask for every moment; whole numbers, which a scheduler and the program then change to fractions.
OPTIONS = {"SGD": {"momentum": 0.5}, "RMSprop": {"momentum": 0.5, "centered": True}, "Adam": {"amsgrad": True},
           "AdamW": {"amsgrad": True}}


class Pair(typing.NamedTuple):
    first: int
    second: str


class Level(enum.IntEnum):
    HIGH = 3


def training(kind):
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 2}]
    optimizer = kind(groups, lr=1, **OPTIONS.get(kind.__name__, {}))
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)


def step(number, model, optimizer, scheduler):
    generator = torch.Generator().manual_seed(number)
    optimizer.zero_grad()
    model(torch.randn(5, 4, generator=generator)).sin().sum().backward()
    optimizer.step()
    scheduler.step()


def everything(model, optimizer, scheduler):
    states = [optimizer.state[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    options = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return list(model.parameters()), states, options, scheduler.state_dict()


def assert_equal(mine, other):
    if torch.is_tensor(mine):
        assert torch.equal(mine, other), (mine, other)
    elif isinstance(mine, dict):
        assert mine.keys() == other.keys(), (mine, other)
        for name in mine:
            assert_equal(mine[name], other[name])
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(other)
        for one, another in zip(mine, other):
            assert_equal(one, another)
    else:
        assert mine == other, (mine, other)


def every_optimizer_goes_on_from_its_checkpoint():
    for kind in _KINDS:
        whole = training(kind)
        with tempfile.TemporaryDirectory() as directory:
            step(0, *whole)
            for group in whole[1].param_groups:
                group["weight_decay"] = 0.05
            step(1, *whole)
            kept = KeptValues()
            kept.keep("scheduler", whole[2])
            CheckpointDirectory(directory).save(whole[0], whole[1], 2, kept=kept)
            step(2, *whole)
            model, optimizer, scheduler = training(kind)
            kept = KeptValues()
            kept.keep("scheduler", scheduler)
            assert CheckpointDirectory(directory).load(model, optimizer, kept).step == 2
        step(2, model, optimizer, scheduler)
        assert_equal(everything(model, optimizer, scheduler), everything(*whole))
        assert optimizer.param_groups[1]["weight_decay"] == 0.05 and optimizer.param_groups[0]["lr"] < 0.01, kind


def written_values_are_read():
    counted = collections.defaultdict(list, {"x": [1]})
    plain = {"a": [1, 2.5, 1j, None, True, "x", b"y"], "m": collections.Counter({3: 1}), "d": counted,
             "q": collections.deque([1, 2], 5), "s": {"b", "a"}, "f": frozenset({2, 1})}
    back = _kept_bytes.decode(_kept_bytes.encode(plain, "it"))
    assert back == plain and type(back["m"]) is collections.Counter and back["q"].maxlen == 5, back
    as_plain = {"e": Level.HIGH, "n": Pair(1, "x"), "t": torch.Size([2, 3])}
    back = _kept_bytes.decode(_kept_bytes.encode(as_plain, "it"))
    assert back == {"e": 3, "n": (1, "x"), "t": (2, 3)} and type(back["e"]) is int and type(back["t"]) is tuple, back
    same = [1]
    assert _kept_bytes.encode([same, same], "it") == _kept_bytes.encode([[1], [1]], "it")
    for wrong in (object(), torch.ones(2), print):
        try:
            _kept_bytes.encode({"x": [wrong]}, "it")
        except TypeError as error:
            assert str(error).startswith("it['x'][0] is a "), error
        else:
            raise AssertionError(f"{wrong} was written")
    try:
        _kept_bytes.decode(pickle.dumps(subprocess.Popen))
    except pickle.UnpicklingError:
        pass
    else:
        raise AssertionError("a class was read")


def numpys_numbers_are_plain():
    try:
        import numpy
    except ImportError:
        return
    values = {"a": numpy.float64(0.5), "b": numpy.float32(0.25), "c": numpy.int64(3), "d": numpy.bool_(True)}
    back = _kept_bytes.decode(_kept_bytes.encode(values, "it"))
    assert back == {"a": 0.5, "b": 0.25, "c": 3, "d": True} and [type(each) for each in back.values()] == [float, float, int, bool]
    assert _kept_bytes.decode(pickle.dumps([numpy.float64(0.5)], protocol=4)) == [0.5]


def sets_are_written_alike_by_all_processes():
    program = "from meshrun import _kept_bytes; print(_kept_bytes.encode({'v': {'aa', 'bb', 'cc', 'dd', 1}}, 'it').hex())"
    written = {subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": str(seed)},
                              capture_output=True, text=True, check=True).stdout for seed in range(3)}
    assert len(written) == 1, written


def raised(kind, call, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"no {kind.__name__}: {words}")


def critic_training(momenta=(0.9, 0.0)):
    """A model with its optimizer, and beside it one with another, and how both are kept."""
    torch.manual_seed(0)
    model, critic = torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    groups = [{"params": part.parameters(), "momentum": momentum} for part, momentum in zip(critic, momenta)]
    other = torch.optim.SGD(groups, lr=0.01) if momenta else torch.optim.Adam(critic.parameters(), lr=0.01)
    kept = KeptValues()
    kept.keep("critic", critic)
    kept.keep("its optimizer", other)
    return model, torch.optim.Adam(model.parameters()), kept, critic, other


def critic_step(number, critic, optimizer):
    optimizer.zero_grad()
    critic(torch.randn(4, 3, generator=torch.Generator().manual_seed(number))).square().mean().backward()
    optimizer.step()


def kept_optimizers_go_on():
    for momenta in ((0.9, 0.0), (0.0, 0.9), (0.9, 0.9), ()):
        model, optimizer, kept, critic, other = critic_training(momenta)
        for number in range(2):
            critic_step(number, critic, other)
        other.load_state_dict(other.state_dict())  # other tensors than at keep()
        critic_step(2, critic, other)
        with tempfile.TemporaryDirectory() as directory:
            CheckpointDirectory(directory).save(model, optimizer, 3, kept=kept)
            again = critic_training(momenta)
            # As its first step finds it, without the moments that keep() has made.
            again[4].load_state_dict({**again[4].state_dict(), "state": {}})
            CheckpointDirectory(directory).load(*again[:2], kept=again[2])
        for number in range(3, 5):
            critic_step(number, critic, other)
            critic_step(number, *again[3:])
        assert_equal(list(again[3].parameters()), list(critic.parameters()))


def what_a_module_has_twice_has_its_first_name():
    block = torch.nn.BatchNorm1d(2)
    block.register_buffer("passing", torch.zeros(1), persistent=False)
    model = torch.nn.ModuleDict({"a": block, "b": block})
    names = [name for name, *_ in elastic._tensors_of(model)]
    assert names == [f"a.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")], names


def fused_moments_have_the_order_of_their_parameters():
    def new():
        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return model, torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def train(model, optimizer, numbers):
        for number in numbers:
            images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            model(images.to(memory_format=torch.channels_last)).square().sum().backward()
            optimizer.step()

    whole, again = new(), new()
    train(*whole, range(3))
    with tempfile.TemporaryDirectory() as directory:
        CheckpointDirectory(directory).save(*whole, 3)
        CheckpointDirectory(directory).load(*again)
    for each in (whole, again):
        train(*each, range(3, 6))
    assert_equal(again[0].weight, whole[0].weight)


class Buffers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.inner = torch.nn.Module()
        lazily = torch.tensor([1 + 2j, 3 - 4j])
        for name, dtype in (("single", torch.complex64), ("double", torch.complex128)):
            self.register_buffer(f"conj_{name}", lazily.to(dtype).conj())
            self.register_buffer(f"neg_{name}", lazily.to(dtype).conj().imag)
        shared = torch.zeros(2)
        self.register_buffer("hidden", shared, persistent=False)
        self.inner.register_buffer("seen", shared)


def buffers_come_back():
    model, again = Buffers(), Buffers()
    optimizer, other = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, again))
    model.inner.seen.fill_(5)
    for name in ("conj_single", "conj_double", "neg_single", "neg_double"):
        getattr(again, name).zero_()
    with tempfile.TemporaryDirectory() as directory:
        CheckpointDirectory(directory).save(model, optimizer, 1)
        CheckpointDirectory(directory).load(again, other)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert again.conj_single.is_conj() and again.conj_single.tolist() == [1 - 2j, 3 + 4j]


class Counted(torch.nn.Linear):
    def get_extra_state(self):
        return 3


def what_is_not_handed_on_is_told():
    model, optimizer, kept, critic, other = critic_training(())
    critic[0].weight = torch.nn.Parameter(torch.zeros(3, 3))
    raised(RuntimeError, lambda: CheckpointDirectory("unused").save(model, optimizer, 1, kept=kept), "0.weight",
           "kept as 'critic'", "KeptValues")
    lonely = KeptValues()
    lonely.keep("its optimizer", other)
    raised(ValueError, lambda: CheckpointDirectory("unused").save(model, optimizer, 1, kept=lonely),
           'keep("its optimizer")', "neither the module's nor kept")
    kept = critic_training(())[2:]
    kept[2].add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    raised(RuntimeError, lambda: CheckpointDirectory("unused").save(model, optimizer, 1, kept=kept[0]), "add_param_group")
    with warnings.catch_warnings(record=True) as told, tempfile.TemporaryDirectory() as directory:
        warnings.simplefilter("always")
        counted = Counted(1, 1)
        CheckpointDirectory(directory).save(counted, torch.optim.SGD(counted.parameters(), lr=0.1), 1)
    assert "get_extra_state() of Counted" in str(told[0].message), told


def switches_that_are_off_come_back():
    model = torch.nn.Linear(1, 1)
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1, maximize=True) for _ in range(2))
    one.param_groups[0]["maximize"] = False
    one.state[model.weight]["mine"] = two.state[model.weight]["mine"] = 7
    with tempfile.TemporaryDirectory() as directory:
        CheckpointDirectory(directory).save(model, one, 1)
        assert not CheckpointDirectory(directory).has_committed(), "without a coordinator"
        CheckpointDirectory(directory).load(model, two)
    assert two.param_groups[0]["maximize"] is False and two.state[model.weight]["mine"] == 7


def a_directory_that_cannot_be_written_is_found_before_training():
    with tempfile.TemporaryDirectory() as directory:
        CheckpointDirectory(f"{directory}/new").check_writable()
        assert os.listdir(directory) == ["new"] and not os.listdir(f"{directory}/new")
        open(f"{directory}/file", "w").close()
        raised(CheckpointFileError, CheckpointDirectory(f"{directory}/file").check_writable, "cannot write checkpoints",
               f"{directory}/file: Not a directory")


def fused_steps_are_counted():
    """A step in a loop without update() is one more step, however the optimizer writes."""
    for fused in (False, True):
        elastic, done = ElasticContext(), []

        def body():
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
            state = ElasticState(elastic, model, optimizer)
            state.restore()
            for _ in state.steps(0, 3):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
            with state.update():
                pass
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            raised(RuntimeError, state.update().__enter__, "since the update() of step 3")
            done.append(1)

        elastic.run(body)
        assert done, fused


def replaced_tensors_and_generators_of_a_loop():
    elastic, drawn = ElasticContext(), []

    def body():
        model = torch.nn.Linear(1, 1)
        model.register_buffer("mean", torch.zeros(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = ElasticState(elastic, model, optimizer)
        state.seed_each_step(3)
        state.restore()
        for step in state.steps(1, 4):
            drawn.append((step, random.random()))
        for step in state.steps(3, 4):
            drawn.append((step, random.random()))

        def loop():
            for _ in state.steps(4, 6):
                model.mean = model.mean + 1

        raised(RuntimeError, loop, "mean of the module is another tensor")

    elastic.run(body)
    assert drawn[2] == drawn[3] and len(set(drawn)) == 3, drawn


if __name__ == "__main__":
    DistributedManager.initialize()
    every_optimizer_goes_on_from_its_checkpoint()
    written_values_are_read()
    numpys_numbers_are_plain()
    sets_are_written_alike_by_all_processes()
    kept_optimizers_go_on()
    what_a_module_has_twice_has_its_first_name()
    fused_moments_have_the_order_of_their_parameters()
    buffers_come_back()
    what_is_not_handed_on_is_told()
    switches_that_are_off_come_back()
    a_directory_that_cannot_be_written_is_found_before_training()
    fused_steps_are_counted()
    replaced_tensors_and_generators_of_a_loop()
    DistributedManager.cleanup()
