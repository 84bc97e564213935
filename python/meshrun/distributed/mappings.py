"""The four maps of tensor parallelism, between a tensor of which all ranks of a group hold the same copy and the ranks'
pieces of it. The names and argument order are those of physicsnemo.distributed.mappings; `group` as in utils.py.

                                 forward                       backward
    copy_to_parallel_region      the input                     sum over the ranks
    reduce_from_parallel_region  sum over the ranks            the cotangent
    scatter_to_parallel_region   this rank's piece             all pieces gathered
    gather_from_parallel_region  all pieces gathered           this rank's piece

Gradients follow one convention: where all ranks hold the same tensor they also hold the same cotangent, each rank all
of it, and nothing is summed. No map changes its input. The result of copy_to shares the input's memory, the others are
new. float16 and bfloat16 are added in float32. Derivatives of any order. A backward pass with communication (copy_to,
scatter_to) runs on all ranks of the group or on none: an input that wants a gradient on some ranks alone is a ValueError
on all of them in the backward pass (in compiled graphs it is not noticed). A rank that evaluates alone does so under
torch.no_grad(), since such calls are counted. Errors where the ranks communicate: ValueError
on every rank; else on this one.
"""

import torch

import meshrun.torch as _backend  # loads the operators
from meshrun.distributed._groups import group_name
from meshrun.distributed.utils import _flat

_ops = torch.ops.meshrun

__all__ = ["copy_to_parallel_region", "gather_from_parallel_region", "reduce_from_parallel_region",
           "scatter_to_parallel_region"]


def copy_to_parallel_region(input, group=None):
    """The input, of any shape. Backward: the cotangents summed over the ranks."""
    return _ops.copy_to_parallel_region(input, group_name(group))


def reduce_from_parallel_region(input, group=None):
    """The sum over the ranks of inputs of one shape, in new memory. Backward: the cotangent."""
    return _ops.reduce_from_parallel_region(input, group_name(group))


def scatter_to_parallel_region(input, dim, group=None):
    """This rank's compute_split_shapes piece along `dim`, in new memory. Backward: all pieces gathered."""
    return _ops.scatter_to_parallel_region(input, dim, group_name(group))


def gather_from_parallel_region(input, dim, shapes=None, group=None):
    """All ranks' pieces along `dim`. Backward: this rank's piece of the cotangent.

    shapes: the pieces' extents along dim, or their full shapes, by rank; None: all are as large as this rank's.
    """
    return _ops.gather_from_parallel_region(input, dim, _flat(shapes), group_name(group))
