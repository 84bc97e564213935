// Padding and truncation at the end of one dimension, as a distributed FFT needs for its spectra.
//
//   pad_helper([a, b, c], 0, 5)           [a, b, c, 0, 0]
//   pad_helper([a, b, c], 0, 5, "conj")   [a, b, c, conj(c), conj(b)]
//   truncate_helper([a, b, c], 0, 2)      [a, b]
//
// "conj" completes the half of a spectrum that a transform of real data yields: element n - k is
// the conjugate of element k, k = 1, 2, ..., along `dim` alone. It has at most 2 * size - 1
// elements.
//
// Shapes: any with at least one dimension; the result has new_size along `dim`, which may be
// negative. Dtypes: any; the conjugate of a real number is the number. If the tensor has new_size
// already, the result is the input itself.
// Backward: ATen's. Nothing communicates. Threads: any.
// Errors: c10::ValueError: a new size that is smaller (pad) or larger (truncate) than the size, or
// too large for "conj"; an unknown mode; an undefined tensor. c10::IndexError: dim out of range.
//
// Corresponds to physicsnemo.distributed.utils.pad_helper, which pads the last dimension whatever
// `dim` says, and truncate_helper.
#pragma once

#include <cstdint>
#include <string_view>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"

namespace meshrun {

// `mode`: "zero" or "conj".
at::Tensor pad_helper(const at::Tensor& tensor, IntArgument dim, IntArgument new_size,
                      std::string_view mode = "zero");

at::Tensor truncate_helper(const at::Tensor& tensor, IntArgument dim, IntArgument new_size);

}  // namespace meshrun
