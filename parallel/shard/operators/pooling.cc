// Pooling with windows of one size. Cut dimensions are padded as they are gathered; what differs
// between windows (how many elements an average counts, the index of a maximum in the whole tensor)
// follows from their global position.
//
// Unlike a convolution, a pooling waits for its halos before it computes: it reads each element
// about once, and joining an inner part to its borders would copy the result again.
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ops/avg_pool2d.h"
#include "ATen/ops/avg_pool3d.h"
#include "ATen/ops/div.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/max_pool1d_with_indices.h"
#include "ATen/ops/max_pool2d_with_indices.h"
#include "ATen/ops/max_pool3d_with_indices.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/where.h"
#include "c10/util/SmallVector.h"
#include "fmt/format.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/flat_indices.h"
#include "parallel/shard/operators/windows.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

// The rule of window plans whose key has the arguments.
const char kPoolingRule = 0;

struct Pooling {
  Pooling(const at::Tensor& self, size_t dims, at::IntArrayRef kernel_, at::IntArrayRef stride_,
          at::IntArrayRef padding_, at::IntArrayRef dilation_, bool ceil_mode);

  size_t dims() const { return kernel.size(); }
  std::vector<WindowedDim> windows() const;
  WindowPlan plan(const SpecPtr& input) const;

  std::vector<int64_t> kernel, stride, padding, dilation, outputs;
  int64_t first;  // spatial dimension
};

Pooling::Pooling(const at::Tensor& self, size_t dims, at::IntArrayRef kernel_,
                 at::IntArrayRef stride_, at::IntArrayRef padding_, at::IntArrayRef dilation_,
                 bool ceil_mode)
    : kernel(for_each_dim(kernel_, dims, "kernel_size")),
      stride(stride_.empty() ? kernel : for_each_dim(stride_, dims, "stride")),
      padding(for_each_dim(padding_, dims, "padding")),
      dilation(for_each_dim(dilation_, dims, "dilation")),
      first(self.dim() - static_cast<int64_t>(dims)) {
  if (first != 1 && first != 2) {
    throw ShardTensorError(fmt::format("pooling: a tensor of {} for {} spatial dimensions",
                                       to_words(self.sizes()), dims));
  }
  for (size_t i = 0; i < dims; ++i) {
    const int64_t extent = self.size(first + static_cast<int64_t>(i));
    const int64_t reach = dilation[i] * (kernel[i] - 1) + 1;
    const bool is_valid = kernel[i] > 0 && stride[i] > 0 && dilation[i] > 0 && padding[i] >= 0 &&
                          padding[i] <= reach / 2 && extent > 0;
    outputs.push_back(is_valid ? sliding_outputs(extent, kernel[i], stride[i], padding[i],
                                                 padding[i], dilation[i], ceil_mode)
                               : 0);
    if (outputs.back() <= 0) {
      throw ShardTensorError(
          fmt::format("pooling: kernel {}, stride {}, padding {}, dilation {} on an extent of {}",
                      kernel[i], stride[i], padding[i], dilation[i], extent));
    }
  }
}

std::vector<WindowedDim> Pooling::windows() const {
  std::vector<WindowedDim> windows;
  for (size_t i = 0; i < dims(); ++i) {
    windows.push_back(
        WindowedDim::sliding(outputs[i], kernel[i], stride[i], padding[i], dilation[i]));
  }
  return windows;
}

WindowPlan Pooling::plan(const SpecPtr& input) const {
  c10::SmallVector<int64_t, 24> key = {rule_number(&kPoolingRule)};
  for (const auto* values : {&kernel, &stride, &padding, &dilation, &outputs}) {
    key.append(values->begin(), values->end());
  }
  return WindowPlan(input, {.first = first}, key, [&] { return windows(); });
}

// What a pooling of this rank computes from.
struct Gathered {
  Gathered(const at::Tensor& self, const Pooling& pooling, const at::Scalar& beyond)
      : spec(windowed_spec(spec_of(self), {})),
        plan(pooling.plan(spec)),
        tensor(plan.gather(to_local(redistribute(self, spec)), beyond)),
        padding(pooling.padding) {
    for (size_t i = 0; i < padding.size(); ++i) {
      if (plan.cut(pooling.first + static_cast<int64_t>(i)) == nullptr) continue;
      gathers_padding |= padding[i] > 0;
      padding[i] = 0;
    }
  }

  SpecPtr spec;
  WindowPlan plan;
  at::Tensor tensor;
  std::vector<int64_t> padding;  // that is left to do
  bool gathers_padding = false;  // on some rank
};

