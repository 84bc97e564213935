"""PhysicsNeMo's programs on meshrun, as they are:

    import meshrun.compat.physicsnemo

    meshrun.compat.physicsnemo.install()            # before the first import of PhysicsNeMo
    from physicsnemo.distributed import DistributedManager      # that of meshrun.distributed
    from physicsnemo.domain_parallel import ShardTensor         # that of meshrun.domain_parallel

`physicsnemo.distributed` and `physicsnemo.domain_parallel` are ours from then on, for the program and for the other modules of
PhysicsNeMo, which stay theirs. PhysicsNeMo need not be installed for programs that use these two alone.
docs/python_training.md says what differs.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys

_DISTRIBUTED, _DOMAIN_PARALLEL = "physicsnemo.distributed", "physicsnemo.domain_parallel"

# Their modules that are modules of ours.
_MODULES = {
    _DISTRIBUTED: "meshrun.distributed",
    **{f"{_DISTRIBUTED}.{name}": f"meshrun.distributed.{name}"
       for name in ("autograd", "config", "fft", "manager", "mappings", "utils")},
    **{f"{_DOMAIN_PARALLEL}.shard_utils.{name}": f"meshrun.domain_parallel.{name}" for name in ("grad_ops", "halo", "ring")},
}


def _register_nothing():
    """Every operator has its rule from the start."""


def _stride_of(shape):
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _chunked_shapes(mesh, placements, global_shape):
    from meshrun.domain_parallel import ShardTensorSpec

    shapes = ShardTensorSpec(mesh, placements, shape=global_shape).sharding_shapes()
    return {axis: [tuple(shape) for shape in along] for axis, along in shapes.items()}


# Names in their modules that are made of several of ours: a value, or the module of ours that has the name.
_NAMES = {
    _DOMAIN_PARALLEL: {
        "ST_AVAILABLE": True,
        "register_custom_ops": _register_nothing,
        **dict.fromkeys(("ShardTensor", "ShardTensorSpec", "TensorPromotionMode", "scatter_tensor", "sync_module_over_mesh"),
                        "meshrun.domain_parallel"),
    },
    f"{_DOMAIN_PARALLEL}.shard_tensor": dict.fromkeys(("ShardTensor", "ShardTensorSpec", "TensorPromotionMode", "scatter_tensor"),
                                                      "meshrun.domain_parallel"),
    f"{_DOMAIN_PARALLEL}._shard_tensor_spec": {
        "ShardTensorSpec": "meshrun.domain_parallel",
        "_stride_from_contiguous_shape_C_style": _stride_of,
        "compute_sharding_shapes_from_chunking_global_shape": _chunked_shapes,
    },
    f"{_DOMAIN_PARALLEL}._shard_redistribute": {},
    f"{_DOMAIN_PARALLEL}.sync": {"sync_module_over_mesh": "meshrun.domain_parallel"},
    f"{_DOMAIN_PARALLEL}.custom_ops": {},
    f"{_DOMAIN_PARALLEL}.shard_utils": {"register_shard_wrappers": _register_nothing},
    f"{_DOMAIN_PARALLEL}.shard_utils.patch_core": {
        # What our operators raise from within PyTorch.
        "MissingShardPatch": NotImplementedError,
        "UndeterminedShardingError": ValueError,
    },
}
_PACKAGES = {_DISTRIBUTED, _DOMAIN_PARALLEL, f"{_DOMAIN_PARALLEL}.custom_ops", f"{_DOMAIN_PARALLEL}.shard_utils"}


class _Alias(importlib.abc.Loader):
    """Gives a module of ours under another name."""

    def __init__(self, name):
        self._name = name

    def create_module(self, spec):
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self._spec  # importlib has put theirs there
        if module.__name__ == "meshrun.distributed":
            # Put in place here: an import of it would put the module over the function of the same name.
            sys.modules[f"{_DISTRIBUTED}.fused_all_reduce"] = importlib.import_module("meshrun.distributed.fused")


class _Names(importlib.abc.Loader):
    """Makes a module whose names are looked up in ours on first use."""

    def __init__(self, names):
        self._names = names

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        def look_up(name):
            if name not in self._names:
                raise AttributeError(f"{module.__name__!r} has no {name!r} in meshrun")
            value = self._names[name]
            if isinstance(value, str):
                value = getattr(importlib.import_module(value), name)
            setattr(module, name, value)
            return value

        module.__getattr__ = look_up
        module.__all__ = [name for name in self._names if not name.startswith("_")]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "physicsnemo":
            return self._root()
        if name in _MODULES:
            loader = _Alias(_MODULES[name])
        elif name in _NAMES:
            loader = _Names(_NAMES[name])
        elif name.startswith((f"{_DISTRIBUTED}.", f"{_DOMAIN_PARALLEL}.")):
            raise ModuleNotFoundError(f"meshrun has no {name}: its operators are written in C++. Import what the program uses "
                                      f"from {_DOMAIN_PARALLEL} or {_DISTRIBUTED}", name=name)
        else:
            return None
        return importlib.machinery.ModuleSpec(name, loader, is_package=name in _PACKAGES)

    def _root(self):
        """An empty package where no other finder has PhysicsNeMo."""
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec("physicsnemo", None)
            if spec is not None:
                return spec
        return importlib.machinery.ModuleSpec("physicsnemo", _Names({}), is_package=True)


def install():
    """From now on `physicsnemo.distributed` and `physicsnemo.domain_parallel` are meshrun's. Calls after the first do nothing.

    Raises ImportError where one of them has been imported before: the program would hold classes of both.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    for name in (_DISTRIBUTED, _DOMAIN_PARALLEL):
        if name in sys.modules:
            raise ImportError(f"{name} was imported before meshrun.compat.physicsnemo.install(): call install() at the start of "
                              "the program, before anything of PhysicsNeMo is imported")
    sys.meta_path.insert(0, _Finder())
