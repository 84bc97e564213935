"""Halos, for handlers that do a local computation on neighbours' rows. Plain tensors; gradients of any order."""

import dataclasses

import torch
import torch.distributed as dist

from meshrun.distributed.autograd import indexed_all_to_all_v
from meshrun.domain_parallel.errors import ShardTensorError
from meshrun.domain_parallel.ring import check_method


@dataclasses.dataclass
class HaloConfig:
    """`halo_size` rows of dimension `tensor_dim` from each neighbour along dimension `mesh_dim` of a mesh, and
    `edge_padding_size` zeros at the two ends. `async_op` and `communication_method` are PhysicsNeMo's and change nothing here."""

    mesh_dim: int
    tensor_dim: int
    halo_size: int
    edge_padding_size: int = 0
    async_op: bool = False
    communication_method: str = "a2a"

    def __post_init__(self):
        check_method(self.communication_method)
        if self.async_op and self.communication_method == "p2p":
            raise ShardTensorError('async_op goes with communication_method="a2a" alone')


def halo_padding(tensor, mesh, halo_config):
    """Collective along the mesh dimension: this rank's tensor with its neighbours' nearest rows before and after it. Backward
    sends the halos' gradients back, which are added up. Raises ValueError on all ranks where one has fewer rows than a halo."""
    group, rank, size = _line(mesh, halo_config)
    rows, dim = halo_config.halo_size, halo_config.tensor_dim
    extent = tensor.shape[dim]
    sent = [torch.arange(0)] * size
    if rank:
        sent[rank - 1] = torch.arange(rows)
    if rank + 1 < size:
        sent[rank + 1] = torch.arange(extent - rows, extent)
    table = [[rows * (abs(source - to) == 1) for to in range(size)] for source in range(size)]
    halos = indexed_all_to_all_v(tensor, [each.to(tensor.device) for each in sent], table, dim=dim, group=group)
    before, after = halos.split([rows * (rank > 0), rows * (rank + 1 < size)], dim)
    edge = list(tensor.shape)
    edge[dim] = halo_config.edge_padding_size
    zeros = tensor.new_zeros(edge)
    return torch.cat([before if rank else zeros, tensor, after if rank + 1 < size else zeros], dim)


def unhalo_padding(tensor, mesh, halo_config):
    """The rows between the halos or zeros that halo_padding() put there. Sends nothing."""
    _, rank, size = _line(mesh, halo_config)
    before = halo_config.halo_size if rank else halo_config.edge_padding_size
    after = halo_config.halo_size if rank + 1 < size else halo_config.edge_padding_size
    return tensor.narrow(halo_config.tensor_dim, before, tensor.shape[halo_config.tensor_dim] - before - after)


def _line(mesh, config):
    group = mesh.get_group(config.mesh_dim)
    return group, dist.get_rank(group), dist.get_world_size(group)
