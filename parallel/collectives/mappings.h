// The four maps of tensor parallelism, between a tensor of which all ranks of a group hold the same
// copy and the ranks' pieces of it.
//
//                               forward                          backward
//   copy_to_parallel_region     the input                        sum over the ranks
//   reduce_from_parallel_region sum over the ranks               the cotangent
//   scatter_to_parallel_region  this rank's piece                all pieces gathered
//   gather_from_parallel_region all pieces gathered              this rank's piece
//
// The first two are each other's adjoint, and so are the last two, by this convention: where all
// ranks hold the same tensor they also hold the same cotangent, each rank all of it, and nothing is
// summed. (all_gather_v sums: there every rank has its own loss.) Second derivatives follow from
// that.
//
// No map changes its input or the cotangent that the autograd engine passes in. The result of
// copy_to shares the input's memory; the others are new memory. Sums take any dtype that the
// backend adds; float16 and bfloat16 are added in float32.
//
// A backward pass with communication (copy_to, scatter_to) runs on all ranks of the group or on
// none: see tie.h. So an input wants a gradient on all ranks or on none, and a rank that evaluates
// alone does so without gradients (NoGradGuard): on ucx, other numbers of such calls since the
// group's last operation are an error on all ranks.
//
// Threads: any; all ranks of a group make its calls in the same order. Errors: those of
// GroupArgument. reduce_from and gather_from, which communicate forward, raise an undefined tensor,
// a dim out of range and shapes that do not fit on every rank that called
// (parallel/base/collective_errors.h). copy_to and scatter_to do not communicate forward and raise
// c10::ValueError or c10::IndexError on this rank alone.
//
// Corresponds to physicsnemo.distributed.mappings, where float32 inputs are summed in place.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/base/sizes.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

at::Tensor copy_to_parallel_region(const at::Tensor& input, const GroupArgument& group = {});

at::Tensor reduce_from_parallel_region(const at::Tensor& input, const GroupArgument& group = {});

// Pieces are those of compute_split_shapes (split.h) along `dim`, which may be negative; they may
// be empty.
at::Tensor scatter_to_parallel_region(const at::Tensor& input, IntArgument dim,
                                      const GroupArgument& group = {});

// `shapes`: the pieces' extents along `dim` or their full shapes, by rank (sizes.h); absent: all
// are as large as this rank's.
at::Tensor gather_from_parallel_region(const at::Tensor& input, IntArgument dim,
                                       const Sizes& shapes = {}, const GroupArgument& group = {});

}  // namespace meshrun
