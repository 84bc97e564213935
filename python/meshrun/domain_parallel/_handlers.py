"""Handlers written in Python: what an operator or a function does with sharded tensors.

A handler of an operator is a kernel that torch.library registers, below autograd for register_dispatch_handler(), above it for the
others. Its end brings back what was there before. A function that is Python's own, such as torch.nn.functional.interpolate, has no
operator: its name in the modules where programs look it up is given another function, which asks whether an argument is sharded.

Threads: one registers; handlers run on any.
"""

import functools
import sys
import types

import torch
from torch.utils import _pytree as pytree

from meshrun.domain_parallel import _promotion
from meshrun.domain_parallel.errors import ShardTensorError
from meshrun.torch import _extension

_shard = _extension.shard

# The dispatch keys of ShardTensor's handlers (docs/decisions/0021-dispatch-keys-of-shardtensor.md).
_BELOW_AUTOGRAD, _ABOVE_AUTOGRAD = "Fake", "DeferredInit"
# Where programs look up a function of torch, beside the module that defines it.
_NAMESPACES = "torch", "torch.functional", "torch.nn.functional"


# How often a registry has changed: a compiled program has the handlers of its time.
changes = 0


def _count_change():
    global changes
    changes += 1


class Registry(dict):
    """Handlers by what they are for. An entry holds its registration, which ends with it."""

    def __init__(self, register):
        super().__init__()
        self._register, self._ends = register, {}

    def __setitem__(self, key, handler):
        if key in self:
            del self[key]
        _count_change()
        self._ends[key] = self._register(key, handler)
        super().__setitem__(key, handler)

    def __delitem__(self, key):
        _count_change()
        super().__delitem__(key)
        self._ends.pop(key)()

    def become(self, entries):
        """Has these entries and no others."""
        for key in [key for key in self if entries.get(key) is not self[key]]:
            del self[key]
        for key, handler in entries.items():
            if key not in self:
                self[key] = handler

    def pop(self, key, *default):
        if key not in self and default:
            return default[0]
        handler = self[key]
        del self[key]
        return handler

    def clear(self):
        self.become({})

    def update(self, *given, **named):
        for key, handler in dict(*given, **named).items():
            self[key] = handler


def register_for_operator(op, handler):
    """handler(*args, **kwargs) below autograd. Returns what ends it."""
    if not isinstance(op, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        raise ShardTensorError(f"{op!r} is no operator: give one such as torch.ops.aten.mul.Tensor, or call "
                               "register_function_handler()")
    return _implement(_operators_of(op), handler, _BELOW_AUTOGRAD)


def register_for_function(function, handler):
    """handler(function, types, args, kwargs) above autograd; plain tensors among the arguments count as PromotionMode says."""
    names = _operators_of(function)
    if names:
        return _implement(names, _called_above(function, handler), _ABOVE_AUTOGRAD)
    return _replace(function, handler)


def register_by_name(name, handler):
    """The same for an operator that a library has defined: "module.name.default"."""
    parts = name.replace("::", ".").split(".")
    if len(parts) not in (2, 3):
        raise ShardTensorError(f"{name!r} is no operator's name: write it as \"module.name.default\"")
    try:
        op = functools.reduce(getattr, parts if len(parts) == 3 else [*parts, "default"], torch.ops)
    except AttributeError:
        raise ShardTensorError(f"no operator {name!r} is defined: define it first, by torch.library.custom_op() or "
                               "TORCH_LIBRARY") from None
    return _implement(_operators_of(op), _called_above(op, handler), _ABOVE_AUTOGRAD)


def _full_name(schema):
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _implement(names, kernel, key):
    libraries = []
    try:
        for name in names:
            libraries.append(torch.library.Library(name.split("::")[0], "IMPL"))
            libraries[-1].impl(name.split("::")[1], kernel, key)
    except BaseException:
        _end(libraries)
        raise
    return functools.partial(_end, libraries)


def _end(libraries):
    for library in reversed(libraries):
        library._destroy()


def _called_above(function, handler):
    def kernel(*args, **kwargs):
        return _call(function, handler, args, kwargs)
    return kernel


def _call(function, handler, args, kwargs):
    leaves, tree = pytree.tree_flatten((args, kwargs))
    first = next(leaf for leaf in leaves if _shard.is_sharded(leaf))
    if _promotion.get() is not _promotion.TensorPromotionMode.DISABLED:
        mesh = _shard.spec_of(first).mesh
        leaves = [_promoted(leaf, mesh) for leaf in leaves]
    kinds = tuple({type(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)})
    args, kwargs = pytree.tree_unflatten(leaves, tree)
    return handler(function, kinds, args, kwargs)


def _promoted(value, mesh):
    if not isinstance(value, torch.Tensor) or _shard.is_sharded(value) or value.dim() == 0:
        return value
    return _shard.from_local(value, mesh, None, "chunk", list(value.shape))


def _operators_of(function):
    """Full names of the operators that a builtin function or method of torch calls, or that it is; none for a function of
    Python's."""
    if isinstance(function, torch._ops.OpOverload):
        return [_full_name(function._schema)]
    if isinstance(function, torch._ops.OpOverloadPacket):
        return [_full_name(getattr(function, overload)._schema) for overload in function.overloads()]
    if isinstance(function, types.FunctionType) or not hasattr(function, "__name__"):
        return []
    name = function.__name__
    if name.startswith("__") and name.endswith("__"):  # __radd__, __iadd__
        name = name[2:-2]
        for prefix, suffix in (("", ""), ("r", ""), ("i", "_")):
            if name.startswith(prefix) and _schemas(name[len(prefix):] + suffix):
                name = name[len(prefix):] + suffix
                break
    return [_full_name(schema) for schema in _schemas(name)
            if any("Tensor" in str(argument.type) for argument in schema.arguments)]


def _schemas(name):
    return torch._C._jit_get_schemas_for_operator(f"aten::{name}")


def _replace(function, handler):
    @functools.wraps(function)
    def instead(*args, **kwargs):
        if _shard.patches_enabled() and any(_shard.is_sharded(leaf) for leaf in pytree.tree_leaves((args, kwargs))):
            return _call(function, handler, args, kwargs)
        return function(*args, **kwargs)

    places = list(_places_of(function))
    if not places:
        raise ShardTensorError(f"{function!r} is neither an operator of torch nor a function that a module has by its name: "
                               "make it one by torch.library.custom_op(), and call register_named_function_handler()")
    for owner, name in places:
        setattr(owner, name, instead)

    def end():
        for owner, name in places:
            if getattr(owner, name, None) is instead:
                setattr(owner, name, function)
    return end


def _places_of(function):
    """Modules and classes that have the function, and the names that they have it by."""
    *path, name = getattr(function, "__qualname__", "").split(".")
    for module in dict.fromkeys((getattr(function, "__module__", None), *_NAMESPACES)):
        try:
            owner = functools.reduce(getattr, path, sys.modules[module])
        except (AttributeError, KeyError):
            continue
        if owner.__dict__.get(name) is function:
            yield owner, name
