"""ShardTensorSpec: the mesh and placements of a ShardTensor, and which rank holds which part."""

import torch

from meshrun.domain_parallel import _meshes
from meshrun.domain_parallel._placements import placements_of, words_of
from meshrun.domain_parallel.errors import ShardTensorError
from meshrun.torch import _extension

_shard = _extension.shard


class ShardTensorSpec:
    """What a ShardTensor knows beside its part. Immutable; equal where mesh and layout are. All ranks make one alike; nothing is sent.

    Args: `mesh`, a DeviceMesh. `placements`, one for each of its dimensions. `shape`, the global one. `sharding_shapes`: None or
    "chunk" (pieces as torch.chunk cuts, DTensor's way), "split" (pieces of compute_split_shapes, in meshrun.distributed.utils),
    or a dict of mesh dimension to the shapes of the shards along it. `tensor_meta` (of torch.distributed.tensor) may be given for
    `shape`.
    """

    __slots__ = ("_native",)

    def __init__(self, mesh, placements, tensor_meta=None, *, shape=None, sharding_shapes=None, _sharding_shapes=None):
        shape = tuple(tensor_meta.shape if shape is None and tensor_meta is not None else shape or ())
        given = sharding_shapes if sharding_shapes is not None else _sharding_shapes
        words = words_of(placements)
        if isinstance(given, dict):
            self._native = _given(_meshes.native(mesh), words, shape, given)
        elif given in (None, "chunk", "split"):
            self._native = _shard.spec_by_rule(_meshes.native(mesh), words, shape, given != "split")
        else:
            raise ShardTensorError(f'sharding_shapes is None, "chunk", "split", or a dict, not {given!r}')

    @classmethod
    def _of(cls, native):
        spec = cls.__new__(cls)
        spec._native = native
        return spec

    mesh = property(lambda self: _meshes.device_mesh(self._native.mesh), doc="The DeviceMesh.")
    device_mesh = mesh
    placements = property(lambda self: placements_of(self._native.placements), doc="One for each dimension of the mesh.")
    shape = property(lambda self: torch.Size(self._native.global_shape), doc="The global shape.")
    ndim = property(lambda self: len(self._native.global_shape), doc="Of the tensor.")
    local_shape = property(lambda self: torch.Size(self._native.local_shape), doc="Of this rank's part.")

    def offsets(self, mesh_dim=None):
        """Where this rank's shard begins along each dimension of the mesh, or along one; 0 where that is no Shard."""
        ndim = len(self._native.placements)
        if mesh_dim is None:
            return [self._native.offset(axis) for axis in range(ndim)]
        if not -ndim <= mesh_dim < ndim:
            raise ShardTensorError(f"mesh dimension {mesh_dim} of a mesh with {ndim}")
        return self._native.offset(mesh_dim % ndim)

    def sharding_shapes(self):
        """{mesh dimension: shapes of the shards along it, at this rank's other coordinates}, for those that are a Shard."""
        shapes = {}
        for axis, placement in enumerate(self.placements):
            if placement.is_shard():
                here = list(self._native.local_shape)
                shapes[axis] = tuple(torch.Size([*here[:placement.dim], size, *here[placement.dim + 1:]])
                                     for size in self._native.shard_sizes(axis))
        return shapes

    def __eq__(self, other):
        return self._native == other._native if isinstance(other, ShardTensorSpec) else NotImplemented

    def __hash__(self):
        return hash(self._native)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return _rebuild, _parts(self._native)

    def __repr__(self):
        return f"ShardTensorSpec({self._native!r})"


def _given(mesh, words, shape, shapes):
    cuts = [([], [extent]) for extent in shape]
    for axis, placement in enumerate(placements_of(words)):
        if not placement.is_shard():
            continue
        dim = placement.dim % len(shape) if shape else placement.dim
        if axis not in shapes:
            raise ShardTensorError(f"sharding_shapes says nothing of mesh dimension {axis}, which is {placement!r}")
        if not 0 <= dim < len(shape) or cuts[dim][0]:
            raise ShardTensorError(f"sharding_shapes cannot tell how mesh dimension {axis} cuts dimension {placement.dim} of "
                                   f"{list(shape)}: use ShardTensor.from_local(..., sharding_shapes=\"infer\")")
        cuts[dim] = ([axis], [each[dim] for each in shapes[axis]])
    return _shard.spec(mesh, words, cuts)


def _parts(native):
    return native.mesh.parts, native.placements, native.cuts


def _rebuild(parts, words, cuts):
    return ShardTensorSpec._of(_shard.spec(_meshes.known(parts), words, cuts))
