#include "parallel/shard/attention/attention_arguments.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "ATen/ExpandUtils.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/zeros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {
namespace {

using at::Tensor;

std::string shapes_of(const Tensor& query, const Tensor& key, const Tensor& value) {
  return fmt::format("query [{}], key [{}], value [{}]", fmt::join(query.sizes(), ", "),
                     fmt::join(key.sizes(), ", "), fmt::join(value.sizes(), ", "));
}

// All dims before the last `kept`.
at::IntArrayRef leading(const Tensor& tensor, int64_t kept) {
  return tensor.sizes().slice(0, static_cast<size_t>(tensor.dim() - kept));
}

bool broadcast_together(at::IntArrayRef a, at::IntArrayRef b) {
  for (size_t i = 1; i <= std::min(a.size(), b.size()); ++i) {
    const int64_t x = a[a.size() - i];
    const int64_t y = b[b.size() - i];
    if (x != y && x != 1 && y != 1) return false;
  }
  return true;
}

std::string problem_of(const Tensor& query, const Tensor& key, const Tensor& value,
                       const AttentionOptions& options) {
  if (!query.defined() || !key.defined() || !value.defined()) {
    return "attention takes defined tensors";
  }
  const auto shapes = [&] { return shapes_of(query, key, value); };
  if (!at::isFloatingType(query.scalar_type()) || query.scalar_type() != key.scalar_type() ||
      query.scalar_type() != value.scalar_type() || query.device() != key.device() ||
      query.device() != value.device()) {
    return fmt::format(
        "attention takes floating tensors of one dtype and device, not {} {}, {} {}"
        " and {} {}",
        c10::toString(query.scalar_type()), query.device().str(), c10::toString(key.scalar_type()),
        key.device().str(), c10::toString(value.scalar_type()), value.device().str());
  }
  const int64_t least = options.enable_gqa ? 3 : 2;
  if (query.dim() < least || key.dim() < least || value.dim() < least) {
    return fmt::format("attention takes tensors of {} or more dims: {}", least, shapes());
  }
  if (query.size(-1) != key.size(-1) || key.size(-2) != value.size(-2)) {
    return fmt::format(
        "query and key must agree in their last dim, key and value in the one before"
        " it: {}",
        shapes());
  }
  const int64_t kept = options.enable_gqa ? 3 : 2;
  if (!broadcast_together(leading(query, kept), leading(key, kept)) ||
      !broadcast_together(leading(query, kept), leading(value, kept)) ||
      !broadcast_together(leading(key, kept), leading(value, kept))) {
    return fmt::format("leading dims do not broadcast: {}", shapes());
  }
  if (!options.enable_gqa) return "";
  // A rank may have no head at all.
  const bool are_grouped =
      key.size(-3) == 0 ? query.size(-3) == 0 : query.size(-3) % key.size(-3) == 0;
  if (key.size(-3) != value.size(-3) || !are_grouped) {
    return fmt::format(
        "with enable_gqa the heads of query must be a multiple of those of key and"
        " value: {}",
        shapes());
  }
  return "";
}

std::string mask_problem(const Tensor& mask, at::IntArrayRef scores) {
  if (!mask.defined()) return "attn_mask is undefined";
  if (mask.scalar_type() != at::kBool && !at::isFloatingType(mask.scalar_type())) {
    return fmt::format("attn_mask is {}; it must be bool or floating",
                       c10::toString(mask.scalar_type()));
  }
  bool fits = mask.dim() <= static_cast<int64_t>(scores.size());
  for (int64_t dim = 1; fits && dim <= mask.dim(); ++dim) {
    const int64_t extent = mask.size(-dim);
    fits = extent == 1 || extent == scores[scores.size() - static_cast<size_t>(dim)];
  }
  if (fits) return "";
  return fmt::format(
      "attn_mask [{}] does not broadcast to the scores [{}]: this rank's queries by"
      " the keys of all ranks",
      fmt::join(mask.sizes(), ", "), fmt::join(scores, ", "));
}

// (..., heads, rows, columns) with these leading dims as (batch, heads, rows, columns).
Tensor in_four_dims(const Tensor& tensor, at::IntArrayRef batch, int64_t heads) {
  std::vector<int64_t> shape = batch.vec();
  shape.insert(shape.end(), {heads, tensor.size(-2), tensor.size(-1)});
  const Tensor whole = tensor.expand(shape);
  if (batch.empty()) return whole.unsqueeze(0);
  return batch.size() == 1 ? whole : whole.flatten(0, static_cast<int64_t>(batch.size()) - 1);
}

Tensor mask_in_four_dims(const Tensor& mask, at::IntArrayRef batch) {
  // Several batch dims become one, which a mask has whole or not at all.
  if (batch.size() > 1 && mask.dim() > 3) return in_four_dims(mask, batch, mask.size(-3));
  Tensor four = mask;
  while (four.dim() < 4) four = four.unsqueeze(0);
  return four;
}

// Batch dims of which keys and values have one become heads: (kept batches, key heads, shared
// batches, groups of heads, rows, columns).
class SharedBatches {
 public:
  // `heads`: of queries.
  SharedBatches(const Tensor& key, const Tensor& value, const std::vector<int64_t>& batch,
                int64_t heads, int64_t key_heads)
      : batch_(batch), heads_(heads), key_heads_(key_heads) {
    std::vector<int64_t> shared;
    const auto ndim = static_cast<int64_t>(batch.size());
    for (int64_t dim = 0; dim < ndim; ++dim) {
      const int64_t extent = batch[static_cast<size_t>(dim)];
      const bool is_shared = extent != 1 && has_one(key, ndim - dim) && has_one(value, ndim - dim);
      (is_shared ? shared : order_).push_back(dim);
      (is_shared ? num_shared_ : num_kept_) *= extent;
      key_batch_.push_back(is_shared ? 1 : extent);
    }
    any_ = !shared.empty();
    order_.push_back(ndim);
    order_.insert(order_.end(), shared.begin(), shared.end());
    for (int64_t dim = ndim + 1; dim < ndim + 4; ++dim) order_.push_back(dim);
  }

