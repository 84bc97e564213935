// The norm of numbers that lie on many ranks: some whole on every rank, some in pieces. Internal to
// parallel/nn; clip_grad.h is the public form.
//
// Values that lie in pieces are added up (or their greatest is taken) over each group that holds
// them; all others count once. One all-reduce for each distinct group, of one number per way in
// which values lie, in the order in which `parts` name the groups. What is complete travels along
// from a group's rank 0, so all ranks of these groups get the same bits.
//
// Threads: one at a time; all ranks of the groups call alike. Errors: those of collectives.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/manager/group_argument.h"

namespace meshrun::detail {

struct NormPart {
  // This rank's numbers, real or complex, dense or sparse; undefined: none.
  at::Tensor values;
  // Groups whose ranks hold different numbers; empty: every rank holds the same ones.
  std::vector<GroupArgument::Handle> groups;
};

// `norm_type`: any but 0; infinity is the greatest absolute value, -infinity the least. 16-bit
// floats are accumulated in float32, all sums over tensors and ranks in float64. 0 without values.
double total_norm(const std::vector<NormPart>& parts, double norm_type);

}  // namespace meshrun::detail
