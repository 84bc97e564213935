#include <limits>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

using Numbers = std::vector<int64_t>;

struct Windows {
  Numbers kernel, stride, padding, dilation, shape;
  bool ceil_mode = false;
};

Windows draw_windows(Draw& draw, int64_t dims, bool dilates) {
  Windows w;
  w.ceil_mode = draw.chance(0.4);
  if (draw.chance(0.8)) w.shape.push_back(draw.integer(1, 3));
  w.shape.push_back(draw.integer(1, 3));
  for (int64_t d = 0; d < dims; ++d) {
    w.kernel.push_back(draw.integer(1, 4));
    w.stride.push_back(draw.integer(1, 4));
    w.dilation.push_back(dilates ? draw.integer(1, 2) : 1);
    w.padding.push_back(draw.integer(0, w.kernel.back() / 2));
    const int64_t reach = w.dilation.back() * (w.kernel.back() - 1) + 1;
    // LibTorch's averages in three dimensions want extents of at least the kernel.
    const int64_t least = dilates ? reach - 2 * w.padding.back() : w.kernel.back();
    // The index that LibTorch gives for a window that reads nothing but padding points anywhere.
    w.shape.push_back(std::max({draw.integer(1, 11), least, w.dilation.back()}));
  }
  return w;
}

std::string words(const char* name, const Windows& w) {
  return fmt::format("{} kernel {} stride {} padding {} dilation {} ceil {} of {}", name, w.kernel,
                     w.stride, w.padding, w.dilation, w.ceil_mode, w.shape);
}

Tensors max_pool(int64_t dims, bool indices, const at::Tensor& x, const Windows& w) {
  if (dims == 1 && indices) {
    return both(
        at::max_pool1d_with_indices(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode));
  }
  if (dims == 1) {
    return {at::max_pool1d(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode)};
  }
  if (dims == 2 && indices) {
    return both(
        at::max_pool2d_with_indices(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode));
  }
  if (dims == 2) {
    return {at::max_pool2d(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode)};
  }
  if (indices) {
    return both(
        at::max_pool3d_with_indices(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode));
  }
  return {at::max_pool3d(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode)};
}

OperatorCase draw_max(Draw& draw) {
  const int64_t dims = draw.integer(1, 3);
  const bool indices = draw.chance(0.6);
  const Windows w = draw_windows(draw, dims, true);
  at::Tensor x = draw.normal(w.shape);
  // Equal values, and windows without any above the lowest.
  if (draw.chance(0.3)) x = x.round();
  if (draw.chance(0.2)) x = at::where(x.gt(0.5), x, -std::numeric_limits<double>::infinity());
  OperatorCase drawn{words("max_pool", w), {x}, [=](const Tensors& inputs) {
                       return max_pool(dims, indices, inputs[0], w);
                     }};
  drawn.no_partial = true;  // infinities have no summands
  drawn.equality = Equality::kBits;
  return drawn;
}

// Sometimes with numbers that a window without them must not have.
at::Tensor draw_averaged(Draw& draw, const Numbers& shape) {
  const at::Tensor x = draw.normal(shape);
  if (draw.chance(0.2)) {
    const double infinity = std::numeric_limits<double>::infinity();
    x.view(-1)[draw.integer(0, x.numel() - 1)] =
        draw.one_of<double>({infinity, -infinity, std::numeric_limits<double>::quiet_NaN()});
  }
  return x;
}

OperatorCase draw_average(Draw& draw) {
  const int64_t dims = draw.integer(1, 3);
  const Windows w = draw_windows(draw, dims, false);
  const bool include_pad = draw.chance(0.5);
  const std::optional<int64_t> divisor =
      draw.chance(0.2) ? std::optional<int64_t>(3) : std::nullopt;
  return OperatorCase{
      words("avg_pool", w), {draw_averaged(draw, w.shape)}, [=](const Tensors& inputs) {
        const at::Tensor& x = inputs[0];
        if (dims == 1) {
          return Tensors{
              at::avg_pool1d(x, w.kernel, w.stride, w.padding, w.ceil_mode, include_pad)};
        }
        if (dims == 2) {
          return Tensors{
              at::avg_pool2d(x, w.kernel, w.stride, w.padding, w.ceil_mode, include_pad, divisor)};
        }
        return Tensors{
            at::avg_pool3d(x, w.kernel, w.stride, w.padding, w.ceil_mode, include_pad, divisor)};
      }};
}

OperatorCase draw_adaptive(Draw& draw) {
  const int64_t dims = draw.integer(1, 3);
  const bool is_max = draw.chance(0.5);
  Numbers shape = {draw.integer(1, 3), draw.integer(1, 3)};
  Numbers size;
  for (int64_t d = 0; d < dims; ++d) {
    shape.push_back(draw.extent());
    size.push_back(draw.integer(1, 7));
  }
  at::Tensor x = is_max ? draw.normal(shape) : draw_averaged(draw, shape);
  if (is_max && draw.chance(0.3)) x = x.round();
  return OperatorCase{
      fmt::format("adaptive {} pool of {} to {}", is_max ? "max" : "avg", shape, size),
      {x},
      [=](const Tensors& inputs) {
        const at::Tensor& x = inputs[0];
        if (dims == 1) {
          return is_max ? both(at::adaptive_max_pool1d(x, size))
                        : Tensors{at::adaptive_avg_pool1d(x, size)};
        }
        if (dims == 2) {
          return is_max ? both(at::adaptive_max_pool2d(x, size))
                        : Tensors{at::adaptive_avg_pool2d(x, size)};
        }
        return is_max ? both(at::adaptive_max_pool3d(x, size))
                      : Tensors{at::adaptive_avg_pool3d(x, size)};
      }};
}

const bool kRegistered = register_operator_cases("pooling", [](Draw& draw) {
  const int64_t kind = draw.integer(0, 2);
  return kind == 0 ? draw_max(draw) : kind == 1 ? draw_average(draw) : draw_adaptive(draw);
});

}  // namespace
}  // namespace meshrun
