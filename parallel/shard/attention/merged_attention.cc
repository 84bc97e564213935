// merged_attention and whole_keys_attention: this rank's queries meet this rank's keys once.
#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/zeros.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/digest.h"
#include "parallel/base/extents.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/shard/attention/block_attention.h"
#include "parallel/shard/attention/ring_attention.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using c10d::ReduceOp;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A call without its tensors.
struct Meeting : torch::CustomClassHolder {
  GroupArgument::Handle group;  // null: the keys are whole
  uint64_t digest = 0;
  int64_t query_offset = 0;
  int64_t key_offset = 0;
  bool is_causal = false;
  bool requires_grad = false;
  double scale = 1;
  std::optional<AttentionDropout> dropout;

  void reduce(const Tensor& tensor, ReduceOp::RedOpType op) const {
    if (!group || group->getSize() == 1) return;
    detail::all_reduce(group, tensor, op, {.agreed = digest, .requires_grad = requires_grad})
        .wait();
  }
  std::vector<AttentionTile> tiles(const Tensor& query, const Tensor& key) const {
    return cut_attention(query_offset, query.size(2), key_offset, key.size(2), is_causal);
  }
  BlockOperands operands(const Tensor& query, const Tensor& key, const Tensor& value,
                         const std::optional<Tensor>& mask) const {
    const at::ScalarType wide = accumulating_dtype(query.scalar_type());
    return {.query = query.to(wide),
            .key = key.to(wide),
            .value = value.to(wide),
            .mask = additive_mask(mask_columns(mask, key_offset, key.size(2)), wide),
            .scale = scale,
            .dropout = dropout ? &*dropout : nullptr,
            .first_key = key_offset,
            .dtype = key.scalar_type()};
  }
};

// The ranks' results as one: weighted by exp(logsumexp). (output, logsumexp).
std::pair<Tensor, Tensor> merge(const RunningAttention& own, const Meeting& meeting) {
  if (!meeting.group || meeting.group->getSize() == 1) return {own.output(), own.logsumexp()};
  Tensor largest = own.logsumexp().clone();
  meeting.reduce(largest, ReduceOp::MAX);
  largest = finite_logsumexp(largest);
  const Tensor weight = (own.logsumexp() - largest).exp_().unsqueeze(-1);
  const Tensor sums = at::cat({own.output() * weight, weight}, -1);
  meeting.reduce(sums, ReduceOp::SUM);
  const int64_t extent = own.output().size(3);
  const Tensor weights = sums.narrow(-1, extent, 1);
  // No rank has an allowed key: 0 / 1 and -inf.
  const Tensor output = sums.narrow(-1, 0, extent) / weights.masked_fill(weights == 0, 1.0);
  return {output, weights.squeeze(-1).log() + largest};
}

