// A tensor's pieces along one dimension, one per rank, by the library's one split rule (split.h).
//
// Views of `tensor`, in rank order, of compute_split_shapes(size, num_chunks) along `dim`, which
// may be negative; pieces may be empty. Backward: ATen's. Nothing communicates. Threads: any.
// Errors: c10::IndexError: dim out of range. c10::ValueError: num_chunks < 1, an undefined tensor.
//
// Corresponds to physicsnemo.distributed.utils.split_tensor_along_dim, which refuses empty pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"

namespace meshrun {

std::vector<at::Tensor> split_tensor_along_dim(const at::Tensor& tensor, IntArgument dim,
                                               IntArgument num_chunks);

}  // namespace meshrun
