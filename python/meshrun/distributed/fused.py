"""fused_all_reduce: many small tensors, reduced over a group in one all-reduce."""

import threading
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

import meshrun.torch as _backend  # loads the operators
from meshrun.distributed._groups import group_name

_ops = torch.ops.meshrun


class FusedAllReduceWork:
    """Handle of an asynchronous fused_all_reduce. wait() fills the result's tensors, which hold this rank's values
    before."""

    def __init__(self, handle, results):
        self._handle, self._results, self._lock = handle, results, threading.Lock()

    def is_completed(self):
        handle = self._handle
        return handle is None or _ops.is_fused_completed(handle)

    def wait(self):
        """True when the results are there; until then each call waits. Raises what the reduction raises."""
        with self._lock:
            if self._handle is not None:
                with torch.no_grad():
                    for result, reduced in zip(self._results, _ops.wait_fused(self._handle)):
                        result.copy_(reduced)
                self._handle = None
        return True


def _is_tensor_dict(tree):
    """A tensordict.TensorDict, which may be a Mapping too."""
    return hasattr(tree, "batch_size") and hasattr(tree, "keys") and hasattr(tree, "empty")


def _leaves(tree, path, found):
    """Adds (path, tensor) in the order of the keys, and returns what rebuilds the structure from tensors in that order."""
    if isinstance(tree, torch.Tensor):
        place = len(found)
        found.append((path, tree.detach()))
        return lambda tensors: tensors[place]
    if isinstance(tree, Mapping) or _is_tensor_dict(tree):
        # In the order of the keys, which is that of all ranks; the result has the mapping's own order.
        parts = {key: _leaves(tree[key], (*path, str(key)), found) for key in sorted(tree.keys(), key=str)}
        keys = list(tree.keys())

        def rebuild(tensors):
            result = tree.empty() if _is_tensor_dict(tree) else {}
            for key in keys:
                result[key] = parts[key](tensors)
            return result

        return rebuild
    if isinstance(tree, Sequence) and not isinstance(tree, (str, bytes)):
        parts = [_leaves(item, (*path, i), found) for i, item in enumerate(tree)]
        return lambda tensors: [part(tensors) for part in parts]
    raise TypeError(f"fused_all_reduce takes tensors, mappings and sequences of them, not {type(tree).__name__}")


_OPERATIONS = ("SUM", "AVG", "MIN", "MAX")


def _name_of(op):
    for name in _OPERATIONS:  # all that torch 2.11 compiles
        if op is getattr(dist.ReduceOp, name):
            return name
    return next((name for name in _OPERATIONS if op == getattr(dist.ReduceOp, name)), str(op))


def fused_all_reduce(tensors, *, op=dist.ReduceOp.SUM, group=None, buffer_dtype=None, device=None, async_op=False,
                     weight=None):
    """Reduces all tensors of a structure over a group in one all-reduce.

        metrics = fused_all_reduce({"loss": loss, "error": error}, op=dist.ReduceOp.AVG)

    tensors: a tensor, or a mapping, TensorDict or sequence of such, nested at will; any shapes, several dtypes. Returns
    the same structure: a tensor, dict, TensorDict or list; shapes, dtypes and devices as given, detached, in new
    memory. With async_op (structure, work).
    op: SUM, AVG, MIN or MAX. weight: with AVG, this rank's weight; sum(weight * x) / sum(weight).
    Floating-point and complex tensors are reduced in their common type, at least float32; integers in theirs, exactly;
    integers mixed with floats are a ValueError unless buffer_dtype names the type to reduce in. device: where the
    tensors are brought for the reduction; by default they stay. No gradient. In a group of one rank, or outside any
    group: copies. Raises ValueError on every rank where a call is wrong or differs; TypeError for other structures, on
    this rank. Source: physicsnemo.distributed.fused_all_reduce.
    """
    found = []
    rebuild = _leaves(tensors, (), found)
    leaves = [leaf for _, leaf in found]
    moved = leaves if device is None else [leaf.to(device) for leaf in leaves]
    group = group_name(group) if group is not None or dist.is_initialized() else None
    call = (moved, [".".join(map(str, path)) for path, _ in found], _name_of(op), weight, buffer_dtype, group)
    if async_op:
        handle, results = _ops.start_fused_all_reduce(*call), [leaf.clone() for leaf in leaves]
    else:
        results = [reduced.to(leaf.device) for reduced, leaf in zip(_ops.fused_all_reduce(*call), leaves)]
    result = rebuild(results)
    return (result, FusedAllReduceWork(handle, results)) if async_op else result
