"""Bagua's communication surface: process groups with communicators between and inside nodes, and collectives on them.

    import meshrun.communication as bagua

    bagua.init_process_group()
    bagua.allreduce_inplace(gradient, bagua.ReduceOp.AVG)
    inside = bagua.new_group([0, 1]).get_intra_node_communicator()

A collective counts elements alone, in row-major order; shapes may differ. It returns when its result is there, and has no
gradient. `comm` is a communicator; None stands for the default group's global one. n is comm.nranks(); `src` and `dst`
are ranks in the communicator. Every dtype of the backend is taken.

Errors: ValueError for arguments that are wrong or do not go together, on all ranks, with both sides' values (for CUDA
tensors with MESHRUN_CHECK_COLLECTIVES=1); ValueError on a rank that is not in the communicator; torch.distributed's
DistBackendError where a rank is lost or the communicator was aborted.

The collectives are operators, torch.ops.meshrun.bagua_allreduce and so on, which write into their arguments: a compiled
program keeps them. They take the key of a handle, and "" for None.

Corresponds to bagua.torch_api.communication. There a call of a rank outside the communicator returns silently.
"""

from __future__ import annotations

import enum
import pickle
from typing import List, Optional, Sequence

import torch
from torch import Tensor

from meshrun.distributed.manager import DistributedManager
from meshrun.torch import _extension

_bagua = _extension.bagua
_operators = torch.ops.meshrun

BaguaProcessGroup = _bagua.BaguaProcessGroup
Communicator = _bagua.Communicator
BaguaSingleCommunicatorPy = Communicator  # its name in Bagua

# It writes nowhere that a compiler sees.
torch.fx.node.has_side_effect(_operators.bagua_send.default)


class ReduceOp(enum.IntEnum):
    """SUM and PRODUCT take any dtype (bool: or, and), AVG floating-point and complex numbers, MIN and MAX all but complex
    ones, BOR, BAND and BXOR integers and bool."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BOR = 7
    BAND = 8
    BXOR = 9
    AVG = 10


def init_process_group(store: Optional[torch.distributed.Store] = None) -> None:
    """Makes the default group, of all ranks, after DistributedManager.initialize() where that was not called.

    Addresses are exchanged through `store`, which all ranks reach; None: the manager's. ValueError for a second call.
    """
    if not DistributedManager.is_initialized():
        DistributedManager.initialize()
    _bagua.init_process_group(store)


def is_initialized() -> bool:
    """Whether there is a default group."""
    return _bagua.is_initialized()


def new_group(ranks: Optional[Sequence[int]] = None, stream: Optional[torch.cuda.Stream] = None) -> BaguaProcessGroup:
    """A group of `ranks` (None: all), sorted. All ranks of the job call it with the same ranks, else ValueError on all.

    CUDA tensors' collectives run on `stream`; None: the default group's.
    """
    return _bagua.new_group(None if ranks is None else list(ranks), _parts(stream))


def from_torch_group(group: torch.distributed.ProcessGroup,
                     stream: Optional[torch.cuda.Stream] = None) -> BaguaProcessGroup:
    """The group of the ranks of a group of torch.distributed. All of them call it."""
    return _bagua.from_torch_group(group, _parts(stream))


def allreduce(send_tensor: Tensor, recv_tensor: Tensor, op: ReduceOp = ReduceOp.SUM,
              comm: Optional[Communicator] = None) -> None:
    """recv_tensor becomes the reduction of all ranks' send_tensor, of as many elements: the same bits on all ranks."""
    _operators.bagua_allreduce(send_tensor, recv_tensor, int(op), _key(comm))


def allreduce_inplace(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, comm: Optional[Communicator] = None) -> None:
    _operators.bagua_allreduce_inplace(tensor, int(op), _key(comm))


def allreduce_coalesced_inplace(tensors: List[Tensor], op: ReduceOp = ReduceOp.SUM,
                                comm: Optional[Communicator] = None) -> None:
    """Each tensor for itself, of any dtype and size, in one operation."""
    _operators.bagua_allreduce_coalesced_inplace(list(tensors), int(op), _key(comm))


def hierarchical_allreduce_inplace(tensor: Tensor, op: ReduceOp = ReduceOp.SUM,
                                   group: Optional[BaguaProcessGroup] = None) -> None:
    """allreduce_inplace() over a group (None: the default one): the backend itself adds on each node first."""
    allreduce_inplace(tensor, op, None if group is None else group.get_global_communicator())


def reduce(send_tensor: Tensor, recv_tensor: Optional[Tensor], dst: int, op: ReduceOp = ReduceOp.SUM,
           comm: Optional[Communicator] = None) -> None:
    """recv_tensor at `dst` becomes the reduction; elsewhere it is not used and may be None."""
    _operators.bagua_reduce(send_tensor, recv_tensor, dst, int(op), _key(comm))


def reduce_inplace(tensor: Tensor, dst: int, op: ReduceOp = ReduceOp.SUM,
                   comm: Optional[Communicator] = None) -> None:
    """The tensors of the other ranks are unchanged."""
    _operators.bagua_reduce_inplace(tensor, dst, int(op), _key(comm))


def broadcast(tensor: Tensor, src: int = 0, comm: Optional[Communicator] = None) -> None:
    _operators.bagua_broadcast(tensor, src, _key(comm))


def broadcast_coalesced(tensors: List[Tensor], src: int = 0, comm: Optional[Communicator] = None) -> None:
    _operators.bagua_broadcast_coalesced(list(tensors), src, _key(comm))


