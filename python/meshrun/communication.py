"""Bagua's communication surface: process groups with communicators between and inside nodes, and collectives on them.

    import meshrun.communication as bagua

    bagua.init_process_group()
    bagua.allreduce_inplace(gradient, bagua.ReduceOp.AVG)
    inside = bagua.new_group([0, 1]).get_intra_node_communicator()

A collective counts elements alone, in row-major order; shapes may differ. It returns when its result is there, and has no
gradient. `comm` is a communicator; None stands for the default group's global one. n is comm.nranks(); `src` and `dst`
are ranks in the communicator. Every dtype of the backend is taken.

Errors: ValueError for arguments that are wrong or do not go together, on all ranks, with both sides' values (for CUDA
tensors with MESHRUN_CHECK_COLLECTIVES=1), also for what is not a dense tensor, a list or an integer; ValueError on the
calling rank alone for an argument of send() and recv(), and on a rank that is not in the communicator; TypeError, there
alone, where `comm` is not a communicator; torch.distributed's DistBackendError where a rank is lost or the communicator
was aborted.

The collectives are operators, torch.ops.meshrun.bagua_allreduce and so on, which write into their arguments. They take the
key of a handle, and "" for None. A compiled program keeps every call of the functions here, and of the operators those
whose tensors it reads afterwards.

Corresponds to bagua.torch_api.communication. There a call of a rank outside the communicator returns silently.
"""

from __future__ import annotations

import enum
import operator
import pickle
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

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
    _joined()
    _bagua.init_process_group(store)


def is_initialized() -> bool:
    """Whether there is a default group."""
    return _bagua.is_initialized()


def get_rank() -> int:
    """This rank's number in the world. Like the three functions below it joins the job where nothing has done so yet."""
    return _joined().rank


def get_world_size() -> int:
    return _joined().world_size


def get_local_rank() -> int:
    """This rank's number on its node."""
    return _joined().local_rank


def get_local_size() -> int:
    """Ranks on this node."""
    return _joined().local_world_size


def new_group(ranks: Optional[Sequence[int]] = None, stream: Optional[torch.Stream] = None) -> BaguaProcessGroup:
    """A group of `ranks` (None: all), sorted. All ranks of the job call it with the same ranks, else ValueError on all.

    CUDA tensors' collectives run on `stream`; None: the default group's. On the CPU it has no effect.
    """
    return _bagua.new_group(None if ranks is None else list(ranks), stream)


def from_torch_group(group: torch.distributed.ProcessGroup,
                     stream: Optional[torch.Stream] = None) -> BaguaProcessGroup:
    """The group of the ranks of a group of torch.distributed. All of them call it."""
    return _bagua.from_torch_group(group, stream)


def allreduce(send_tensor: Tensor, recv_tensor: Tensor, op: ReduceOp = ReduceOp.SUM,
              comm: Optional[Communicator] = None) -> None:
    """recv_tensor becomes the reduction of all ranks' send_tensor, of as many elements: the same bits on all ranks."""
    _call("allreduce", comm, send_tensor=send_tensor, recv_tensor=recv_tensor, op=op)


def allreduce_inplace(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, comm: Optional[Communicator] = None) -> None:
    _call("allreduce_inplace", comm, tensor=tensor, op=op)


def allreduce_coalesced_inplace(tensors: List[Tensor], op: ReduceOp = ReduceOp.SUM,
                                comm: Optional[Communicator] = None) -> None:
    """Each tensor for itself, of any dtype and size, in one operation."""
    _call("allreduce_coalesced_inplace", comm, tensors=tensors, op=op)


def hierarchical_allreduce_inplace(tensor: Tensor, op: ReduceOp = ReduceOp.SUM,
                                   group: Optional[BaguaProcessGroup] = None) -> None:
    """allreduce_inplace() over a group (None: the default one): the backend itself adds on each node first."""
    allreduce_inplace(tensor, op, None if group is None else group.get_global_communicator())


def reduce(send_tensor: Tensor, recv_tensor: Optional[Tensor], dst: int, op: ReduceOp = ReduceOp.SUM,
           comm: Optional[Communicator] = None) -> None:
    """recv_tensor at `dst` becomes the reduction; elsewhere it is not used and may be None."""
    _call("reduce", comm, send_tensor=send_tensor, recv_tensor=recv_tensor, dst=dst, op=op)


def reduce_inplace(tensor: Tensor, dst: int, op: ReduceOp = ReduceOp.SUM,
                   comm: Optional[Communicator] = None) -> None:
    """The tensors of the other ranks are unchanged."""
    _call("reduce_inplace", comm, tensor=tensor, dst=dst, op=op)


def broadcast(tensor: Tensor, src: int = 0, comm: Optional[Communicator] = None) -> None:
    _call("broadcast", comm, tensor=tensor, src=src)


def broadcast_coalesced(tensors: List[Tensor], src: int = 0, comm: Optional[Communicator] = None) -> None:
    _call("broadcast_coalesced", comm, tensors=tensors, src=src)


