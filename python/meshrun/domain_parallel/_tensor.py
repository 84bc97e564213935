"""ShardTensor: one global tensor on many ranks."""

import torch

from meshrun.domain_parallel import _compile, _dtensor, _handlers, _install, _meshes, _promotion, _random, _wrappers  # noqa: F401
from meshrun.domain_parallel._placements import words_of
from meshrun.domain_parallel._spec import ShardTensorSpec
from meshrun.domain_parallel.errors import ShardTensorError
from meshrun.torch import _extension

_shard = _extension.shard


_HANDLERS = {
    "_dispatch_registry": _handlers.Registry(_handlers.register_for_operator),
    "_function_registry": _handlers.Registry(_handlers.register_for_function),
    "_named_function_registry": _handlers.Registry(_handlers.register_by_name),
}


class _Type(type(torch.Tensor)):
    def __instancecheck__(cls, value):
        return _shard.is_sharded(value)

    def __setattr__(cls, name, value):
        if name in _HANDLERS:
            _HANDLERS[name].become(value)
        else:
            super().__setattr__(name, value)

    @property
    def _enable_shard_patches(cls):
        return _shard.patches_enabled()

    @_enable_shard_patches.setter
    def _enable_shard_patches(cls, enabled):
        _shard.exclude_patches(not enabled)


class ShardTensor(torch.Tensor, metaclass=_Type):
    """A tensor of the global shape whose memory is this rank's part. Pieces may be uneven and empty.

    Every operator of PyTorch takes it; docs/shard_tensor.md lists what each moves between ranks. Gradients have the placements of
    their tensors. In memory it is a plain torch.Tensor: `isinstance(x, ShardTensor)` is how to ask for one, type(x) is torch.Tensor.
    All ranks of the mesh call alike, in the same order.

    Each has, beside what tensors have: `device_mesh`, `placements`, `spec`, offsets(), to_local(), full_tensor(), redistribute().
    It prints, pickles and copies as this rank's part with its spec. numpy(), tolist() and the like raise ShardTensorError.

    Args: `local_tensor`, of the spec's local shape, whose history is dropped (from_local() keeps it); `spec`. The result is a leaf.
    """

    def __new__(cls, local_tensor, spec, *, requires_grad=False):
        if not isinstance(spec, ShardTensorSpec):
            raise TypeError(f"the spec is {spec!r}; a ShardTensorSpec is expected, such as that of another ShardTensor")
        return _shard.make(local_tensor, spec._native, bool(requires_grad))

    @staticmethod
    def from_local(local_tensor, device_mesh=None, placements=None, sharding_shapes="infer", global_shape=None, *,
                   grad_placements=None):
        """Collective with "infer": the ranks' parts as one tensor. Differentiable.

        Args: `local_tensor`, this rank's part. `device_mesh`: None: that of the enclosing `with mesh:`, else the manager's.
        `placements`: None: Replicate. `sharding_shapes`: "infer": the ranks tell each other, in one small message; "chunk": as
        torch.chunk cuts, which sends nothing where `global_shape` is given; or a dict of mesh dimension to the shapes of the shards along
        it, the same on all ranks, which sends nothing. `grad_placements`: where the gradient goes before its local part comes back;
        None: to the tensor's own, Replicate for a Partial.

        Raises ShardTensorError on all ranks: parts that make no grid, placements or dtypes that differ, a `global_shape` that the
        parts do not make. With "infer" a mistake of one rank is told on all.
        """
        shapes = sharding_shapes
        if isinstance(shapes, dict):
            shapes = {axis: [list(shape) for shape in along] for axis, along in shapes.items()}
        # One rank's part does not tell the global shape: the last chunks are shorter.
        is_chunk_of_unknown = isinstance(shapes, str) and shapes == "chunk" and global_shape is None
        made = _shard.from_local(local_tensor, _meshes.native(device_mesh), words_of(placements),
                                 "infer" if is_chunk_of_unknown else shapes, None if global_shape is None else list(global_shape),
                                 words_of(grad_placements))
        spec = _shard.spec_of(made)
        if is_chunk_of_unknown and not spec.is_chunked():
            raise ShardTensorError(f"the parts are not those that torch.chunk makes of {spec.global_shape}: {spec!r}")
        return made

    @classmethod
    def from_dtensor(cls, dtensor):
        """A DTensor as a ShardTensor, in the same memory. Sends nothing. Differentiable: the gradient is a DTensor, placed alike."""
        return _dtensor.from_dtensor(dtensor)

    @classmethod
    def register_dispatch_handler(cls, op, handler):
        """From now on `op` (torch.ops.aten.mul.Tensor) of sharded tensors is handler(*args, **kwargs).

        It runs below autograd: LibTorch's own derivative stays. `_local_tensor` and `_spec` take tensors apart, and
        ShardTensor(local, spec) makes one. `del ShardTensor._dispatch_registry[op]` brings back what was there before.
        """
        cls._dispatch_registry[op] = handler

    @classmethod
    def register_function_handler(cls, func, handler):
        """From now on a call of `func` with sharded tensors is handler(func, types, args, kwargs).

        It runs above autograd, and makes its own graph: to_local(), operators, from_local(). Plain tensors with dimensions come as
        Replicate. `func` may be a function or method of torch (torch.mul, torch.Tensor.mul: then the operator is meant, however it is
        called), or a function of Python's that a module has by its name (torch.nn.functional.interpolate).
        """
        cls._function_registry[func] = handler

    @classmethod
    def register_named_function_handler(cls, func_name, handler):
        """The same for an operator that torch.library.custom_op() has defined: "module.name.default"."""
        cls._named_function_registry[func_name] = handler

    @classmethod
    def patches_enabled(cls):
        """Whether function handlers run on this thread: since a ShardTensor was made in this process."""
        return _shard.patches_enabled()

    @classmethod
    def get_promotion_mode(cls):
        return _promotion.get()

    @classmethod
    def set_promotion_mode(cls, mode):
        """What a plain tensor means beside sharded ones, on this thread: a TensorPromotionMode, or its value."""
        _promotion.put(mode)

    @classmethod
    def promotion_mode(cls, mode):
        """The same within a `with`."""
        return _promotion.within(mode)


