// Takes a tensor that the ranks hold in pieces along one dimension, and splits it along another
// one.
//
//   [H, W / P]  -- distributed_transpose(x, 0, 1) -->  [H / P, W]
//
// Shapes: `tensor` has all of dim0 and this rank's piece of dim1, of any extent, also 0; all other
// extents are equal on all ranks. The result has this rank's compute_split_shapes (split.h) piece
// of dim0 and all of dim1: one contiguous tensor, written in place. Dims may be negative. Dtypes:
// all that the backend moves, equal on all ranks.
//
// `dim1_sizes`: the ranks' extents along dim1, by rank, equal on all ranks. If they are absent, the
// ranks first tell each other, one number each; the call waits for that before the data moves, with
// async_op too.
//
// Backward: the transpose back. Differentiable again. A backward pass runs on all ranks of the
// group or on none: see tie.h. With `async_op` the result has no gradient.
//
// Returns the result and, with `async_op`, its Work (otherwise null): wait for it before reading
// the result. The operation holds the memory of both tensors, even after the Work is dropped.
//
// Threads: any; all ranks of a group make its calls in the same order. Errors: those of
// GroupArgument; all others, wrong arguments included, on every rank that called, from the call or
// from the Work (parallel/base/collective_errors.h).
//
// Corresponds to physicsnemo.distributed.utils.distributed_transpose, which returns the pieces, of
// equal extents only.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"
#include "torch/csrc/distributed/c10d/Work.hpp"

namespace meshrun {

std::pair<at::Tensor, c10::intrusive_ptr<c10d::Work>> distributed_transpose(
    const at::Tensor& tensor, IntArgument dim0, IntArgument dim1, const GroupArgument& group = {},
    BoolArgument async_op = false,
    const std::optional<std::vector<int64_t>>& dim1_sizes = std::nullopt);

}  // namespace meshrun
