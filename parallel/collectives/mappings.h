// Where tensor parallelism enters and leaves: four maps between a tensor that all ranks of a group
// hold alike and their parts of one.
//
//                               forward                          backward
//   copy_to_parallel_region     the input                        sum over the ranks
//   reduce_from_parallel_region sum over the ranks               the cotangent
//   scatter_to_parallel_region  this rank's piece                all pieces gathered
//   gather_from_parallel_region all pieces gathered              this rank's piece
//
// The first two are each other's adjoint, and so are the last two, with this convention: the
// cotangent of what all ranks hold alike is held alike by all of them, each rank has all of it, and
// nothing is summed. (all_gather_v sums: there, every rank has a loss of its own.) A second
// derivative follows from that.
//
// None changes its input, nor the cotangent that the autograd engine hands in. The result of
// copy_to shares the input's memory, that of scatter_to is a copy, the others are new. Sums are of
// any dtype that the backend adds; float16 and bfloat16 are added in float32.
//
// A backward pass with communication (copy_to, scatter_to) runs on all ranks of the group or on
// none: see tie.h.
//
// Threads: any; the calls of one group in the same order on all its ranks. Errors: those of
// GroupArgument. An undefined tensor, a dim out of range, and shapes that do not fit are on every
// rank that called (parallel/base/collective_errors.h) where there is communication forward; in
// copy_to and scatter_to, which have none, c10::ValueError or c10::IndexError here alone.
//
// Corresponds to physicsnemo.distributed.mappings, where float32 inputs are summed in place.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/collectives/group_argument.h"
#include "parallel/collectives/sizes.h"

namespace meshrun {

at::Tensor copy_to_parallel_region(const at::Tensor& input, const GroupArgument& group = {});

at::Tensor reduce_from_parallel_region(const at::Tensor& input, const GroupArgument& group = {});

// Pieces are those of compute_split_shapes (split.h) along `dim`, which may be negative; they may
// be empty.
at::Tensor scatter_to_parallel_region(const at::Tensor& input, int64_t dim,
                                      const GroupArgument& group = {});

// `shapes`: the pieces' extents along `dim` or their full shapes, by rank (sizes.h); absent: all
// are as large as this rank's.
at::Tensor gather_from_parallel_region(const at::Tensor& input, int64_t dim,
                                       const Sizes& shapes = {}, const GroupArgument& group = {});

}  // namespace meshrun
