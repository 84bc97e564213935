"""The two-dimensional Fourier transform of a real field that the ranks of a group hold in pieces, of any size.

    spectrum = DistributedRFFT2.apply(field, None, (-2, -1), "ortho")         # columns in, rows out
    again = DistributedIRFFT2.apply(spectrum, (height, width), (-2, -1), "ortho")

Equals torch.fft.rfft2 and irfft2 of the unsharded tensor. With dim = (d0, d1) the real side has all rows along d0 and
this rank's piece of the columns along d1; the spectrum has this rank's piece of s[0] rows along d0 and s[1] // 2 + 1
columns along d1. Pieces that come in may be uneven or empty; those that go out are compute_split_shapes' unless
output_sizes says otherwise.
"""

import torch

import meshrun.torch as _backend  # loads the operators
from meshrun.distributed._groups import group_name

_ops = torch.ops.meshrun

__all__ = ["DistributedIRFFT2", "DistributedRFFT2"]


def _extents(s):
    """s as the operators take it: -1 for an extent that the tensors tell."""
    return None if s is None else [-1 if extent is None else extent for extent in s]


def _transform(operator, x, s, dim, norm, group, input_sizes, output_sizes):
    return operator(x, _extents(s), list(dim), norm, input_sizes, output_sizes, group_name(group))


class DistributedRFFT2:
    """torch.fft.rfft2 of a sharded field; called by `apply`, as an autograd function is."""

    @staticmethod
    def apply(x, s=None, dim=(-2, -1), norm="ortho", *, group="spatial_parallel", input_sizes=None, output_sizes=None):
        """x: float32 or float64; complex64 or complex128 comes out.

        s: extents of the transform, (None, None) or None for the field's: it is cut or padded with zeros at its end.
        norm: "ortho", "backward" or "forward". input_sizes: the ranks' pieces along dim[1]; without it they tell each
        other, in one message. torch.compile needs s[1] or input_sizes. group: a group, its name, or None for the world.
        Backward: the exact adjoint, of any order, for every norm and s; on all ranks of the group or on none. Raises
        ValueError on every rank. Source: physicsnemo.distributed.fft.DistributedRFFT2, for sizes that divide.
        """
        return _transform(_ops.rfft2, x, s, dim, norm, group, input_sizes, output_sizes)


class DistributedIRFFT2:
    """torch.fft.irfft2 of a sharded spectrum; called by `apply`, as an autograd function is."""

    @staticmethod
    def apply(x, s=None, dim=(-2, -1), norm="ortho", *, group="spatial_parallel", input_sizes=None, output_sizes=None):
        """x: complex64 or complex128, this rank's rows along dim[0]; float32 or float64 comes out.

        s: extents of the field; None: the spectrum's rows, and 2 * (columns - 1). input_sizes: the ranks' pieces along
        dim[0]. torch.compile needs s[0] or input_sizes. All else is as for DistributedRFFT2. Source:
        physicsnemo.distributed.fft.DistributedIRFFT2, which raises.
        """
        return _transform(_ops.irfft2, x, s, dim, norm, group, input_sizes, output_sizes)
