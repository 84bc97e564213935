#include <cmath>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

using Numbers = std::vector<int64_t>;
using Factors = std::optional<at::ArrayRef<double>>;
using Size = at::OptionalIntArrayRef;

at::Tensor interpolate(const std::string& mode, const at::Tensor& x, Size size, bool align,
                       Factors factors) {
  const int64_t dims = x.dim() - 2;
  if (mode == "bicubic") return at::upsample_bicubic2d(x, size, align, factors);
  if (mode == "linear") {
    return dims == 1   ? at::upsample_linear1d(x, size, align, factors)
           : dims == 2 ? at::upsample_bilinear2d(x, size, align, factors)
                       : at::upsample_trilinear3d(x, size, align, factors);
  }
  if (mode == "nearest") {
    return dims == 1   ? at::upsample_nearest1d(x, size, factors)
           : dims == 2 ? at::upsample_nearest2d(x, size, factors)
                       : at::upsample_nearest3d(x, size, factors);
  }
  return dims == 1   ? at::_upsample_nearest_exact1d(x, size, factors)
         : dims == 2 ? at::_upsample_nearest_exact2d(x, size, factors)
                     : at::_upsample_nearest_exact3d(x, size, factors);
}

const bool kRegistered = register_operator_cases("interpolation", [](Draw& draw) {
  const std::string mode =
      draw.one_of<std::string>({"nearest", "nearest-exact", "linear", "linear", "bicubic"});
  const int64_t dims = mode == "bicubic" ? 2 : draw.integer(1, 3);
  const bool align = draw.chance(0.5);
  Numbers shape = {draw.integer(1, 3), draw.integer(1, 3)};
  Numbers size;
  std::vector<double> factors;
  for (int64_t d = 0; d < dims; ++d) {
    shape.push_back(draw.extent());
    size.push_back(draw.integer(1, 14));
    const double factor = draw.one_of<double>({2, 2, 3, 1, 0.5, 1.5, 2.7, 0.7, 1.3});
    const auto extent = static_cast<double>(shape.back());
    const double grown = std::floor(extent * factor) / extent;
    // LibTorch's nearest_idx leaves the factor out where extents are equal or twice as large, and
    // other kernels of the same operator take it.
    const bool is_left_out = (grown == 1 || grown == 2) && grown != factor;
    factors.push_back(extent * factor < 1 || is_left_out ? 1.0 : factor);
  }
  const bool scales = draw.chance(0.5);
  const at::Tensor x = draw.normal(shape);
  const bool in_float = draw.chance(0.3);
  const std::string name = scales ? fmt::format("{} by {} of {}", mode, factors, shape)
                                  : fmt::format("{} to {} of {}", mode, size, shape);
  return OperatorCase{name + (align ? ", aligned" : ""),
                      {in_float ? x.to(at::kFloat) : x},
                      [=](const Tensors& inputs) {
                        return Tensors{interpolate(mode, inputs[0], scales ? Size() : Size(size),
                                                   align, scales ? Factors(factors) : Factors())};
                      }};
});

}  // namespace
}  // namespace meshrun
