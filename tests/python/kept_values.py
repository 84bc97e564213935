"""Optimizer states and kept values of meshrun.elastic through a checkpoint, in one process: tests/python/elastic runs it."""

import collections
import enum
import os
import pickle
import subprocess
import sys
import tempfile
import typing

import torch

from meshrun import _kept_bytes
from meshrun._optimizer_states import _KINDS
from meshrun.distributed import DistributedManager
from meshrun.elastic import CheckpointDirectory, KeptValues

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


if __name__ == "__main__":
    DistributedManager.initialize()
    every_optimizer_goes_on_from_its_checkpoint()
    written_values_are_read()
    numpys_numbers_are_plain()
    sets_are_written_alike_by_all_processes()
    DistributedManager.cleanup()
