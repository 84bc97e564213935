"""torch's DeviceMesh and the mesh that sharded tensors have in C++, one for the other.

In a world of DistributedManager the manager gives a mesh its groups. Elsewhere the groups are those of the DeviceMesh, on whatever
backend. Making a mesh's groups is collective: all its ranks come here at the same point.
"""

import weakref

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshrun.distributed import _join
from meshrun.domain_parallel.errors import ShardTensorError
from meshrun.torch import _extension

_shard = _extension.shard
_parts = weakref.WeakKeyDictionary()  # of a DeviceMesh
_meshes = {}  # the newest DeviceMesh with these parts
_wholes = {}  # groups of all ranks of meshes with several dimensions


def native(mesh):
    """The C++ mesh of a DeviceMesh; None: the one of the enclosing `with mesh:`, else the manager's global mesh."""
    if mesh is None:
        mesh = _current()
        if mesh is None:
            return _shard.global_mesh()
    check(mesh)
    parts = _parts_of(mesh)
    if _extension.manager_is_initialized():
        return _shard.mesh_of_manager(parts)
    axes = [mesh.get_group(axis) for axis in range(mesh.ndim)]
    device = torch.device(mesh.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    return _shard.mesh_over(parts, dist.get_rank(), axes, _whole(mesh, parts, axes), device)


def check(mesh):
    """TypeError where it is no DeviceMesh."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"the mesh is {mesh!r}; a torch.distributed.DeviceMesh is expected, such as that of "
                        "DistributedManager().initialize_mesh()")


def check_same_ranks(own, mesh):
    """ShardTensorError where a DeviceMesh does not have the ranks of a C++ mesh. Their order is of no account."""
    check(mesh)
    before, after = sorted(own.parts[2]), sorted(_parts_of(mesh)[2])
    if before != after:
        raise ShardTensorError(f"a tensor on the ranks {before} of {own!r} cannot be redistributed to the ranks {after} of {mesh!r}: "
                               "both meshes need the same ranks")


def names_of(mesh):
    """Names of the axes of a DeviceMesh, also where it has none."""
    return tuple(mesh.mesh_dim_names or (f"dim_{axis}" for axis in range(mesh.ndim)))


def known(parts):
    """The C++ mesh with these parts (shape, names of axes, ranks), if this process has made such a DeviceMesh."""
    parts = _hashable(parts)
    mesh = _meshes.get(parts) or _managers(parts)
    if mesh is None:
        shape, names, ranks = parts
        raise ShardTensorError(f"this process has no mesh {', '.join(f'{n}={s}' for n, s in zip(names, shape))} on ranks "
                               f"{list(ranks)}: make it first, by DistributedManager().initialize_mesh() or init_device_mesh()")
    return native(mesh)


def device_mesh(mesh):
    """The DeviceMesh of a C++ mesh."""
    parts = _hashable(mesh.parts)
    if parts not in _meshes:
        _meshes[parts] = _managers(parts) or _made_of_groups(parts)
    return _meshes[parts]


def _current():
    from torch.distributed import device_mesh as module

    stack = getattr(getattr(module, "_mesh_resources", None), "mesh_stack", None)
    return stack[-1] if stack else None


def _hashable(parts):
    return tuple(map(tuple, parts))


def _parts_of(mesh):
    parts = _parts.get(mesh)
    if parts is None:
        parts = _parts[mesh] = (tuple(mesh.shape), names_of(mesh), tuple(mesh.mesh.flatten().tolist()))
    _meshes[parts] = mesh
    return parts


def _managers(parts):
    """The DeviceMesh of the manager's mesh, if it has these parts."""
    if not _extension.manager_is_initialized() or not _extension.manager_mesh_names():
        return None
    return _join.mesh() if _hashable(_extension.manager_mesh()) == parts else None


def _made_of_groups(parts):
    shape, names, ranks = parts
    ranks = torch.tensor(ranks).reshape(shape)
    here = [int(place) for place in (ranks == dist.get_rank()).nonzero()[0]]
    groups = []
    for axis in range(len(shape)):
        along = [slice(None) if each == axis else place for each, place in enumerate(here)]
        groups.append(_join.group_of_mesh(ranks[tuple(along)].tolist()))
    device = "cuda" if _extension.manager_cuda() else "cpu"
    return DeviceMesh.from_group(groups, device, mesh=ranks.int(), mesh_dim_names=tuple(names))


def _whole(mesh, parts, axes):
    """The group of all ranks of a mesh, in the mesh's order: pieces are counted by coordinates."""
    ranks = list(parts[2])
    if mesh.ndim == 1:
        order = dist.get_process_group_ranks(axes[0])
        if order != ranks:
            raise ShardTensorError(f"the mesh has the ranks {ranks}, and its group has them in the order {order}: initialize "
                                   "DistributedManager for such a mesh")
        return axes[0]
    if ranks != sorted(ranks):
        raise ShardTensorError(f"the ranks of a mesh of several dimensions ascend, not {ranks}: initialize DistributedManager "
                               "for other meshes")
    if ranks == list(range(dist.get_world_size())):
        return dist.group.WORLD
    key = (parts, tuple(group.group_name for group in axes))
    if key not in _wholes:
        _wholes[key] = dist.new_group(ranks, use_local_synchronization=True)
    return _wholes[key]


_join.at_forget(_meshes.clear)
