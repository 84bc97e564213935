// Operators that write plain tensors alone, with values of sharded ones:
//
//   at::Tensor out = at::zeros({8, 4, 64, 33}, at::kComplexFloat);
//   out.slice(3, 0, 12).copy_(at::einsum("bihw,iohw->bohw", {spectrum, weight}));
//   out += sharded;  at::add_out(out, sharded, 1);
//
// The plain tensor counts as Replicate, as plain operands do, and stays plain. Above autograd,
// every sharded argument is replaced by its whole values, and LibTorch's operator runs on plain
// tensors. So views of the plain tensor, its history and its errors are LibTorch's own. The
// gradient of a sharded argument is its part of the plain gradient, which all ranks have alike
// (promotion.h makes it whole where it comes from sharded operators). PromotionMode decides:
// check_plain_target().
//
// Every operator of LibTorch that writes tensors and returns no others has this kernel, unless a
// function handler is registered for it. A function handler computes with the plain tensor as
// Replicate and ends in copy_(), which has the kernel; so index_add_ and its relatives gather their
// result, not their source. docs/decisions/0022 has the reasons.
//
// Internal to parallel/shard. All ranks of the mesh call alike. Errors: ShardTensorError where two
// meshes meet, MissingShardRuleError for random numbers, of which each rank would draw its own.
#pragma once

#include <cstddef>
#include <string>

#include "ATen/core/stack.h"

namespace meshrun {

// Whether each sharded tensor among the last `num_arguments` values is one number: such as the
// factor of clip_grad_norm_(), which all ranks have alike, so any PromotionMode takes it.
bool reads_sharded_numbers_alone(const torch::jit::Stack& stack, size_t num_arguments);

// A function handler takes the place of the kernel of `op` ("aten::add_.Tensor"), for good.
void drop_plain_target_kernel(const std::string& op);

}  // namespace meshrun
