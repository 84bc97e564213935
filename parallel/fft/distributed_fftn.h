// The three-dimensional discrete Fourier transform of a real field that the ranks of a group hold
// in slabs.
//
//   at::Tensor spectrum = distributed_rfftn(field);        // slabs of dim[1] in, of dim[0] out
//   at::Tensor again = distributed_irfftn(spectrum, {.s = {depth, height, width}});
//
// Equals torch.fft.rfftn and irfftn of the unsharded tensor over `dim`, three dimensions. The real
// transform runs along dim[2], which is local at both ends, and dim[0] is transformed before
// anything is sent: one transposition of half a complex field.
//
// Shapes: the real side has all of dim[0] and dim[2] and this rank's piece of dim[1]; the spectrum
// has a piece of dim[0], all of dim[1], and s[2] / 2 + 1 along dim[2]. With `modes` = {m0, m1, m2}
// it holds the wave numbers 0 .. m - 1 and -m .. -1 of the first two (2 * m0 split between the
// ranks, 2 * m1), and 0 .. m2 - 1 of the last: only those are sent. All other dimensions are a
// batch.
//
// Options: those of distributed_fft.h with three elements for s, dim (default {-3, -2, -1}) and
// modes; the layout is canonical. Everything else (sizes, norms, dtypes, gradients of any order,
// threads, errors) is as there.
#pragma once

#include "ATen/core/Tensor.h"
#include "parallel/fft/distributed_fft.h"

namespace meshrun {

at::Tensor distributed_rfftn(const at::Tensor& input,
                             const FftOptions& options = {.dim = {-3, -2, -1}});
at::Tensor distributed_irfftn(const at::Tensor& input,
                              const FftOptions& options = {.dim = {-3, -2, -1}});

}  // namespace meshrun
