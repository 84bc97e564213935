// Pooling to given extents, with windows of different sizes.
//
// Averages of whole images are LibTorch's kernel's. Else the windows of each dimension are laid out
// one after the other, filled up with zeros, and added up. Where there are fewer outputs than
// pieces each rank adds up what it has (Partial); else it gathers its windows. For maxima the
// windows are filled up with their last element, and pooled as equal ones.
#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ops/adaptive_avg_pool1d.h"
#include "ATen/ops/adaptive_avg_pool2d.h"
#include "ATen/ops/adaptive_avg_pool3d.h"
#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/max_pool1d_with_indices.h"
#include "ATen/ops/max_pool2d_with_indices.h"
#include "ATen/ops/max_pool3d_with_indices.h"
#include "ATen/ops/zeros.h"
#include "fmt/format.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/collectives/call/pieces.h"
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

// The averages of the windows of `outputs`, of which this rank has the inputs of `range`; the other
// inputs are zeros. No product with a matrix of weights: a zero times an infinity is a NaN.
at::Tensor averages(const at::Tensor& tensor, int64_t dim, SplitRange outputs, SplitRange range,
                    int64_t inputs, int64_t all_outputs) {
  std::vector<SplitRange> windows;
  std::vector<double> sizes;
  int64_t before = 0;  // outputs without inputs of this rank; there are others after
  int64_t longest = 0;
  for (int64_t output = outputs.begin; output < outputs.end; ++output) {
    const SplitRange read = window(output, inputs, all_outputs);
    const SplitRange own = {std::max(read.begin, range.begin), std::min(read.end, range.end)};
    if (own.begin >= own.end) {
      before += windows.empty();
      continue;
    }
    windows.push_back(own);
    sizes.push_back(static_cast<double>(read.size()));
    longest = std::max(longest, own.size());
  }
  const auto count = static_cast<int64_t>(windows.size());
  std::vector<int64_t> positions;
  std::vector<int64_t> missing;
  for (const SplitRange& own : windows) {
    for (int64_t j = 0; j < longest; ++j) {
      positions.push_back(std::min(own.begin + j, own.end - 1) - range.begin);
      missing.push_back(j >= own.size());
    }
  }
  std::vector<int64_t> along(static_cast<size_t>(tensor.dim()), 1);
  const auto shaped = [&](const at::Tensor& values) {
    along[static_cast<size_t>(dim)] = values.numel();
    return values.to(tensor.device()).view(along);
  };
  const bool are_laid_out = count * longest == range.size();
  at::Tensor elements =
      are_laid_out ? tensor : tensor.index_select(dim, constant(positions).to(tensor.device()));
  if (std::find(missing.begin(), missing.end(), 1) != missing.end()) {
    elements = elements.masked_fill(shaped(constant(missing).to(at::kBool)), 0);
  }
  const at::Tensor sums = elements.unflatten(dim, {count, longest}).sum(dim + 1);
  const at::Tensor result = sums / shaped(constant(sizes).to(tensor.scalar_type()));
  if (count == outputs.size()) return result;
  std::vector<int64_t> pad(static_cast<size_t>(2 * (tensor.dim() - dim)));
  pad[pad.size() - 2] = before;
  pad[pad.size() - 1] = outputs.size() - count - before;
  return at::constant_pad_nd(result, pad);
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
  // The gradient of LibTorch's kernel depends on its input for some extents, and the graphs of all
  // ranks have to be alike: all of them use it, or none.
  if (plan.cuts().empty() && !has_empty_piece(*spec)) {
    if constexpr (dims == 1) pooled = at::adaptive_avg_pool1d(pooled, arguments.outputs);
    if constexpr (dims == 2) pooled = at::adaptive_avg_pool2d(pooled, arguments.outputs);
    if constexpr (dims == 3) pooled = at::adaptive_avg_pool3d(pooled, arguments.outputs);
    return from_local(pooled, result);
  }
  // Zeros are right for sums too: this rank adds nothing.
  if (pooled.numel() == 0) {
    return from_local(connected_zeros(pooled, result->local_shape()), result);
  }
  // The sums in float32; rounded once.
  if (at::isReducedFloatingType(dtype)) pooled = pooled.to(at::kFloat);
  for (size_t i = 0; i < dims; ++i) {
    const int64_t dim = arguments.first + static_cast<int64_t>(i);
    const SplitRange all = {0, arguments.outputs[i]};
    const WindowPlan::Cut* cut = plan.cut(dim);
    pooled = cut == nullptr
                 ? averages(pooled, dim, all, {0, self.size(dim)}, self.size(dim), all.end)
                 : averages(pooled, dim, is_summed[i] ? all : cut->owned, cut->range,
                            self.size(dim), all.end);
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
