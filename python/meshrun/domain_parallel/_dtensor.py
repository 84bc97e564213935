"""torch's DTensor and ShardTensor, one for the other, and DTensors among the operands of an operator.

DTensor asks its own dispatcher, which does not know sharded tensors. So DTensor.__torch_function__ is replaced: where an argument is
sharded, DTensors become ShardTensors first. It runs above autograd, so a DTensor's gradient is a DTensor. All other calls go on at once.
"""

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.utils import _pytree as pytree

from meshrun.domain_parallel import _meshes
from meshrun.domain_parallel._placements import placements_of, words_of
from meshrun.domain_parallel.errors import ShardTensorError
from meshrun.torch import _extension

_shard = _extension.shard


def from_dtensor(dtensor):
    """A DTensor as a ShardTensor, in the same memory. Sends nothing. Differentiable: the gradient is a DTensor, placed as this one."""
    if not isinstance(dtensor, DTensor):
        raise TypeError(f"from_dtensor takes a torch.distributed.tensor.DTensor, not {type(dtensor).__name__}")
    words = words_of(dtensor.placements)
    local = dtensor.to_local(grad_placements=_of_gradient(dtensor.placements))
    return _shard.from_local(local, _meshes.native(dtensor.device_mesh), words, "chunk", list(dtensor.shape))


def to_dtensor(tensor):
    """A ShardTensor as a DTensor, in the same memory. Sends nothing. Differentiable.

    ShardTensorError where its pieces are not those of torch.chunk, the only ones that a DTensor has.
    """
    spec = _shard.spec_of(tensor)
    placements = placements_of(spec.placements)
    if not spec.is_chunked():
        sizes = {axis: spec.shard_sizes(axis) for axis, placement in enumerate(placements) if placement.is_shard()}
        raise ShardTensorError(f"to_dtensor: the pieces along mesh dimensions {sizes} are not those of torch.chunk, which a DTensor "
                               f"has: redistribute() to Replicate, or make a tensor of {spec.global_shape} whose pieces are")
    stride = torch.empty(spec.global_shape, device="meta").stride()
    return DTensor.from_local(_shard.to_local(tensor, None), _meshes.device_mesh(spec.mesh), placements, run_check=False,
                              shape=torch.Size(spec.global_shape), stride=stride)


def _of_gradient(placements):
    return [Replicate() if placement.is_partial() else placement for placement in placements]


def _has_sharded(values):
    for value in values:
        if _shard.is_sharded(value) or isinstance(value, (list, tuple)) and _has_sharded(value):
            return True
    return False


def _torch_function(cls, func, types, args=(), kwargs=None):
    kwargs = kwargs or {}
    if _shard.was_any_made() and (_has_sharded(args) or kwargs and _has_sharded(kwargs.values())):
        if not torch.compiler.is_compiling():
            args, kwargs = pytree.tree_map_only(DTensor, from_dtensor, (args, kwargs))
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


DTensor.__torch_function__ = classmethod(_torch_function)
