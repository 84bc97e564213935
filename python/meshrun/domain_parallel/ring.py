"""One step of a ring, for handlers that pass parts from rank to rank. Plain tensors; no gradients."""

import dataclasses

import torch
import torch.distributed as dist

from meshrun.domain_parallel.errors import ShardTensorError

_METHODS = ("p2p", "a2a")
_DIRECTIONS = ("forward", "backward")


def check_method(method):
    """ShardTensorError where it is none of PhysicsNeMo's communication methods."""
    if method not in _METHODS:
        raise ShardTensorError(f"communication_method is one of {', '.join(_METHODS)}, not {method!r}")


@dataclasses.dataclass
class RingPassingConfig:
    """How a ring runs: along `mesh_dim` of a mesh, which has `mesh_size` ranks; "forward" sends to the next rank, "backward" to
    the one before. `communication_method`, "p2p" or "a2a", is PhysicsNeMo's: both send to one rank and receive from one here."""

    mesh_dim: int
    mesh_size: int
    ring_direction: str = "forward"
    communication_method: str = "a2a"

    def __post_init__(self):
        check_method(self.communication_method)
        if self.ring_direction not in _DIRECTIONS:
            raise ShardTensorError(f"ring_direction is one of {', '.join(_DIRECTIONS)}, not {self.ring_direction!r}")


def perform_ring_iteration(tensor, mesh, ring_config, recv_shape=None):
    """Collective along the mesh dimension: sends this rank's tensor on and returns the one that arrives, of the same dtype and of
    `recv_shape`; None: of the same shape as this rank's."""
    received, works = _step(tensor.contiguous(), mesh, ring_config, None, recv_shape)
    for work in works:
        work.wait()
    return received


def perform_ring_iteration_async(tensor, mesh, ring_config, recv_tensor=None, recv_shape=None):
    """The same without waiting: returns the tensor that receives, and works; wait() for each of them before it is read, or
    `tensor` written. `recv_tensor`: the memory to receive into. Raises ShardTensorError: a method other than "p2p", a tensor
    that is not contiguous."""
    if ring_config.communication_method != "p2p":
        raise ShardTensorError("perform_ring_iteration_async supports only p2p communication, and the configuration says "
                               f"{ring_config.communication_method!r}")
    if not tensor.is_contiguous():
        raise ShardTensorError("perform_ring_iteration_async sends from the tensor's memory, so it takes a contiguous tensor: "
                               "call contiguous() first, and keep the result until the works have ended")
    return _step(tensor, mesh, ring_config, recv_tensor, recv_shape)


def _step(tensor, mesh, config, received, shape):
    group = mesh.get_group(config.mesh_dim)
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if received is None:
        received = torch.empty_like(tensor) if shape is None else tensor.new_empty(shape)
    if size == 1:
        received.copy_(tensor)
        return received, []
    ahead = 1 if config.ring_direction == "forward" else -1
    to, source = (dist.get_global_rank(group, (rank + step) % size) for step in (ahead, -ahead))
    return received, dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, source, group),
                                             dist.P2POp(dist.isend, tensor, to, group)])