  bool any() const { return any_; }
  const std::vector<int64_t>& key_batch() const { return key_batch_; }

  // `tensor` broadcasts to (batch, heads, rows, columns).
  Tensor joined(const Tensor& tensor) const {
    return tensor.expand(shape({heads_}, tensor))
        .reshape(shape({key_heads_, heads_ / key_heads_}, tensor))
        .permute(order_)
        .reshape({num_kept_, num_shared_ * heads_, tensor.size(-2), tensor.size(-1)});
  }
  // Dims of joined(), before they were joined to four.
  std::vector<int64_t> parted_shape(int64_t rows, int64_t columns) const {
    std::vector<int64_t> whole = batch_;
    whole.insert(whole.end(), {key_heads_, heads_ / key_heads_, rows, columns});
    std::vector<int64_t> parted;
    for (const int64_t dim : order_) parted.push_back(whole[static_cast<size_t>(dim)]);
    return parted;
  }
  // Where each dim of (batch, key heads, groups, rows, columns) is in parted_shape().
  std::vector<int64_t> inverse_order() const {
    std::vector<int64_t> inverse(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) {
      inverse[static_cast<size_t>(order_[i])] = static_cast<int64_t>(i);
    }
    return inverse;
  }

 private:
  // The dim is `from_heads` dims before the heads.
  static bool has_one(const Tensor& tensor, int64_t from_heads) {
    const int64_t dim = tensor.dim() - 3 - from_heads;
    return dim < 0 || tensor.size(dim) == 1;
  }
  std::vector<int64_t> shape(std::initializer_list<int64_t> heads, const Tensor& tensor) const {
    std::vector<int64_t> whole = batch_;
    whole.insert(whole.end(), heads);
    whole.insert(whole.end(), {tensor.size(-2), tensor.size(-1)});
    return whole;
  }

  const std::vector<int64_t> batch_;
  const int64_t heads_;
  const int64_t key_heads_;
  bool any_ = false;
  int64_t num_kept_ = 1;
  int64_t num_shared_ = 1;
  std::vector<int64_t> key_batch_;
  std::vector<int64_t> order_;  // of (batch, key heads, groups, rows, columns)
};

// One mask for all batches and heads stays one.
Tensor joined_mask(const Tensor& mask, const SharedBatches& batches) {
  Tensor four = mask;
  while (four.dim() < 4) four = four.unsqueeze(0);
  const at::IntArrayRef before_rows = leading(four, 2);
  const bool is_one = std::all_of(before_rows.begin(), before_rows.end(),
                                  [](int64_t extent) { return extent == 1; });
  return is_one ? four.reshape({1, 1, four.size(-2), four.size(-1)}) : batches.joined(four);
}

struct OnceDifferentiable : torch::autograd::Function<OnceDifferentiable> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext*, const Tensor&,
                                                const std::vector<Tensor>* gradients) {
    return *gradients;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    C10_THROW_ERROR(NotImplementedError,
                    "the gradient of scaled_dot_product_attention over a cut sequence has no "
                    "derivative");
  }
};

}  // namespace