struct MeetingAttention : torch::autograd::Function<MeetingAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& query, const Tensor& key,
                        const Tensor& value, const std::optional<Tensor>& mask,
                        const c10::intrusive_ptr<Meeting>& meeting) {
    const BlockOperands operands = meeting->operands(query, key, value, mask);
    RunningAttention own(operands.query, value.size(3));
    for (const AttentionTile& tile : meeting->tiles(query, key)) own.add(tile, operands);
    const auto [output, logsumexp] = merge(own, *meeting);
    const Tensor result = output.to(query.scalar_type());
    ctx->save_for_backward({query, key, value, mask.value_or(Tensor()), result, logsumexp});
    ctx->saved_data["meeting"] = at::IValue::make_capsule(meeting);
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& cotangents) {
    const variable_list saved = ctx->get_saved_variables();
    const auto meeting =
        c10::static_intrusive_pointer_cast<Meeting>(ctx->saved_data.at("meeting").toCapsule());
    const std::optional<Tensor> mask =
        saved[3].defined() ? std::optional<Tensor>(saved[3]) : std::nullopt;
    variable_list gradients(5);
    {
      const c10::NoGradGuard no_grad;
      BlockOperands operands = meeting->operands(saved[0], saved[1], saved[2], mask);
      operands.wants_mask_gradient = mask && ctx->needs_input_grad(3);
      const at::TensorOptions options = operands.query.options();
      const auto zeros = [&](const Tensor& like) { return at::zeros(like.sizes(), options); };
      BlockGradients sums{zeros(saved[0]), zeros(saved[1]), zeros(saved[2]), {}};
      Tensor grad_mask;
      if (operands.wants_mask_gradient) {
        grad_mask = zeros(*mask);
        sums.mask = *mask_columns(grad_mask, meeting->key_offset, saved[1].size(2));
      }
      const Tensor grad_output = cotangents[0].to(options.dtype());
      const Tensor output = saved[4].to(options.dtype());
      const Tensor logsumexp = finite_logsumexp(saved[5]);
      for (const AttentionTile& tile : meeting->tiles(saved[0], saved[1])) {
        add_gradients(tile, operands, grad_output, output, logsumexp, sums);
      }
      if (ctx->needs_input_grad(0)) {
        meeting->reduce(sums.query, ReduceOp::SUM);
        gradients[0] = sums.query.to(saved[0].scalar_type());
      }
      gradients[1] = sums.key.to(saved[1].scalar_type());
      gradients[2] = sums.value.to(saved[2].scalar_type());
      if (grad_mask.defined()) {
        // Every rank has the whole mask, and saw the columns of its own keys.
        meeting->reduce(grad_mask, ReduceOp::SUM);
        gradients[3] = grad_mask.to(mask->scalar_type());
      }
    }
    // The gradients depend on the operands as on the cotangent.
    const auto operand = std::find_if(saved.begin(), saved.begin() + 4, [](const Tensor& t) {
      return t.defined() && t.requires_grad();
    });
    return once_differentiable(std::move(gradients),
                               operand == saved.begin() + 4 ? cotangents[0] : *operand);
  }
};

Tensor meet(const AttentionArguments& arguments, const AttentionOptions& options,
            const c10::intrusive_ptr<Meeting>& meeting) {
  meeting->query_offset = options.first_query;
  meeting->is_causal = options.is_causal;
  meeting->scale = arguments.scale;
  meeting->dropout = options.dropout;
  return arguments.restored(MeetingAttention::apply(arguments.query, arguments.key, arguments.value,
                                                    arguments.mask, meeting));
}

}  // namespace

Tensor merged_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                        const std::vector<int64_t>& key_sizes, const AttentionOptions& options,
                        const GroupArgument& group) {
  const GroupArgument::Handle handle = group.get();
  const auto rank = static_cast<size_t>(handle->getRank());
  std::string problem = check_extents("key_sizes", key_sizes, -1, handle->getSize());
  if (problem.empty() && key.defined() && key.dim() >= 2) {
    problem = check_piece("key_sizes", key_sizes, handle->getRank(), key.size(-2), key.dim() - 2);
  }
  AttentionArguments arguments;
  if (problem.empty()) {
    arguments = read_attention(query, key, value, options, total_extent(key_sizes));
    problem = arguments.problem;
  }
  if (!problem.empty()) detail::raise_on_all_ranks(handle, device_of(query, *handle), problem);
  const auto meeting = c10::make_intrusive<Meeting>();
  meeting->group = handle;
  for (size_t r = 0; r < rank; ++r) meeting->key_offset += key_sizes[r];
  meeting->requires_grad = c10::GradMode::is_enabled() &&
                           (query.requires_grad() || key.requires_grad() || value.requires_grad());
  Digest digest;
  digest.add(key_sizes).add(bool(options.is_causal)).add(std::bit_cast<int64_t>(arguments.scale));
  meeting->digest = digest.add(arguments.key.size(1)).value() | 1;  // 0: nothing to compare
  return meet(arguments, options, meeting);
}

Tensor whole_keys_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                            const AttentionOptions& options) {
  const int64_t num_keys = key.defined() && key.dim() >= 2 ? key.size(-2) : 0;
  const AttentionArguments arguments = read_attention(query, key, value, options, num_keys);
  if (!arguments.problem.empty()) throw CollectiveArgumentError(arguments.problem);
  const auto meeting = c10::make_intrusive<Meeting>();
  return meet(arguments, options, meeting);
}

}  // namespace meshrun
