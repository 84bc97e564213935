// Pooling to given extents, with windows of different sizes.
//
// An average along a cut dimension is a product with the matrix of its weights. Where there are
// fewer outputs than pieces each rank adds up what it has (Partial); else it gathers its windows.
// For maxima the windows are laid out one after the other, filled up with their last element, and
// pooled as equal ones.
#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ops/adaptive_avg_pool1d.h"
#include "ATen/ops/adaptive_avg_pool2d.h"
#include "ATen/ops/adaptive_avg_pool3d.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/max_pool1d_with_indices.h"
#include "ATen/ops/max_pool2d_with_indices.h"
#include "ATen/ops/max_pool3d_with_indices.h"
#include "ATen/ops/zeros.h"
#include "fmt/format.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/collectives/tie.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/flat_indices.h"
#include "parallel/shard/operators/windows.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

// The rules of window plans whose key has the extents of the outputs.
const char kAdaptiveAverageRule = 0;
const char kAdaptiveMaximumRule = 0;

SplitRange window(int64_t output, int64_t inputs, int64_t outputs) {
  return {output * inputs / outputs, ((output + 1) * inputs + outputs - 1) / outputs};
}

WindowedDim adaptive(int64_t inputs, int64_t outputs) {
  return {outputs, [=](int64_t output) { return window(output, inputs, outputs); }};
}

struct Arguments {
  Arguments(const at::Tensor& self, at::IntArrayRef output_size, size_t dims)
      : outputs(for_each_dim(output_size, dims, "output_size")),
        first(self.dim() - static_cast<int64_t>(dims)) {
    bool is_valid = first == 1 || first == 2;
    for (size_t i = 0; i < dims && is_valid; ++i) {
      is_valid = outputs[i] > 0 && self.size(first + static_cast<int64_t>(i)) > 0;
    }
    if (!is_valid) {
      throw ShardTensorError(fmt::format("adaptive pooling: a tensor of {} to {}",
                                         to_words(self.sizes()), to_words(output_size)));
    }
  }

  // Under which a window plan is kept.
  std::vector<int64_t> key(int64_t rule) const {
    std::vector<int64_t> key = {rule};
    key.insert(key.end(), outputs.begin(), outputs.end());
    return key;
  }

  std::vector<int64_t> outputs;
  int64_t first;
};

// Rows: the windows of `outputs`; columns: the inputs of `range`.
at::Tensor weights(SplitRange outputs, SplitRange range, int64_t inputs, int64_t all_outputs,
                   const at::TensorOptions& options) {
  at::Tensor matrix = at::zeros({outputs.size(), range.size()}, at::kDouble);
  for (int64_t output = outputs.begin; output < outputs.end; ++output) {
    const SplitRange read = window(output, inputs, all_outputs);
    const int64_t begin = std::max(read.begin, range.begin);
    const int64_t end = std::min(read.end, range.end);
    if (begin >= end) continue;
    matrix[output - outputs.begin]
        .narrow(0, begin - range.begin, end - begin)
        .fill_(1.0 / static_cast<double>(read.size()));
  }
  return matrix.to(options);
}

at::Tensor multiply_along(const at::Tensor& tensor, int64_t dim, const at::Tensor& matrix) {
  return at::matmul(tensor.movedim(dim, -1), matrix.t()).movedim(-1, dim).contiguous();
}

// The axes that cut `dim` become Partial, and the dimension whole with `outputs`.
SpecPtr summed_spec(const SpecPtr& spec, int64_t dim, int64_t outputs) {
  Placements placements = spec->placements();
  for (Placement& placement : placements) {
    if (placement.is_shard(dim)) placement = Partial();
  }
  std::vector<DimCut> cuts = spec->layout().cuts();
  cuts[static_cast<size_t>(dim)] = {{}, {outputs}};
  return make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                        std::move(placements), std::move(cuts)));
}

template <size_t dims>
at::Tensor adaptive_avg_pool(const at::Tensor& self, at::IntArrayRef output_size) {
  const at::ScalarType dtype = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(dtype),
                              "adaptive average pooling is not implemented for ", dtype);
  const Arguments arguments(self, output_size, dims);
  const SpecPtr spec = windowed_spec(spec_of(self), {});
  std::vector<WindowedDim> windows;
  std::vector<bool> is_summed;
  for (size_t i = 0; i < dims; ++i) {
    const int64_t dim = arguments.first + static_cast<int64_t>(i);
    const std::optional<CutDim> cut = cut_of(*spec, dim);
    is_summed.push_back(cut && arguments.outputs[i] < static_cast<int64_t>(cut->sizes.size()));
    windows.push_back(is_summed[i] ? WindowedDim::sliding(self.size(dim), 1, 1, 0, 1)
                                   : adaptive(self.size(dim), arguments.outputs[i]));
  }
  const WindowPlan plan(spec, {.first = arguments.first},
                        arguments.key(rule_number(&kAdaptiveAverageRule)), [&] { return windows; });
  SpecPtr result = plan.result();
  for (size_t i = 0; i < dims; ++i) {
    const int64_t dim = arguments.first + static_cast<int64_t>(i);
    if (is_summed[i]) result = summed_spec(result, dim, arguments.outputs[i]);
  }
  at::Tensor pooled = plan.gather(to_local(redistribute(self, spec)));
  // Whole dimensions by LibTorch's kernel, which leaves the others as they are.
  std::vector<int64_t> extents = arguments.outputs;
  for (const WindowPlan::Cut& cut : plan.cuts()) {
    extents[static_cast<size_t>(cut.dim - arguments.first)] = pooled.size(cut.dim);
  }
  const bool has_elements = pooled.numel() > 0;
  // Weights such as 1/3, and the sums, in float32; rounded once.
  if (has_elements && !plan.cuts().empty() && at::isReducedFloatingType(dtype)) {
    pooled = pooled.to(at::kFloat);
  }
  if (has_elements && plan.cuts().size() < dims) {
    if constexpr (dims == 1) pooled = at::adaptive_avg_pool1d(pooled, extents);
    if constexpr (dims == 2) pooled = at::adaptive_avg_pool2d(pooled, extents);
    if constexpr (dims == 3) pooled = at::adaptive_avg_pool3d(pooled, extents);
  }
  if (!has_elements) {
    // Zeros are right for sums too: this rank adds nothing.
    const at::Tensor zeros = at::zeros(result->local_shape(), pooled.options());
    if (!pooled.requires_grad()) return from_local(zeros, result);
    return from_local(tie(zeros, plan.cuts().size() < dims ? pooled.square() : pooled), result);
  }
  for (const WindowPlan::Cut& cut : plan.cuts()) {
    const auto i = static_cast<size_t>(cut.dim - arguments.first);
    const SplitRange outputs = is_summed[i] ? SplitRange{0, arguments.outputs[i]} : cut.owned;
    pooled = multiply_along(
        pooled, cut.dim,
        weights(outputs, cut.range, self.size(cut.dim), arguments.outputs[i], pooled.options()));
  }
  return from_local(pooled.to(dtype), result);
}