def allgather(send_tensor: Tensor, recv_tensor: Tensor, comm: Optional[Communicator] = None) -> None:
    """Block r of recv_tensor, which has n times as many elements, becomes rank r's send_tensor."""
    _operators.bagua_allgather(send_tensor, recv_tensor, _key(comm))


def allgather_inplace(tensor: Tensor, comm: Optional[Communicator] = None) -> None:
    """Block r becomes rank r's block r. The number of elements is a multiple of n."""
    _operators.bagua_allgather_inplace(tensor, _key(comm))


def gather(send_tensor: Tensor, recv_tensor: Optional[Tensor], dst: int, comm: Optional[Communicator] = None) -> None:
    """allgather() at `dst` alone; elsewhere recv_tensor is not used and may be None."""
    _operators.bagua_gather(send_tensor, recv_tensor, dst, _key(comm))


def gather_inplace(tensor: Tensor, count: int, dst: int, comm: Optional[Communicator] = None) -> None:
    """Rank r gives `count` elements; at `dst` the tensor has n * count, and its own block is filled."""
    _operators.bagua_gather_inplace(tensor, count, dst, _key(comm))


def scatter(send_tensor: Optional[Tensor], recv_tensor: Tensor, src: int, comm: Optional[Communicator] = None) -> None:
    """recv_tensor becomes this rank's block of `src`'s send_tensor, which is not used elsewhere and may be None."""
    _operators.bagua_scatter(send_tensor, recv_tensor, src, _key(comm))


def scatter_inplace(tensor: Tensor, count: int, src: int, comm: Optional[Communicator] = None) -> None:
    """The tensor of `count` elements becomes this rank's block of `src`'s, which has n * count and is unchanged."""
    _operators.bagua_scatter_inplace(tensor, count, src, _key(comm))


def reduce_scatter(send_tensor: Tensor, recv_tensor: Tensor, op: ReduceOp = ReduceOp.SUM,
                   comm: Optional[Communicator] = None) -> None:
    """recv_tensor becomes this rank's block of the reduction of send_tensor, which has n times as many elements."""
    _operators.bagua_reduce_scatter(send_tensor, recv_tensor, int(op), _key(comm))


def reduce_scatter_inplace(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, comm: Optional[Communicator] = None) -> None:
    """This rank's own block is reduced; the others are unchanged."""
    _operators.bagua_reduce_scatter_inplace(tensor, int(op), _key(comm))


def alltoall(send_tensor: Tensor, recv_tensor: Tensor, comm: Optional[Communicator] = None) -> None:
    """Block r of recv_tensor becomes what rank r has in its block for this rank."""
    _operators.bagua_alltoall(send_tensor, recv_tensor, _key(comm))


def alltoall_inplace(tensor: Tensor, comm: Optional[Communicator] = None) -> None:
    _operators.bagua_alltoall_inplace(tensor, _key(comm))


def alltoall_v(send_tensor: Tensor, send_counts: Sequence[int], send_displs: Sequence[int], recv_tensor: Tensor,
               recv_counts: Sequence[int], recv_displs: Sequence[int], comm: Optional[Communicator] = None) -> None:
    """Sends send_counts[r] elements from send_displs[r] on to rank r; writes those of rank r from recv_displs[r] on."""
    _operators.bagua_alltoall_v(send_tensor, list(send_counts), list(send_displs), recv_tensor, list(recv_counts),
                                list(recv_displs), _key(comm))


def alltoall_v_inplace(tensor: Tensor, send_counts: Sequence[int], send_displs: Sequence[int],
                       recv_counts: Sequence[int], recv_displs: Sequence[int],
                       comm: Optional[Communicator] = None) -> None:
    """What is sent is what the tensor held before the call."""
    _operators.bagua_alltoall_v_inplace(tensor, list(send_counts), list(send_displs), list(recv_counts),
                                        list(recv_displs), _key(comm))


def send(tensor: Tensor, dst: int, comm: Optional[Communicator] = None) -> None:
    _operators.bagua_send(tensor, dst, _key(comm))


def recv(tensor: Tensor, src: int, comm: Optional[Communicator] = None) -> None:
    _operators.bagua_recv(tensor, src, _key(comm))


def barrier(comm: Optional[Communicator] = None) -> None:
    """Waits until all ranks of the communicator have called it."""
    _bagua.barrier(_key(comm))


def broadcast_object(obj: object, src: int = 0, comm: Optional[Communicator] = None) -> object:
    """The object of rank `src`, by pickle; at `src` the object itself. ValueError on all ranks where `src` cannot pickle
    its object, with the reason."""
    is_src = _bagua.rank(_key(comm)) == src
    data, is_object = b"", True
    if is_src:
        try:
            data = pickle.dumps(obj)
        except Exception as error:
            data, is_object = f"{type(error).__name__}: {error}".encode(), False
    head = torch.tensor([len(data), is_object])
    broadcast(head, src, comm)
    size, is_object = head.tolist()
    body = torch.frombuffer(bytearray(data) if is_src else bytearray(size), dtype=torch.uint8) if size else head[:0].byte()
    broadcast(body, src, comm)
    data = body.numpy().tobytes() if size else b""
    if not is_object:
        raise ValueError(f"broadcast_object: rank {src} cannot write its object as bytes: {data.decode()}")
    return obj if is_src else pickle.loads(data)


def _key(comm: Optional[Communicator]) -> str:
    return "" if comm is None else comm.key


def _parts(stream: Optional[torch.cuda.Stream]):
    return None if stream is None else (stream.stream_id, stream.device_index, stream.device_type)
