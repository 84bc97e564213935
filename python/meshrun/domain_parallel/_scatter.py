"""scatter_tensor: a tensor that one rank has becomes a ShardTensor."""

import operator

import torch

from meshrun.domain_parallel import _tensor  # gives sharded tensors their attributes
from meshrun.domain_parallel import _install, _meshes
from meshrun.domain_parallel._placements import words_of
from meshrun.domain_parallel.errors import ShardTensorError
from meshrun.torch import _extension


def scatter_tensor(tensor, global_src, mesh, placements, global_shape=None, dtype=None, requires_grad=False):
    """Collective over the mesh: each rank gets its part of rank `global_src`'s tensor, and nothing else. Returns a leaf.

    Args: `tensor`, looked at on that rank alone; None elsewhere. `global_src`: its number in the world. `mesh`, `placements` (Shard
    or Replicate). `global_shape`, `dtype`: a message tells them where one is None.

    Raises ShardTensorError on all ranks: the rank is not in the mesh, a Partial; ValueError: the source's tensor is missing, or of
    another shape or dtype than is given, or ranks call differently.
    """
    try:
        source = operator.index(global_src)
    except TypeError:
        raise ShardTensorError(f"global_src is the number of a rank, not {global_src!r}") from None
    if isinstance(tensor, torch.Tensor) and _install.is_sharded(tensor):
        raise ShardTensorError("scatter_tensor takes a plain tensor: redistribute() moves a ShardTensor")
    shape = None if global_shape is None else list(global_shape)
    return _extension.shard.scatter_tensor(tensor, source, _meshes.native(mesh), words_of(placements), shape, dtype,
                                           bool(requires_grad))
