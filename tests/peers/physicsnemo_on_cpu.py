"""Lets PhysicsNeMo's test/distributed run on ranks without a GPU, over meshrun.distributed or over their own package: an import
hook and a plugin of pytest. Their files stay as they are.

install(), called when an interpreter starts (sitecustomize, so also in ranks that a test spawns):
- `physicsnemo.distributed` and its modules are `meshrun.distributed` and its, where PEER_DISTRIBUTED is "meshrun";
- `physicsnemo` and `physicsnemo.core` load no more than the tests ask for: their own import needs Warp and much else;
- where they count GPUs there are PEER_RANKS, waiting for one is nothing, the device cuda:0 is the CPU, and seeding a GPU
  seeds the CPU;
- init_process_group(device_id=) is left out for the CPU, which torch refuses and their own manager passes;
- `meshrun.distributed.utils` has the private sum by which test_utils.py computes what it expects.

As a plugin it drops the fixture that skips on the CPU, and writes each test's outcome to PEER_RESULTS.RANK.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys

THEIRS, OURS = "physicsnemo.distributed", "meshrun.distributed"
# Packages whose own __init__ is left out.
EMPTY = ("physicsnemo", "physicsnemo.core")


class Alias(importlib.abc.Loader):
    """Gives another module under this name."""

    def __init__(self, name):
        self.name = name

    def create_module(self, spec):
        module = importlib.import_module(self.name)
        if self.name == f"{OURS}.utils":
            module._reduce = summed
        self.spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self.spec


class Empty(importlib.abc.Loader):
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        pass


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, checkout):
        self.checkout = checkout
        self.is_without_gpu = False

    def find_spec(self, name, path=None, target=None):
        if name in EMPTY:
            spec = importlib.machinery.ModuleSpec(name, Empty(), is_package=True)
            spec.submodule_search_locations = [str(self.checkout.joinpath(*name.split(".")))]
            return spec
        if name != THEIRS and not name.startswith(f"{THEIRS}."):
            return None
        if not self.is_without_gpu:
            self.is_without_gpu = True
            stand_in_for_gpus()
        if os.environ["PEER_DISTRIBUTED"] != "meshrun":
            return None
        ours = OURS + name[len(THEIRS):]
        return importlib.machinery.ModuleSpec(name, Alias(ours), is_package=name == THEIRS)


def stand_in_for_gpus():
    import torch

    torch.cuda.device_count = lambda: int(os.environ["PEER_RANKS"])
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.manual_seed = torch.manual_seed
    for name in ("arange", "tensor"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    init = torch.distributed.init_process_group

    def init_process_group(*arguments, device_id=None, **named):
        if device_id is not None and torch.device(device_id).type != "cpu":
            named["device_id"] = device_id
        return init(*arguments, **named)

    torch.distributed.init_process_group = init_process_group


def on_cpu(function):
    def call(*arguments, **named):
        if named.get("device") == "cuda:0":
            named["device"] = "cpu"
        return function(*arguments, **named)

    return call


def summed(tensor, use_fp32=True, group=None):
    import torch

    total = tensor.float() if use_fp32 and tensor.dtype.itemsize < 4 and tensor.is_floating_point() else tensor
    torch.distributed.all_reduce(total, group=group)
    return total.to(tensor.dtype)


def install():
    sys.meta_path.insert(0, Finder(pathlib.Path(os.environ["PEER_CHECKOUT"])))


# What follows are hooks of pytest.


def pytest_collection_modifyitems(items):
    for item in items:
        if "skip_on_cpu" in item.fixturenames:
            item.fixturenames.remove("skip_on_cpu")


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        reason = ""
        if report.skipped:
            reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message if crash else str(report.longrepr)
        write({"name": report.nodeid, "outcome": report.outcome, "reason": reason})


def pytest_collectreport(report):
    """A file that does not load is a failure of all its tests."""
    if report.failed:
        write({"name": report.nodeid, "outcome": "failed", "reason": str(report.longrepr).strip().splitlines()[-1]})


def write(outcome):
    with open(f"{os.environ['PEER_RESULTS']}.{os.environ.get('RANK', '0')}", "a") as file:
        file.write(json.dumps(outcome) + "\n")