def allgather(send_tensor: Tensor, recv_tensor: Tensor, comm: Optional[Communicator] = None) -> None:
    """Block r of recv_tensor, which has n times as many elements, becomes rank r's send_tensor."""
    _call("allgather", comm, send_tensor=send_tensor, recv_tensor=recv_tensor)


def allgather_inplace(tensor: Tensor, comm: Optional[Communicator] = None) -> None:
    """Block r becomes rank r's block r. The number of elements is a multiple of n."""
    _call("allgather_inplace", comm, tensor=tensor)


def gather(send_tensor: Tensor, recv_tensor: Optional[Tensor], dst: int, comm: Optional[Communicator] = None) -> None:
    """allgather() at `dst` alone; elsewhere recv_tensor is not used and may be None."""
    _call("gather", comm, send_tensor=send_tensor, recv_tensor=recv_tensor, dst=dst)


def gather_inplace(tensor: Tensor, count: int, dst: int, comm: Optional[Communicator] = None) -> None:
    """Rank r gives `count` elements; at `dst` the tensor has n * count, and its own block is filled."""
    _call("gather_inplace", comm, tensor=tensor, count=count, dst=dst)


def scatter(send_tensor: Optional[Tensor], recv_tensor: Tensor, src: int, comm: Optional[Communicator] = None) -> None:
    """recv_tensor becomes this rank's block of `src`'s send_tensor, which is not used elsewhere and may be None."""
    _call("scatter", comm, send_tensor=send_tensor, recv_tensor=recv_tensor, src=src)


def scatter_inplace(tensor: Tensor, count: int, src: int, comm: Optional[Communicator] = None) -> None:
    """The tensor of `count` elements becomes this rank's block of `src`'s, which has n * count and is unchanged."""
    _call("scatter_inplace", comm, tensor=tensor, count=count, src=src)


def reduce_scatter(send_tensor: Tensor, recv_tensor: Tensor, op: ReduceOp = ReduceOp.SUM,
                   comm: Optional[Communicator] = None) -> None:
    """recv_tensor becomes this rank's block of the reduction of send_tensor, which has n times as many elements."""
    _call("reduce_scatter", comm, send_tensor=send_tensor, recv_tensor=recv_tensor, op=op)


def reduce_scatter_inplace(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, comm: Optional[Communicator] = None) -> None:
    """This rank's own block is reduced; the others are unchanged."""
    _call("reduce_scatter_inplace", comm, tensor=tensor, op=op)


def alltoall(send_tensor: Tensor, recv_tensor: Tensor, comm: Optional[Communicator] = None) -> None:
    """Block r of recv_tensor becomes what rank r has in its block for this rank."""
    _call("alltoall", comm, send_tensor=send_tensor, recv_tensor=recv_tensor)


def alltoall_inplace(tensor: Tensor, comm: Optional[Communicator] = None) -> None:
    _call("alltoall_inplace", comm, tensor=tensor)


def alltoall_v(send_tensor: Tensor, send_counts: Sequence[int], send_displs: Sequence[int], recv_tensor: Tensor,
               recv_counts: Sequence[int], recv_displs: Sequence[int], comm: Optional[Communicator] = None) -> None:
    """Sends send_counts[r] elements from send_displs[r] on to rank r; writes those of rank r from recv_displs[r] on."""
    _call("alltoall_v", comm, send_tensor=send_tensor, send_counts=send_counts, send_displs=send_displs,
          recv_tensor=recv_tensor, recv_counts=recv_counts, recv_displs=recv_displs)


def alltoall_v_inplace(tensor: Tensor, send_counts: Sequence[int], send_displs: Sequence[int],
                       recv_counts: Sequence[int], recv_displs: Sequence[int],
                       comm: Optional[Communicator] = None) -> None:
    """What is sent is what the tensor held before the call."""
    _call("alltoall_v_inplace", comm, tensor=tensor, send_counts=send_counts, send_displs=send_displs,
          recv_counts=recv_counts, recv_displs=recv_displs)


def send(tensor: Tensor, dst: int, comm: Optional[Communicator] = None) -> None:
    _call("send", comm, tensor=tensor, dst=dst)


def recv(tensor: Tensor, src: int, comm: Optional[Communicator] = None) -> None:
    _call("recv", comm, tensor=tensor, src=src)


def barrier(comm: Optional[Communicator] = None) -> None:
    """Waits until all ranks of the communicator have called it."""
    _bagua.barrier(_key(comm))


def broadcast_object(obj: object, src: int = 0, comm: Optional[Communicator] = None) -> object:
    """The object of rank `src`, by pickle; at `src` the object itself. ValueError on all ranks where `src` cannot pickle
    its object, with the reason."""
    # A `src` of a wrong type is refused by broadcast().
    is_src = not _problem_of_int("src", src) and _bagua.rank(_key(comm)) == operator.index(src)
    data, is_object = b"", True
    if is_src:
        try:
            data = pickle.dumps(obj)
        except Exception as error:
            data, is_object = f"{type(error).__name__}: {error}".encode(), False
    head = torch.tensor([len(data), is_object], device="cpu")  # not torch.set_default_device()'s
    broadcast(head, src, comm)
    size, is_object = head.tolist()
    body = torch.frombuffer(bytearray(data) if is_src else bytearray(size), dtype=torch.uint8) if size else head[:0].byte()
    broadcast(body, src, comm)
    data = body.numpy().tobytes() if size else b""
    if not is_object:
        raise ValueError(f"broadcast_object: rank {src} cannot write its object as bytes: {data.decode()}")
    return obj if is_src else pickle.loads(data)


