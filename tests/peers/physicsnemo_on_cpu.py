"""Lets PhysicsNeMo's test/distributed and test/domain_parallel run on ranks without a GPU, over meshrun or over their own
package: an import hook and a plugin of pytest. Their files stay as they are.

install(), called when an interpreter starts (sitecustomize, so also in ranks that a test spawns):
- `physicsnemo.distributed` and `physicsnemo.domain_parallel` are meshrun's, by meshrun.compat.physicsnemo.install(), where
  PEER_DISTRIBUTED is "meshrun";
- `physicsnemo`, `physicsnemo.core` and `physicsnemo.utils` load no more than the tests ask for: their own import needs Warp and
  much else;
- where they count GPUs there are PEER_RANKS, waiting for one is nothing, a device cuda is the CPU, and seeding a GPU seeds the
  CPU; their tests of domain_parallel, which skip without a GPU, are told that there is one;
- init_process_group(device_id=) is left out for the CPU, which torch refuses and their own manager passes;
- their operators for ShardTensor are registered, which they do where there is a GPU: those whose modules load without Warp;
- `meshrun.distributed.utils` has the private sum by which test_utils.py computes what it expects, and their modules of which
  tests import private names have these: to call one is an error that says so.

As a plugin it drops the fixture that skips on the CPU, leaves out the tests whose mesh is not PEER_MESH ("line" or "plane"), and
writes each test's outcome to PEER_RESULTS.RANK.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys

DISTRIBUTED, DOMAIN_PARALLEL = "physicsnemo.distributed", "physicsnemo.domain_parallel"
# Packages whose own __init__ is left out.
EMPTY = ("physicsnemo", "physicsnemo.core", "physicsnemo.utils")
# Theirs that register operators when they are imported.
OPERATORS = ("custom_ops", "custom_ops._tensor_ops", *(f"shard_utils.{name}" for name in (
    "attention_patches", "conv_patches", "index_ops", "knn", "linear_patches", "mesh_ops", "natten_patches",
    "normalization_patches", "padding", "point_cloud_ops", "pooling_patches", "unary_ops", "unpooling_patches", "view_ops")))
# Parts of their operators that tests import by name, and ours have not.
PRIVATE = {"shard_utils.view_ops": ("_match_view_dim_groups",), "shard_utils.attention_patches": ("RingSDPA", "RingSDPABlocking")}

# They skip it, since theirs does not pass it.
UNSKIPPED = "test_dispatch_registration_with_shard_tensors"


class Empty(importlib.abc.Loader):
    def create_module(self, spec):
        return None

    def exec_module(self, module):
        pass


class Private(importlib.abc.Loader):
    """Gives a module names that raise when they are used."""

    def __init__(self, names):
        self.names = names

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        for name in self.names:
            setattr(module, name, not_ours(name))


def not_ours(name):
    def refuse(*arguments, **named):
        raise NotImplementedError(f"{name} is a part of their operators: meshrun has its own in C++")

    refuse.apply = refuse
    return refuse


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, checkout, is_ours):
        self.checkout = checkout
        self.is_ours = is_ours
        self.is_without_gpu = False

    def find_spec(self, name, path=None, target=None):
        if name in EMPTY:
            spec = importlib.machinery.ModuleSpec(name, Empty(), is_package=True)
            spec.submodule_search_locations = [str(self.checkout.joinpath(*name.split(".")))]
            return spec
        if name in (DISTRIBUTED, DOMAIN_PARALLEL) and not self.is_without_gpu:
            self.is_without_gpu = True
            stand_in_for_gpus(self.checkout)
            if self.is_ours:
                importlib.import_module("meshrun.distributed.utils")._reduce = summed
        part = name.removeprefix(f"{DOMAIN_PARALLEL}.")
        if self.is_ours and part in PRIVATE:
            return importlib.machinery.ModuleSpec(name, Private(PRIVATE[part]))
        return None


def stand_in_for_gpus(checkout):
    import torch

    tests = str(checkout / "test/domain_parallel")
    is_available = torch.cuda.is_available
    torch.cuda.is_available = lambda: sys._getframe(1).f_code.co_filename.startswith(tests) or is_available()
    torch.cuda.device_count = lambda: int(os.environ["PEER_RANKS"])
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.set_device = lambda device: None
    torch.cuda.manual_seed = torch.manual_seed
    for name in ("arange", "empty", "full", "ones", "rand", "randint", "randn", "tensor", "zeros"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    init = torch.distributed.init_process_group

    def init_process_group(*arguments, device_id=None, **named):
        if device_id is not None and torch.device(device_id).type != "cpu":
            named["device_id"] = device_id
        return init(*arguments, **named)

    torch.distributed.init_process_group = init_process_group


def on_cpu(function):
    import torch

    def call(*arguments, **named):
        if named.get("device") is not None and torch.device(named["device"]).type == "cuda":
            named["device"] = "cpu"
        return function(*arguments, **named)

    return call


def summed(tensor, use_fp32=True, group=None):
    import torch

    total = tensor.float() if use_fp32 and tensor.dtype.itemsize < 4 and tensor.is_floating_point() else tensor
    torch.distributed.all_reduce(total, group=group)
    return total.to(tensor.dtype)


def register_their_operators():
    """Those whose modules load."""
    for name in OPERATORS:
        try:
            importlib.import_module(f"{DOMAIN_PARALLEL}.{name}")
        except (ImportError, AttributeError) as error:
            print(f"physicsnemo_on_cpu: not registered: {name}: {error}", file=sys.stderr)


def install():
    is_ours = os.environ["PEER_DISTRIBUTED"] == "meshrun"
    if is_ours:
        import meshrun.compat.physicsnemo

        meshrun.compat.physicsnemo.install()
    sys.meta_path.insert(0, Finder(pathlib.Path(os.environ["PEER_CHECKOUT"]), is_ours))


# What follows are hooks of pytest.


def pytest_collection_modifyitems(items):
    if DOMAIN_PARALLEL in sys.modules and os.environ["PEER_DISTRIBUTED"] != "meshrun":
        register_their_operators()
    # One world has one mesh: tests of the other are left out.
    left_out = {"line": "distributed_mesh_2d", "plane": "distributed_mesh"}.get(os.environ.get("PEER_MESH"))
    items[:] = [item for item in items if left_out not in item.fixturenames]
    for item in items:
        if "skip_on_cpu" in item.fixturenames:
            item.fixturenames.remove("skip_on_cpu")
        if item.originalname == UNSKIPPED:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]


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
