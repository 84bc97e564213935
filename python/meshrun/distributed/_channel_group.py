"""What a layer whose channels are split over a group does with its tensors, and parameters in pieces."""

import math
from typing import Dict, List, Optional

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

import meshrun.torch as _backend  # loads the operators
from meshrun.distributed._groups import group_name
from meshrun.distributed.utils import compute_split_shapes

_ops = torch.ops.meshrun


class ChannelGroup:
    """A group's collectives on pieces of compute_split_shapes; in a group of one rank every call returns its input.

                          forward                    backward
        all_gather        all ranks' pieces          sum over ranks, this rank's piece
        reduce_scatter    sum, this rank's piece     all ranks' pieces

    copy_to, reduce_from, gather_from and scatter_to are those of mappings.py. all_gather and reduce_scatter are for
    whole tensors that ranks use differently: each holds a part of the cotangent. """

    def __init__(self, group):
        self.name = group_name(group)
        handle = c10d._resolve_process_group(self.name)
        self.size, self.rank = dist.get_world_size(handle), dist.get_rank(handle)
        self.ranks = dist.get_process_group_ranks(handle)

    def sizes(self, extent: int) -> List[int]:
        return compute_split_shapes(extent, self.size)

    def piece(self, extent: int) -> slice:
        """This rank's part of a dimension."""
        sizes = self.sizes(extent)
        begin = sum(sizes[:self.rank])
        return slice(begin, begin + sizes[self.rank])

    def all_gather(self, piece: Tensor, dim: int, extent: int) -> Tensor:
        return piece if self.size == 1 else _ops.all_gather_v(piece, self.sizes(extent), dim, True, self.name)

    def reduce_scatter(self, whole: Tensor, dim: int) -> Tensor:
        if self.size == 1:
            return whole
        return _ops.reduce_scatter_v(whole, self.sizes(whole.shape[dim]), dim, True, self.name)

    def copy_to(self, whole: Tensor) -> Tensor:
        return whole if self.size == 1 else _ops.copy_to_parallel_region(whole, self.name)

    def reduce_from(self, part: Tensor) -> Tensor:
        return part if self.size == 1 else _ops.reduce_from_parallel_region(part, self.name)

    def gather_from(self, piece: Tensor, dim: int, extent: int) -> Tensor:
        return piece if self.size == 1 else _ops.gather_from_parallel_region(piece, dim, self.sizes(extent), self.name)

    def scatter_to(self, whole: Tensor, dim: int) -> Tensor:
        return whole if self.size == 1 else _ops.scatter_to_parallel_region(whole, dim, self.name)

    def agree(self, options: str, problem: str) -> str:
        """Collective: the first problem of a rank, or how its options differ, in the same words on all; else empty."""
        return problem if self.size == 1 else _ops.difference_between_ranks(self.name, options, problem)

    def broadcast_from_first(self, value: int) -> int:
        """Collective: the number of the group's rank 0."""
        if self.size == 1:
            return value
        told = [value]
        dist.broadcast_object_list(told, group=c10d._resolve_process_group(self.name), group_src=0)
        return told[0]

    def raise_on_all(self, tensor: Optional[Tensor], problem: str) -> None:
        """ValueError, also on the other ranks, which are in a collective or come to one."""
        if self.size > 1:
            _ops.raise_on_all_ranks(tensor, self.name, problem)
        raise ValueError(problem)


