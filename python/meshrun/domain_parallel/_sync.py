"""sync_module_over_mesh: the ranks of a mesh's axis begin with the same parameters and buffers."""

import hashlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshrun.domain_parallel import _install
from meshrun.domain_parallel.errors import ShardTensorError

_BUCKET_BYTES = 250 << 20


def sync_module_over_mesh(module, mesh, src_mesh_rank=0, verify=False):
    """Collective over the mesh: each plain parameter and buffer of the module becomes that of one rank, bit by bit, in place.

    Where a domain's ranks hold the same plain parameters they must begin alike. DistributedDataParallel makes them alike along
    the data axis alone, and fully_shard() makes nothing alike: call this before fully_shard(). Sharded tensors and DTensors stay
    as they are.

    Args: `module`. `mesh`, a DeviceMesh of one dimension, such as `mesh["domain"]`. `src_mesh_rank`, the number of the rank in
    this mesh whose values are taken. `verify`: compares a digest of the values afterwards, which reads them all.

    Raises ShardTensorError on all ranks: the ranks' modules differ in names, shapes or dtypes; a meta or sparse tensor; one on
    another device than the mesh; a module that has been sharded whole; ranks that differ after all.
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"the mesh is {mesh!r}; a torch.distributed.DeviceMesh of one dimension is expected")
    if mesh.ndim != 1:
        raise ShardTensorError(f'sync_module_over_mesh takes a 1-D mesh, and this has {mesh.ndim} dimensions: name one, such as '
                               'mesh["domain"]')
    if not 0 <= src_mesh_rank < mesh.size():
        raise ShardTensorError(f"src_mesh_rank is {src_mesh_rank}, of a mesh of {mesh.size()} ranks")
    group = mesh.get_group()
    state, problem = _plain_state(module, mesh.device_type)
    _agree(problem, [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in state], group)
    source = dist.get_global_rank(group, src_mesh_rank)
    with torch.no_grad():
        for bucket in _buckets([tensor for _, tensor in state]):
            _broadcast(bucket, source, group)
    if verify:
        _verify(state, group)


def _plain_state(module, device_type):
    """Plain parameters and buffers by name, and what is wrong with them, or ""."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    tensors = [*module.named_parameters(), *module.named_buffers()]
    state = [(name, tensor.detach()) for name, tensor in tensors
             if not isinstance(tensor, DTensor) and not _install.is_sharded(tensor)]
    if isinstance(module, FSDPModule):
        return state, "the module went through fully_shard(): call sync_module_over_mesh before, while its parameters are plain"
    if tensors and not state:
        return state, "the module has parameters or buffers, and none of it is plain: it must be called before they are sharded"
    for name, tensor in state:
        if tensor.is_meta:
            return state, f"{name!r} is a meta tensor: give it memory by to_empty() first"
        if tensor.device.type != device_type:
            return state, f"{name!r} is on {tensor.device.type}, and the mesh on {device_type}"
        if tensor.layout is not torch.strided:
            return state, f"{name!r} has the layout {tensor.layout}: only dense tensors are sent"
    return state, ""


def _agree(problem, what, group):
    told = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, (problem, what), group=group)
    for rank, (other, _) in enumerate(told):
        if other:
            raise ShardTensorError(f"sync_module_over_mesh: rank {rank} of the mesh: {other}")
    for rank, (_, others) in enumerate(told):
        if others != told[0][1]:
            differing = [f"{here} and {there}" for here, there in zip(told[0][1], others) if here != there]
            text = differing[0] if differing else f"{len(told[0][1])} and {len(others)} tensors"
            raise ShardTensorError(f"sync_module_over_mesh: the module's metadata differs between ranks 0 and {rank} of the "
                                   f"mesh: {text}")


def _buckets(tensors):
    """Lists of tensors of one dtype, each as large as is sent at once, or a larger tensor alone."""
    by_dtype = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for same in by_dtype.values():
        bucket, held = [], 0
        for tensor in same:
            nbytes = tensor.numel() * tensor.element_size()
            if bucket and held + nbytes > _BUCKET_BYTES:
                yield bucket
                bucket, held = [], 0
            bucket.append(tensor)
            held += nbytes
        yield bucket


def _broadcast(tensors, source, group):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    if not flat.numel():
        return
    dist.broadcast(flat.view(torch.uint8), source, group=group)
    for tensor, piece in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(piece.view_as(tensor))


def _verify(state, group):
    digests = [hashlib.sha256(memoryview(tensor.cpu().reshape(-1).view(torch.uint8).numpy())).hexdigest() for _, tensor in state]
    told = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, digests, group=group)
    for rank, others in enumerate(told):
        for (name, _), here, there in zip(state, told[0], others):
            if here != there:
                raise ShardTensorError(f"sync_module_over_mesh: {name!r} differs between ranks 0 and {rank} afterwards")