AttentionArguments read_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                  const AttentionOptions& options, int64_t num_keys) {
  AttentionArguments arguments;
  arguments.problem = problem_of(query, key, value, options);
  if (!arguments.problem.empty()) return arguments;

  std::vector<int64_t> batch;  // of all, before the heads
  int64_t heads = 1;
  int64_t key_heads = 1;
  if (options.enable_gqa) {
    batch = at::infer_size(at::infer_size(leading(query, 3), leading(key, 3)), leading(value, 3));
    heads = query.size(-3);
    key_heads = key.size(-3);
  } else {
    batch = at::infer_size(at::infer_size(leading(query, 2), leading(key, 2)), leading(value, 2));
    if (!batch.empty()) {
      heads = key_heads = batch.back();
      batch.pop_back();
      // One head of keys for all heads of queries travels once.
      const auto has_one_head = [](const Tensor& t) { return t.dim() < 3 || t.size(-3) == 1; };
      if (has_one_head(key) && has_one_head(value)) key_heads = 1;
    }
  }
  arguments.output_shape = batch;
  if (query.dim() > 2 || key.dim() > 2 || value.dim() > 2) arguments.output_shape.push_back(heads);
  std::vector<int64_t> scores = arguments.output_shape;
  scores.insert(scores.end(), {query.size(-2), num_keys});
  arguments.output_shape.insert(arguments.output_shape.end(), {query.size(-2), value.size(-1)});

  if (options.attn_mask) {
    arguments.problem = mask_problem(*options.attn_mask, scores);
    if (!arguments.problem.empty()) return arguments;
  }
  const SharedBatches shared(key, value, batch, heads, key_heads);
  if (shared.any() && !options.dropout && key_heads > 0) {
    arguments.query = shared.joined(query);
    arguments.key = in_four_dims(key, shared.key_batch(), key_heads);
    arguments.value = in_four_dims(value, shared.key_batch(), key_heads);
    if (options.attn_mask) arguments.mask = joined_mask(*options.attn_mask, shared);
    arguments.parted_shape = shared.parted_shape(query.size(-2), value.size(-1));
    arguments.order = shared.inverse_order();
  } else {
    arguments.query = in_four_dims(query, batch, heads);
    arguments.key = in_four_dims(key, batch, key_heads);
    arguments.value = in_four_dims(value, batch, key_heads);
    if (options.attn_mask) arguments.mask = mask_in_four_dims(*options.attn_mask, batch);
  }
  arguments.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  return arguments;
}

Tensor AttentionArguments::restored(const Tensor& result) const {
  if (order.empty()) return result.view(output_shape);
  return result.view(parted_shape).permute(order).reshape(output_shape);
}

at::ScalarType accumulating_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

std::optional<Tensor> additive_mask(const std::optional<Tensor>& mask, at::ScalarType dtype) {
  if (!mask || mask->scalar_type() != at::kBool) {
    return mask ? std::optional<Tensor>(mask->to(dtype)) : std::nullopt;
  }
  return at::zeros(mask->sizes(), mask->options().dtype(dtype))
      .masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
}

std::optional<Tensor> mask_columns(const std::optional<Tensor>& mask, int64_t begin, int64_t size) {
  if (!mask || mask->size(3) == 1) return mask;
  return mask->narrow(3, begin, size);
}

std::vector<Tensor> once_differentiable(std::vector<Tensor> gradients, const Tensor& cotangent) {
  if (!c10::GradMode::is_enabled() || !cotangent.requires_grad()) return gradients;
  std::vector<Tensor> defined;
  for (const Tensor& gradient : gradients) {
    if (gradient.defined()) defined.push_back(gradient);
  }
  const std::vector<Tensor> marked = OnceDifferentiable::apply(cotangent, &defined);
  size_t next = 0;
  for (Tensor& gradient : gradients) {
    if (gradient.defined()) gradient = marked[next++];
  }
  return gradients;
}

}  // namespace meshrun