for _name, _registry in _HANDLERS.items():
    type.__setattr__(ShardTensor, _name, _registry)


# -- what tensors get --

def _redistribute(self, device_mesh=None, placements=None, *, async_op=False):
    """Collective: the same tensor in another layout. Differentiable; gradients come back to this tensor's mesh.

    Args: `device_mesh`: None: its own; another one has the same ranks, in any arrangement and order. `placements`: Shard or Replicate
    for each dimension of the mesh. `async_op`: returns at once; the result's first use waits. Raises ShardTensorError: no placements,
    a Partial, a mesh of other ranks.
    """
    on = None
    if device_mesh is not None:
        # Before native(), which connects the mesh's groups: ranks that do not call would be waited for.
        _meshes.check_same_ranks(_shard.spec_of(self).mesh, device_mesh)
        on = _meshes.native(device_mesh)
    return _shard.redistribute(self, on, words_of(placements), bool(async_op))


def _full_tensor(self, *, grad_placements=None):
    """Collective: the whole tensor, on all ranks, as a plain one. Differentiable; `grad_placements` is the layout of the gradient
    that comes back."""
    return _shard.full_tensor(self, words_of(grad_placements))


def _to_local(self, *, grad_placements=None):
    """This rank's part as a plain tensor, in the same memory; a Partial stays one. Differentiable; `grad_placements` says what the
    local gradients are together."""
    return _shard.to_local(self, words_of(grad_placements))


def _offsets(self, mesh_dim=None):
    """Where this rank's shard begins along each dimension of the mesh, or along one; 0 where that is no Shard."""
    return ShardTensorSpec._of(_shard.spec_of(self)).offsets(mesh_dim)


def _spec_of(tensor):
    return ShardTensorSpec._of(_shard.spec_of(tensor))


_install.attributes(
    ShardTensor,
    values={
        "_local_tensor": _shard.local,
        "_spec": _spec_of,
        "spec": _spec_of,
        "placements": lambda tensor: _spec_of(tensor).placements,
        "device_mesh": lambda tensor: _spec_of(tensor).mesh,
    },
    methods={"to_dtensor": _dtensor.to_dtensor, "redistribute": _redistribute, "full_tensor": _full_tensor, "to_local": _to_local, "offsets": _offsets})