def _joined() -> DistributedManager:
    if not DistributedManager.is_initialized():
        DistributedManager.initialize()
    return DistributedManager()


def _key(comm: Optional[Communicator]) -> str:
    if comm is None:
        return ""
    if not isinstance(comm, Communicator):
        raise TypeError(f"comm must be a Communicator, as get_global_communicator() returns, and is {_kind(comm)}")
    return comm.key


# Arguments that ranks which do not use them may leave out.
_OPTIONAL = {("reduce", "recv_tensor"), ("gather", "recv_tensor"), ("scatter", "send_tensor")}


def _call(name: str, comm: Optional[Communicator], **arguments: object) -> None:
    """Calls an operator with arguments in the order of its schema. What PyTorch's dispatcher would refuse on this rank
    alone is refused here, on all ranks."""
    key, problem = _key(comm), ""
    for argument, value in arguments.items():
        if argument.endswith("tensor"):
            is_left_out = value is None and (name, argument) in _OPTIONAL
            problem = problem or ("" if is_left_out else _problem_of_tensor(argument, value))
        elif argument.endswith("s"):
            found, arguments[argument] = _listed(argument, value)
            problem = problem or found
        elif isinstance(value, ReduceOp):
            arguments[argument] = int(value)  # which the dispatcher converts in less time
        elif argument == "op":
            problem = problem or _problem_of_op(value)
        else:
            problem = problem or _problem_of_int(argument, value)
    if problem:
        _refuse(f"{name}: {problem}", name, key, arguments)
    call = getattr(_operators, f"bagua_{name}")
    if torch.compiler.is_compiling():
        _trace(call, arguments, key)
    else:
        call(*arguments.values(), key)


def _trace(call: torch._ops.OpOverloadPacket, arguments: Dict[str, object], key: str) -> None:
    """In a program that is traced. A compiler drops a call whose tensors this rank does not read afterwards, though other
    ranks wait for it: so an operator with an effect reads them."""
    if arguments.get("recv_tensor", key) is None:  # a call that writes nothing here has nothing to read
        arguments["recv_tensor"] = arguments["send_tensor"].new_empty(0)
    call(*arguments.values(), key)
    names = [name for name in ("recv_tensor", "tensor", "tensors") if name in arguments]
    written = [tensor for name in names for tensor in (arguments[name] if name == "tensors" else [arguments[name]])]
    if written:
        _operators.bagua_keep([tensor.detach() for tensor in written])


def _problem_of_tensor(argument: str, value: object) -> str:
    if not isinstance(value, Tensor):
        return f"{argument} must be a tensor, and is {_kind(value)}"
    if hasattr(value, "to_local"):
        return f"{argument} is {_kind(value)}, and collectives take local tensors: pass its to_local()"
    if argument.startswith("tensors") and not torch.compiler.is_compiling() and (value.is_conj() or value.is_neg()):
        return f"{argument} is conjugated or negated in its bits alone: pass its resolve_conj().resolve_neg()"
    return f"{argument} is a nested tensor, and must be a dense one" if value.is_nested else ""


def _problem_of_op(value: object) -> str:
    found = _problem_of_int("op", value)
    return found and f"op must be a member of meshrun.communication.ReduceOp, such as ReduceOp.SUM, and is {value!r}"


def _problem_of_int(argument: str, value: object) -> str:
    try:
        number = value if isinstance(value, int) else operator.index(value)
    except (TypeError, RuntimeError):  # of a tensor
        return f"{argument} must be an integer, and is {_kind(value)}"
    return "" if -2**63 <= number < 2**63 else f"{argument} is {number}, which 64 bits cannot hold"


def _listed(argument: str, values: object) -> Tuple[str, list]:
    """What is wrong with a list of tensors or of numbers, and the list."""
    if isinstance(values, (Tensor, str)) or not isinstance(values, Iterable):
        return f"{argument} must be a list, and is {_kind(values)}", []
    listed = list(values)
    problem_of = _problem_of_tensor if argument == "tensors" else _problem_of_int
    problems = [problem_of(f"{argument}[{i}]", value) for i, value in enumerate(listed)]
    return next(filter(None, problems), ""), listed


def _refuse(problem: str, name: str, key: str, arguments: Dict[str, object]) -> None:
    """ValueError, also on the other ranks, which come to a collective."""
    if name in ("send", "recv"):
        raise ValueError(problem)
    flat = [one for value in arguments.values() for one in (value if isinstance(value, list) else [value])]
    device = next((str(one.device) for one in flat if isinstance(one, Tensor)), None)
    _bagua.refuse(key, device, problem)


def _kind(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
