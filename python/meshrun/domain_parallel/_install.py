"""What torch.Tensor gets so that sharded ones have attributes, print, pickle and copy.

A sharded tensor is a torch.Tensor in Python, so its attributes are the class's. A plain tensor has none of them: hasattr() says so.
Methods of torch.Tensor that would need the memory of the whole tensor are replaced by functions that ask first whether it is sharded
(0.1 us). None of them is called within an operator.
"""

import copy
import functools
import types

import torch

from meshrun.domain_parallel import _compile
from meshrun.domain_parallel.errors import ShardTensorError, memory_is_elsewhere
from meshrun.torch import _extension

_shard = _extension.shard
is_sharded = _shard.is_sharded


def _property(name, get, is_method):
    """What `get` gives of a sharded tensor, or `get` as a method of it. AttributeError for others."""
    def of(tensor):
        if torch.compiler.is_compiling():
            _compile.break_graph_with_sharded(name)
        if not is_sharded(tensor):
            raise AttributeError(f"{type(tensor).__name__!r} object has no attribute {name!r}")
        return types.MethodType(get, tensor) if is_method else get(tensor)
    return property(of, doc=get.__doc__)


def attributes(kind, values, methods):
    """Once: gives sharded tensors these, and the class `kind` the methods as functions. ImportError if another library has given
    torch.Tensor one of the names."""
    for name, get in [*values.items(), *methods.items()]:
        there = torch.Tensor.__dict__.get(name)
        if there is not None:
            raise ImportError(f"torch.Tensor has an attribute {name!r} already, of {there!r}: meshrun.domain_parallel gives it one "
                              "of that name")
        setattr(torch.Tensor, name, _property(name, get, name in methods))
    for name, method in methods.items():
        setattr(kind, name, method)


def _instead(name):
    """Decorates what torch.Tensor's method does with sharded tensors."""
    def decorate(function):
        before = getattr(torch.Tensor, name)

        @functools.wraps(before)
        def method(self, *args, **kwargs):
            # Tensors in a program that torch.compile reads are not sharded, and it cannot ask.
            if not torch.compiler.is_compiling() and is_sharded(self):
                return function(self, *args, **kwargs)
            return before(self, *args, **kwargs)

        setattr(torch.Tensor, name, method)
        return function
    return decorate


@_instead("__repr__")
def _repr(self, *, tensor_contents=None):
    local, spec = _shard.local(self).detach(), _shard.spec_of(self)
    grad = f", grad_fn={type(self.grad_fn).__name__}" if self.grad_fn else ", requires_grad=True" if self.requires_grad else ""
    return f"ShardTensor({local!r}, {spec!r}{grad})"


_format = torch.Tensor.__format__


@_instead("__format__")
def _formatted(self, spec):
    if self.dim() == 0 and spec:
        return _format(self, spec)
    return object.__format__(self, spec)


def _refuse(name, instead):
    @_instead(name)
    def refuse(self, *args, **kwargs):
        raise memory_is_elsewhere(name, instead)


@_instead("new_tensor")
def _new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **options):
    """Plain, as torch.tensor() makes it."""
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad, **options)


@_instead("new")
def _new(self, *args, **kwargs):
    raise ShardTensorError("new() of a ShardTensor makes memory of unknown values on no rank: call new_zeros() or new_empty()")


_refuse("__array__", ".numpy()")
_refuse("__dlpack__", "")


@_instead("__deepcopy__")
def _deepcopy(self, memo):
    if id(self) in memo:
        return memo[id(self)]
    if not self.is_leaf:
        raise RuntimeError("only tensors that the program made (leaves of the graph) can be copied by deepcopy: detach() it first")
    with torch.no_grad():
        made = _shard.make(_shard.local(self).clone(), _shard.spec_of(self), False)
    made.requires_grad_(self.requires_grad)
    if self.grad is not None:
        made.grad = copy.deepcopy(self.grad, memo)
    made.__dict__ = copy.deepcopy(self.__dict__, memo)
    memo[id(self)] = made
    return made


@_instead("__reduce_ex__")
def _reduce(self, protocol):
    spec = _shard.spec_of(self)
    local = _shard.local(self)
    if local.numel() < local.untyped_storage().nbytes() // max(local.element_size(), 1):
        local = local.clone()  # a view of something larger
    return rebuild, (local, spec.mesh.parts, spec.placements, spec.cuts, self.requires_grad)


def rebuild(local, parts, words, cuts, requires_grad):
    """What a pickle of a ShardTensor calls, on the same rank of an equal mesh, which this process has made."""
    from meshrun.domain_parallel import _meshes

    spec = _shard.spec(_meshes.known(parts), words, [(list(axes), list(sizes)) for axes, sizes in cuts])
    return _shard.make(local, spec, requires_grad)


torch.serialization.add_safe_globals([rebuild])
_shard.announce_plain_leaves()
_shard.refuse_memory_of_sharded_tensors()  # numpy(), tolist()