class ShardedModule(nn.Module):
    """A module that holds some parameters in pieces, cut from the unsharded parameters' initial values along one
    dimension.

    A piece is an ordinary parameter with an ordinary gradient. state_dict() holds pieces; full_state_dict() what one
    rank alone would have, which load_full_state_dict() takes with any number of ranks. """

    def __init__(self, channels: ChannelGroup):
        super().__init__()
        self._channels = channels
        self._cut: Dict[str, int] = {}

    def register_shard(self, name: str, whole: Tensor, dim: int) -> None:
        """This rank's piece along `dim`, a copy; -1: all of it."""
        if dim >= 0:
            self._cut[name] = dim
        self.register_parameter(name, nn.Parameter(self._piece(name, whole).clone()))

    def parameter_shards(self) -> Dict[str, int]:
        """The dimension along which each sharded parameter is cut, by the names of named_parameters()."""
        return {f"{path}.{name}" if path else name: dim for path, module in self.named_modules()
                if isinstance(module, ShardedModule) for name, dim in module._cut.items()}

    def pieces_overwritten(self) -> str:
        """Why DistributedDataParallel, in whose forward pass this is, would mix pieces of different ranks; else empty."""
        ddp = nn.parallel.DistributedDataParallel._active_ddp_module
        if ddp is None or self._channels.size == 1:
            return ""
        others = set(self._channels.ranks) - {dist.get_rank()}
        if others.isdisjoint(dist.get_process_group_ranks(ddp.process_group)):
            return ""
        pieces = {id(self.get_parameter(name)) for name in self.parameter_shards()}
        averaged = [name for name, parameter in ddp.module.named_parameters()
                    if id(parameter) in pieces and name not in ddp.parameters_to_ignore]
        if not averaged:
            return ""
        return (f"DistributedDataParallel over ranks that hold other pieces of {averaged[0]!r} has overwritten them with those "
                "of one rank: wrap the model before training starts with process_group=, a group of ranks that hold the same "
                "pieces, such as the \"data\" axis of a mesh")

    def holds_pieces(self) -> bool:
        """Whether other ranks hold other pieces of a parameter of this module itself."""
        return self._channels.size > 1 and bool(self._cut)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Collective: scales all gradients so that the norm of the unsharded gradients is at most `max_norm`, and returns
        that norm, which is equal on all ranks, in float32 at least. torch.nn.utils.clip_grad_norm_ would take each rank's
        own norm."""
        cut = self.parameter_shards()
        gradients = {name: value.grad for name, value in self.named_parameters() if value.grad is not None}
        total = _norm([gradient for name, gradient in gradients.items() if name in cut], norm_type)
        whole = _norm([gradient for name, gradient in gradients.items() if name not in cut], norm_type)
        if math.isinf(norm_type):
            op, joined = (dist.ReduceOp.MAX, torch.maximum) if norm_type > 0 else (dist.ReduceOp.MIN, torch.minimum)
            total = joined(self._reduced(total, op), whole)
        else:
            total = (self._reduced(total**norm_type, dist.ReduceOp.SUM) + whole**norm_type) ** (1 / norm_type)
        nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, total)
        return total

    def _reduced(self, value: Tensor, op: dist.ReduceOp) -> Tensor:
        if self._channels.size > 1:
            device = next(self.parameters()).device
            value = value.to(device)
            dist.all_reduce(value, op, group=c10d._resolve_process_group(self._channels.name))
        return value

    @torch.no_grad()
    def full_state_dict(self) -> Dict[str, Tensor]:
        """Collective: the unsharded parameters, on every rank, without gradients."""
        cut = self.parameter_shards()
        return {name: self._gathered(value, cut[name]) if name in cut else value.detach().clone()
                for name, value in self.state_dict().items()}

    @torch.no_grad()
    def load_full_state_dict(self, state: Dict[str, Tensor]) -> None:
        """Takes this rank's pieces of unsharded parameters. Raises RuntimeError where names or shapes do not fit."""
        cut = self.parameter_shards()
        self.load_state_dict({name: value[(slice(None),) * cut[name] + (self._channels.piece(value.shape[cut[name]]),)]
                              if name in cut else value for name, value in state.items()})

    def _piece(self, name: str, whole: Tensor) -> Tensor:
        dim = self._cut.get(name)
        return whole if dim is None else whole[(slice(None),) * dim + (self._channels.piece(whole.shape[dim]),)]

    def _gathered(self, piece: Tensor, dim: int) -> Tensor:
        if self._channels.size == 1:
            return piece.detach().clone()
        return _ops.all_gather_v(piece.detach(), None, dim, True, self._channels.name)


def _norm(gradients: List[Tensor], norm_type: float) -> Tensor:
    """Their norm; of none, what changes no other rank's. Powers of a float16 norm would overflow from 256 on."""
    if not gradients:
        return torch.tensor(math.inf if norm_type == -math.inf else 0.0)
    norms = [torch.linalg.vector_norm(gradient, norm_type, dtype=torch.promote_types(gradient.dtype, torch.float32))
             for gradient in gradients]
    return nn.utils.get_total_norm(norms, norm_type)


class Weights(ShardedModule):
    """A layer's weight and bias; it computes nothing."""

    def __init__(self, channels: ChannelGroup, weight: Tensor, weight_dim: int, bias: Optional[Tensor] = None,
                 bias_dim: int = -1):
        super().__init__(channels)
        self.register_shard("weight", weight, weight_dim)
        if bias is not None:
            self.register_shard("bias", bias, bias_dim)