at::Scalar lowest(at::ScalarType type) {
  if (at::isFloatingType(type)) return -std::numeric_limits<double>::infinity();
  switch (type) {
    case at::kByte:
      return 0;
    case at::kChar:
      return std::numeric_limits<int8_t>::lowest();
    case at::kShort:
      return std::numeric_limits<int16_t>::lowest();
    case at::kInt:
      return std::numeric_limits<int32_t>::lowest();
    default:
      return std::numeric_limits<int64_t>::lowest();
  }
}

std::tuple<at::Tensor, at::Tensor> max_pool_locally(const Pooling& pooling, const Gathered& input,
                                                    bool ceil_mode) {
  const auto call = [&](auto function) {
    return function(input.tensor, pooling.kernel, pooling.stride, input.padding, pooling.dilation,
                    ceil_mode);
  };
  if (pooling.dims() == 1) return call(at::max_pool1d_with_indices);
  if (pooling.dims() == 2) return call(at::max_pool2d_with_indices);
  return call(at::max_pool3d_with_indices);
}

struct Maxima {
  at::Tensor values;
  std::vector<at::Tensor> places;  // in the gathered tensor, by spatial dimension
};

// A window without any value above the lowest one names its first position. Where that is padding
// that was gathered, LibTorch names the first one within.
Maxima maxima(const Pooling& pooling, const Gathered& input, bool ceil_mode) {
  const auto first = static_cast<size_t>(pooling.first);
  const at::IntArrayRef shape = input.tensor.sizes().slice(first);
  if (!input.gathers_padding) {
    auto [values, indices] = max_pool_locally(pooling, input, ceil_mode);
    return {values, unravel(indices, shape)};
  }
  std::vector<at::Tensor> places;
  {
    const at::NoGradGuard no_grad;
    places = unravel(std::get<1>(max_pool_locally(pooling, input, ceil_mode)), shape);
  }
  for (const WindowPlan::Cut& cut : input.plan.cuts()) {
    const auto i = static_cast<size_t>(cut.dim) - first;
    const at::Tensor place = places[i] + cut.range.begin;
    const at::Tensor inner = place.remainder(pooling.dilation[i]);
    places[i] = at::where(place.lt(0), inner, place) - cut.range.begin;
  }
  const at::Tensor flat = ravel(places, shape).flatten(pooling.first);
  const at::Tensor values = input.tensor.flatten(pooling.first).gather(-1, flat);
  return {values.view(places[0].sizes()), std::move(places)};
}

template <size_t dims>
std::tuple<at::Tensor, at::Tensor> max_pool_with_indices(const at::Tensor& self,
                                                         at::IntArrayRef kernel,
                                                         at::IntArrayRef stride,
                                                         at::IntArrayRef padding,
                                                         at::IntArrayRef dilation, bool ceil_mode) {
  const Pooling pooling(self, dims, kernel, stride, padding, dilation, ceil_mode);
  const Gathered input(self, pooling, lowest(self.scalar_type()));
  const SpecPtr& result = input.plan.result();
  if (!input.plan.computes()) {
    return {from_local(input.plan.nothing(input.tensor, !input.gathers_padding), result),
            from_local(at::empty(result->local_shape(), input.tensor.options().dtype(at::kLong)),
                       result)};
  }
  Maxima found = maxima(pooling, input, ceil_mode);
  for (const WindowPlan::Cut& cut : input.plan.cuts()) {
    at::Tensor& place = found.places[static_cast<size_t>(cut.dim - pooling.first)];
    place = place + cut.range.begin;
  }
  return {from_local(found.values, result),
          from_local(ravel(found.places, self.sizes().slice(static_cast<size_t>(pooling.first))),
                     result)};
}

template <size_t dims>
at::Tensor max_pool(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride,
                    at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const Pooling pooling(self, dims, kernel, stride, padding, dilation, ceil_mode);
  const Gathered input(self, pooling, lowest(self.scalar_type()));
  return from_local(input.plan.computes()
                        ? maxima(pooling, input, ceil_mode).values
                        : input.plan.nothing(input.tensor, !input.gathers_padding),
                    input.plan.result());
}

