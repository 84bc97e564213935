#include "parallel/shard/attention/ring_attention.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "fmt/format.h"
#include "parallel/base/digest.h"
#include "parallel/base/extents.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/shard/attention/ring_passes.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RingAttention : torch::autograd::Function<RingAttention> {
  static Tensor forward(AutogradContext* ctx, const Tensor& query, const Tensor& key,
                        const Tensor& value, const std::optional<Tensor>& mask,
                        const c10::intrusive_ptr<Ring>& ring) {
    const RunningAttention running = ring_forward(*ring, query, key, value, mask);
    const Tensor result = running.output().to(query.scalar_type());
    ctx->save_for_backward(
        {query, key, value, mask.value_or(Tensor()), result, running.logsumexp()});
    ctx->saved_data["ring"] = at::IValue::make_capsule(ring);
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& cotangents) {
    const variable_list saved = ctx->get_saved_variables();
    const auto ring =
        c10::static_intrusive_pointer_cast<Ring>(ctx->saved_data.at("ring").toCapsule());
    const std::optional<Tensor> mask =
        saved[3].defined() ? std::optional<Tensor>(saved[3]) : std::nullopt;
    const bool with_keys = ctx->needs_input_grad(1) || ctx->needs_input_grad(2);
    const bool with_mask = mask && ctx->needs_input_grad(3);
    variable_list gradients(5);
    {
      const c10::NoGradGuard no_grad;
      const at::ScalarType dtype = saved[0].scalar_type();
      const at::ScalarType wide = accumulating_dtype(dtype);
      const BlockGradients sums = ring_backward(*ring,
                                                {.query = saved[0].to(wide),
                                                 .key = saved[1],
                                                 .value = saved[2],
                                                 .mask = mask,
                                                 .grad_output = cotangents[0].to(wide),
                                                 .output = saved[4].to(wide),
                                                 .logsumexp = finite_logsumexp(saved[5])},
                                                with_keys, with_mask);
      gradients[0] = sums.query.to(dtype);
      if (with_keys) {
        gradients[1] = sums.key.to(dtype);
        gradients[2] = sums.value.to(dtype);
      }
      if (with_mask) gradients[3] = sums.mask.to(mask->scalar_type());
    }
    // The gradients depend on the operands as on the cotangent.
    const auto operand = std::find_if(saved.begin(), saved.begin() + 4, [](const Tensor& t) {
      return t.defined() && t.requires_grad();
    });
    return once_differentiable(std::move(gradients),
                               operand == saved.begin() + 4 ? cotangents[0] : *operand);
  }
};

std::string sizes_problem(const Tensor& query, const Tensor& key,
                          const std::vector<int64_t>& query_sizes,
                          const std::vector<int64_t>& key_sizes, int rank, int world) {
  std::string problem = check_extents("query_sizes", query_sizes, -1, world);
  if (problem.empty()) problem = check_extents("key_sizes", key_sizes, -1, world);
  if (problem.empty() && query.defined() && query.dim() >= 2) {
    problem = check_piece("query_sizes", query_sizes, rank, query.size(-2), query.dim() - 2);
  }
  if (problem.empty() && key.defined() && key.dim() >= 2) {
    problem = check_piece("key_sizes", key_sizes, rank, key.size(-2), key.dim() - 2);
  }
  return problem;
}

// What all ranks must say alike.
struct AgreedCall {
  std::vector<int64_t> query_sizes;
  std::vector<int64_t> key_sizes;
  int64_t batch;
  int64_t query_heads;
  int64_t key_heads;
  int64_t key_width;
  int64_t value_width;
  at::ScalarType dtype;
  bool is_causal;
  double scale;
  std::optional<AttentionDropout> dropout;
  bool with_keys;

  std::string words() const {
    std::string text = fmt::format(
        " attention of queries {} and keys {}, {} by {} heads of {} and {}, {}{}, scale {}",
        to_words(query_sizes), to_words(key_sizes), query_heads, key_heads, key_width, value_width,
        c10::toString(dtype), is_causal ? ", causal" : "", scale);
    if (dropout) {
      text += fmt::format(", dropout {} of operation {} under seed {}", dropout->probability,
                          dropout->operation.counter, dropout->operation.seed);
    }
    if (with_keys) text += ", with gradients of the keys";
    return text;
  }
  uint64_t digest() const {
    Digest digest;
    digest.add(query_sizes).add(key_sizes).add(batch).add(query_heads).add(key_heads);
    digest.add(key_width).add(value_width).add(static_cast<int64_t>(dtype)).add(is_causal);
    digest.add(std::bit_cast<int64_t>(scale)).add(with_keys).add(dropout.has_value());
    if (dropout) {
      digest.add(std::bit_cast<int64_t>(dropout->probability));
      digest.add(static_cast<int64_t>(dropout->operation.counter));
      digest.add(static_cast<int64_t>(dropout->operation.seed));
    }
    return digest.value() | 1;  // 0: nothing to compare
  }
};

}  // namespace

Tensor ring_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                      const std::vector<int64_t>& query_sizes,
                      const std::vector<int64_t>& key_sizes, const AttentionOptions& options,
                      const GroupArgument& group) {
  const GroupArgument::Handle handle = group.get();
  const int rank = handle->getRank();
  const int world = handle->getSize();
  std::string problem = sizes_problem(query, key, query_sizes, key_sizes, rank, world);
  AttentionArguments arguments;
  if (problem.empty()) {
    arguments = read_attention(query, key, value, options, total_extent(key_sizes));
    problem = arguments.problem;
  }
  if (!problem.empty()) {
    detail::raise_on_all_ranks(handle, device_of(query, *handle), problem);
  }
  const auto ring = c10::make_intrusive<Ring>(
      handle, RingPlan(query_sizes, key_sizes, options.is_causal, options.first_query));
  ring->scale = arguments.scale;
  ring->dropout = options.dropout;
  const bool records = c10::GradMode::is_enabled();
  const bool with_keys = records && (key.requires_grad() || value.requires_grad());
  ring->requires_grad = with_keys || (records && query.requires_grad());
  const auto agreed =
      std::make_shared<const AgreedCall>(AgreedCall{.query_sizes = query_sizes,
                                                    .key_sizes = key_sizes,
                                                    .batch = arguments.query.size(0),
                                                    .query_heads = arguments.query.size(1),
                                                    .key_heads = arguments.key.size(1),
                                                    .key_width = arguments.key.size(3),
                                                    .value_width = arguments.value.size(3),
                                                    .dtype = query.scalar_type(),
                                                    .is_causal = options.is_causal,
                                                    .scale = arguments.scale,
                                                    .dropout = options.dropout,
                                                    .with_keys = with_keys});
  ring->words = [agreed] { return agreed->words(); };
  ring->digest = agreed->digest();
  return arguments.restored(
      RingAttention::apply(arguments.query, arguments.key, arguments.value, arguments.mask, ring));
}

}  // namespace meshrun