template <size_t dims>
std::tuple<at::Tensor, at::Tensor> adaptive_max_pool(const at::Tensor& self,
                                                     at::IntArrayRef output_size) {
  const Arguments arguments(self, output_size, dims);
  const SpecPtr spec = windowed_spec(spec_of(self), {});
  std::vector<WindowedDim> windows;
  for (size_t i = 0; i < dims; ++i) {
    windows.push_back(
        adaptive(self.size(arguments.first + static_cast<int64_t>(i)), arguments.outputs[i]));
  }
  const WindowPlan plan(spec, {.first = arguments.first},
                        arguments.key(rule_number(&kAdaptiveMaximumRule)), [&] { return windows; });
  const SpecPtr& result = plan.result();
  at::Tensor laid_out = plan.gather(to_local(redistribute(self, spec)));
  if (!plan.computes()) {
    return {
        from_local(plan.nothing(laid_out, true), result),
        from_local(at::empty(result->local_shape(), laid_out.options().dtype(at::kLong)), result)};
  }
  std::vector<int64_t> kernel;
  std::vector<at::Tensor> positions;  // in the whole tensor
  for (size_t i = 0; i < dims; ++i) {
    const int64_t dim = arguments.first + static_cast<int64_t>(i);
    const WindowPlan::Cut* cut = plan.cut(dim);
    const SplitRange owned = cut == nullptr ? SplitRange{0, arguments.outputs[i]} : cut->owned;
    int64_t longest = 0;
    for (int64_t o = owned.begin; o < owned.end; ++o) {
      longest = std::max(longest, windows[i].reads(o).size());
    }
    std::vector<int64_t> of_dim;
    for (int64_t o = owned.begin; o < owned.end; ++o) {
      const SplitRange read = windows[i].reads(o);
      for (int64_t j = 0; j < longest; ++j)
        of_dim.push_back(std::min(read.begin + j, read.end - 1));
    }
    kernel.push_back(longest);
    positions.push_back(constant(of_dim).to(laid_out.device()));
    laid_out = laid_out.index_select(
        dim, cut == nullptr ? positions.back() : positions.back() - cut->range.begin);
  }
  std::tuple<at::Tensor, at::Tensor> pooled;
  if constexpr (dims == 1) pooled = at::max_pool1d_with_indices(laid_out, kernel, kernel);
  if constexpr (dims == 2) pooled = at::max_pool2d_with_indices(laid_out, kernel, kernel);
  if constexpr (dims == 3) pooled = at::max_pool3d_with_indices(laid_out, kernel, kernel);
  const auto first = static_cast<size_t>(arguments.first);
  std::vector<at::Tensor> places = unravel(std::get<1>(pooled), laid_out.sizes().slice(first));
  for (size_t i = 0; i < dims; ++i) places[i] = positions[i].take(places[i]);
  return {from_local(std::get<0>(pooled), result),
          from_local(ravel(places, self.sizes().slice(first)), result)};
}

const Movement kAverage = {"Shard of any dim, Replicate",
                           "what windows read of other pieces; fewer outputs than pieces: nothing, "
                           "the result is Partial(sum); a Partial is reduced",
                           "the same, back"};
const Movement kMaximum = {"Shard of any dim, Replicate",
                           "what windows read of other pieces; a Partial is reduced",
                           "the same, back"};

const bool kRegistered =
    OperatorFamily("adaptive pooling")
        .above_autograd("aten::adaptive_avg_pool1d", &adaptive_avg_pool<1>, kAverage)
        .above_autograd("aten::adaptive_avg_pool2d", &adaptive_avg_pool<2>, kAverage)
        .above_autograd("aten::adaptive_avg_pool3d", &adaptive_avg_pool<3>, kAverage)
        .above_autograd("aten::adaptive_max_pool1d", &adaptive_max_pool<1>, kMaximum)
        .above_autograd("aten::adaptive_max_pool2d", &adaptive_max_pool<2>, kMaximum)
        .above_autograd("aten::adaptive_max_pool3d", &adaptive_max_pool<3>, kMaximum)
        .registered();

}  // namespace
}  // namespace meshrun