// How many elements each of this rank's windows counts, by dimension.
at::Tensor counts(const at::Tensor& self, const Pooling& pooling, const Gathered& input,
                  bool count_include_pad, const at::TensorOptions& options) {
  at::Tensor product = at::ones({}, at::kDouble);
  for (size_t i = 0; i < pooling.dims(); ++i) {
    const int64_t dim = pooling.first + static_cast<int64_t>(i);
    const WindowPlan::Cut* cut = input.plan.cut(dim);
    const SplitRange owned = cut == nullptr ? SplitRange{0, pooling.outputs[i]} : cut->owned;
    const int64_t extent = self.size(dim);
    std::vector<double> of_dim;
    for (int64_t output = owned.begin; output < owned.end; ++output) {
      const int64_t begin = output * pooling.stride[i] - pooling.padding[i];
      const int64_t end = std::min(begin + pooling.kernel[i], extent + pooling.padding[i]);
      of_dim.push_back(static_cast<double>(
          count_include_pad ? end - begin : std::min(end, extent) - std::max<int64_t>(begin, 0)));
    }
    product = product.unsqueeze(-1) * constant(of_dim);
  }
  return product.to(options);
}

// Raises what LibTorch raises for such a dtype, also on a rank without windows.
template <size_t dims>
void check_averages(const at::Tensor& self) {
  if (at::isFloatingType(self.scalar_type())) return;
  const at::Tensor one =
      at::ones({1, 1, 1, 1}, at::TensorOptions().dtype(self.scalar_type()).device(self.device()));
  if constexpr (dims == 3) {
    at::avg_pool3d(one, {1, 1, 1});
  } else {
    at::avg_pool2d(one, {1, 1});
  }
}

template <size_t dims>
at::Tensor avg_pool(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride,
                    at::IntArrayRef padding, bool ceil_mode, bool count_include_pad,
                    std::optional<int64_t> divisor) {
  const std::vector<int64_t> ones(dims, 1);
  const Pooling pooling(self, dims, kernel, stride, padding, ones, ceil_mode);
  if (divisor == 0) throw ShardTensorError("avg_pool: divisor_override is 0");
  check_averages<dims>(self);
  const Gathered input(self, pooling, 0);
  const SpecPtr& result = input.plan.result();
  if (!input.plan.computes()) return from_local(input.plan.nothing(input.tensor, true), result);
  // As LibTorch: 16-bit floats are added in float32 and rounded once, after the division.
  const at::ScalarType dtype = self.scalar_type();
  const at::Tensor elements =
      at::isReducedFloatingType(dtype) ? input.tensor.to(at::kFloat) : input.tensor;
  at::Tensor sums;
  if constexpr (dims == 3) {
    sums = at::avg_pool3d(elements, pooling.kernel, pooling.stride, input.padding, ceil_mode, true,
                          divisor.value_or(1));
  } else if constexpr (dims == 2) {
    sums = at::avg_pool2d(elements, pooling.kernel, pooling.stride, input.padding, ceil_mode, true,
                          divisor.value_or(1));
  } else {
    sums = at::avg_pool2d(elements.unsqueeze(-2), {1, pooling.kernel[0]}, {1, pooling.stride[0]},
                          {0, input.padding[0]}, ceil_mode, true, divisor.value_or(1))
               .squeeze(-2);
  }
  if (!divisor) {
    const at::Tensor count = counts(self, pooling, input, count_include_pad, sums.options());
    // Integers as in C++: towards 0.
    sums = at::isFloatingType(dtype) ? sums / count : at::div(sums, count, "trunc");
  }
  return from_local(sums.to(dtype), result);
}

at::Tensor avg_pool1d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride,
                      at::IntArrayRef padding, bool ceil_mode, bool count_include_pad) {
  return avg_pool<1>(self, kernel, stride, padding, ceil_mode, count_include_pad, std::nullopt);
}

const Movement kWindows = {"Shard of any dim, Replicate",
                           "halos of cut dims, exact bytes; nothing where windows lie within the "
                           "pieces; a Partial is reduced",
                           "halos back"};

const bool kRegistered =
    OperatorFamily("pooling")
        .above_autograd("aten::max_pool1d", &max_pool<1>, kWindows)
        .above_autograd("aten::max_pool2d", &max_pool<2>, kWindows)
        .above_autograd("aten::max_pool3d", &max_pool<3>, kWindows)
        .above_autograd("aten::max_pool1d_with_indices", &max_pool_with_indices<1>, kWindows)
        .above_autograd("aten::max_pool2d_with_indices", &max_pool_with_indices<2>, kWindows)
        .above_autograd("aten::max_pool3d_with_indices", &max_pool_with_indices<3>, kWindows)
        .above_autograd("aten::avg_pool1d", &avg_pool1d, kWindows)
        .above_autograd("aten::avg_pool2d", &avg_pool<2>, kWindows)
        .above_autograd("aten::avg_pool3d", &avg_pool<3>, kWindows)
        .registered();

}  // namespace
}  // namespace meshrun
