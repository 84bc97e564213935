#include <limits>
#include <optional>
#include <string>

#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/shard/raising_call.h"

namespace meshrun {
namespace {

// Scales from which every byte of a key decides once.
at::Tensor spread_values(Draw& draw, const std::vector<int64_t>& shape) {
  if (draw.chance(0.4)) return draw.normal(shape);
  if (draw.chance(0.5)) return draw.integers(shape, -3, 3).to(at::kDouble);
  return draw.normal(shape) * at::pow(2.0, draw.integers(shape, -30, 30).to(at::kDouble));
}

const bool kRegistered = register_operator_cases("medians", [](Draw& draw) {
  std::vector<int64_t> shape(static_cast<size_t>(draw.integer(0, 3)));
  for (int64_t& extent : shape) extent = draw.chance(0.05) ? 0 : draw.extent();
  const at::ScalarType type =
      draw.chance(0.5)
          ? at::kDouble
          : draw.one_of<at::ScalarType>({at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                                         at::kShort, at::kChar, at::kByte});
  at::Tensor x = spread_values(draw, shape);
  if (!at::isFloatingType(type)) x = (x * 9).clamp(type == at::kByte ? 0 : -120, 120);
  x = x.to(type);
  if (at::isFloatingType(type) && x.numel() > 0 && draw.chance(0.4)) {
    // All NaN sometimes.
    const at::Tensor chosen = draw.integers(shape, 0, 9) < draw.integer(1, 10);
    x = x.masked_fill(chosen, std::numeric_limits<double>::quiet_NaN());
  }
  if (type == at::kDouble && draw.chance(0.1)) {
    x = x.masked_fill(x > 1, std::numeric_limits<double>::infinity());
  }
  OperatorCase drawn{"median, nanmedian", {x}, [](const Tensors& t) {
                       return Tensors{at::median(t[0]), at::nanmedian(t[0]),
                                      raises([&] { at::median((t[0] > 0).flatten()); })};
                     }};
  drawn.equality = Equality::kBits;
  // Sums of summands would order equal elements.
  drawn.no_partial = type != at::kDouble || draw.chance(0.5);
  return drawn;
});

const bool kQuantilesRegistered = register_operator_cases("quantiles", [](Draw& draw) {
  std::vector<int64_t> shape(static_cast<size_t>(draw.integer(1, 3)));
  for (int64_t& extent : shape) extent = draw.extent();
  const auto ndim = static_cast<int64_t>(shape.size());
  at::Tensor x = spread_values(draw, shape);
  if (draw.chance(0.3)) x = x.masked_fill(x > 1, std::numeric_limits<double>::quiet_NaN());
  const std::optional<int64_t> dim =
      draw.chance(0.2) ? std::nullopt : std::optional(draw.integer(-ndim, ndim - 1));
  const bool keepdim = draw.chance(0.5);
  const std::string how =
      draw.one_of<std::string>({"linear", "lower", "higher", "nearest", "midpoint"});
  const double q = draw.integer(0, 10) / 10.0;
  return OperatorCase{"quantile, nanquantile", {x}, [=](const Tensors& t) {
                        const at::Tensor several = at::arange(3, at::kDouble) / 2;
                        return Tensors{at::quantile(t[0], q, dim, keepdim, how),
                                       at::nanquantile(t[0], q, dim, keepdim, how),
                                       at::quantile(t[0], several, dim, keepdim, how),
                                       at::nanquantile(t[0], several, dim, keepdim, how),
                                       raises([&] { at::quantile(t[0], 1.5, dim); })};
                      }};
});

}  // namespace
}  // namespace meshrun
