"""Collectives on uneven pieces, with gradients of any order.

The names, argument order and defaults are those of physicsnemo.distributed.autograd; `group` and `sizes` as in
utils.py. The functions are operators of PyTorch (torch.ops.meshrun.*), so torch.compile traces through them.

A backward pass runs on all ranks of the group or on none: a rank whose loss does not use a result calls tie(); one that
forgets it and calls the backward of another result gets a ValueError, as all do (in compiled graphs that is not noticed,
and equal shapes are added up). Results
never share memory with arguments. float16 and bfloat16 gradients are added in float32 unless use_fp32 is False.
"""

import torch

import meshrun.torch as _backend  # loads the operators
from meshrun.distributed._groups import group_name
from meshrun.distributed.utils import _flat

_ops = torch.ops.meshrun

__all__ = ["AllGatherVAutograd", "GatherVAutograd", "IndexedAllToAllVAutograd", "ScatterVAutograd", "all_gather_v",
           "gather_v", "indexed_all_to_all_v", "scatter_v", "tie"]


def all_gather_v(tensor, sizes, dim=0, use_fp32=True, group=None):
    """Every rank's piece on every rank, one after another along `dim`, in rank order.

    tensor: this rank's piece, sizes[rank] along dim, which may be 0; all other extents are equal on all ranks; any
    dtype. sizes None: all pieces are as large as this one. Returns sum(sizes) along dim. Backward: rank r's gradient is
    the sum of all ranks' cotangents' slice r, in rank order. Raises ValueError on every rank. Source:
    physicsnemo.distributed.autograd.all_gather_v.
    """
    return _ops.all_gather_v(tensor, _flat(sizes), dim, use_fp32, group_name(group))


def gather_v(tensor, sizes, dim=0, dst=0, group=None):
    """Every rank's piece on rank `dst` of the group alone, one after another along `dim`, in rank order.

    Shapes as for all_gather_v; on ranks other than dst the result has extent 0 along dim.
    Backward: slice r of dst's cotangent goes to rank r. Ranks other than dst, whose losses rarely use an empty tensor,
    call tie(). Raises ValueError on every rank. Source: physicsnemo.distributed.autograd.gather_v, which returns
    uninitialised memory of the whole shape elsewhere.
    """
    return _ops.gather_v(tensor, _flat(sizes), dim, dst, group_name(group))


def scatter_v(tensor, sizes, dim=0, src=0, group=None):
    """Slice r along `dim` of rank src's tensor on rank r.

    tensor: at src sum(sizes) along dim; elsewhere a template, which gives the dtype and the extents beside dim. sizes
    None: equal slices; the other ranks then wait to hear how large they are, and torch.compile needs sizes. Returns
    sizes[rank] along dim. Backward: the cotangents are gathered at src; elsewhere the gradient is zeros of the
    template's shape. Whether tensor requires a gradient must agree on all ranks, the template's too. Raises ValueError
    on every rank. Source: physicsnemo.distributed.autograd.scatter_v.
    """
    return _ops.scatter_v(tensor, _flat(sizes), dim, src, group_name(group))


def indexed_all_to_all_v(tensor, indices, sizes, use_fp32=True, dim=0, group=None):
    """Sends slices along `dim`, chosen by index, to each rank: a distributed graph's halo exchange.

    indices[j]: int64 or int32, one dimension: the slices that this rank sends to rank j; they may repeat, and there may
    be none. sizes[i][j]: how many slices rank i sends to rank j, the same table on all ranks. Returns sum over i of
    sizes[i][rank] along dim, in the order of the sending ranks. Backward: cotangents travel back and are added per
    slice, in the order of the send list: the same bits in every run. The indices must not be changed before it. They
    are checked and inverted in each call. Raises ValueError on every rank. Source:
    physicsnemo.distributed.autograd.indexed_all_to_all_v, which ignores `dim`.
    """
    return _ops.indexed_all_to_all_v(tensor, list(indices), _flat(sizes), use_fp32, dim, group_name(group))


def tie(loss, y):
    """`loss`, unchanged in value, whose backward pass also reaches `y` with a cotangent of zeros.

    For a rank whose loss does not use the result `y` of a collective that other ranks' backward passes go through.
    Of any order. Raises ValueError where the loss's dtype has no gradient.
    """
    if not (loss.is_floating_point() or loss.is_complex()):
        raise ValueError(f"tie: the loss is of dtype {loss.dtype}; one that has a gradient is expected")
    # An empty sum. exp has derivatives of all orders that depend on its argument.
    nothing = y.reshape(-1)[:0]
    if loss.is_complex() or not nothing.is_complex():
        return loss + nothing.to(loss.dtype).exp().sum()
    return loss + torch.view_as_real(nothing).to(loss.dtype).exp().sum()


class AllGatherVAutograd:
    """all_gather_v, as an autograd function is called."""

    apply = staticmethod(all_gather_v)


class GatherVAutograd:
    """gather_v, as an autograd function is called."""

    apply = staticmethod(gather_v)


class ScatterVAutograd:
    """scatter_v, as an autograd function is called."""

    apply = staticmethod(scatter_v)


class IndexedAllToAllVAutograd:
    """indexed_all_to_all_v, as an autograd function is called."""

    apply = staticmethod(indexed_all_to_all_v)
