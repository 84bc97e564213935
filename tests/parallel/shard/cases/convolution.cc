#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

using Numbers = std::vector<int64_t>;

struct Drawn {
  Numbers kernel, stride, padding, dilation, output_padding, shape;
};

// For `dims` spatial dimensions; windows fit into the extents.
Drawn draw_windows(Draw& draw, int64_t dims, bool transposed) {
  Drawn drawn;
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t kernel = draw.integer(1, 4);
    const int64_t stride = draw.integer(1, 3);
    const int64_t dilation = draw.chance(0.7) ? 1 : 2;
    const int64_t reach = dilation * (kernel - 1) + 1;
    int64_t padding = draw.integer(0, 3);
    int64_t extent = draw.integer(1, dims == 1 ? 14 : 9);
    int64_t output_padding = 0;
    if (transposed) {
      output_padding = draw.integer(0, std::max(stride, dilation) - 1);
      while ((extent - 1) * stride - 2 * padding + reach + output_padding <= 0) ++extent;
    } else {
      while (extent + 2 * padding < reach) ++extent;
    }
    drawn.kernel.push_back(kernel);
    drawn.stride.push_back(stride);
    drawn.padding.push_back(padding);
    drawn.dilation.push_back(dilation);
    drawn.output_padding.push_back(output_padding);
    drawn.shape.push_back(extent);
  }
  return drawn;
}

Numbers joined(Numbers front, const Numbers& back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

at::Tensor convolve(int64_t dims, const Tensors& x, const Drawn& w, int64_t groups) {
  if (dims == 1) return at::conv1d(x[0], x[1], x[2], w.stride, w.padding, w.dilation, groups);
  if (dims == 2) return at::conv2d(x[0], x[1], x[2], w.stride, w.padding, w.dilation, groups);
  return at::conv3d(x[0], x[1], x[2], w.stride, w.padding, w.dilation, groups);
}

at::Tensor convolve_transposed(int64_t dims, const Tensors& x, const Drawn& w, int64_t groups) {
  if (dims == 1) {
    return at::conv_transpose1d(x[0], x[1], x[2], w.stride, w.padding, w.output_padding, groups,
                                w.dilation);
  }
  if (dims == 2) {
    return at::conv_transpose2d(x[0], x[1], x[2], w.stride, w.padding, w.output_padding, groups,
                                w.dilation);
  }
  return at::conv_transpose3d(x[0], x[1], x[2], w.stride, w.padding, w.output_padding, groups,
                              w.dilation);
}

at::Tensor convolve_same(int64_t dims, const Tensors& x, const Drawn& w, int64_t groups) {
  const Numbers ones(static_cast<size_t>(dims), 1);
  if (dims == 1) return at::conv1d(x[0], x[1], x[2], ones, "same", w.dilation, groups);
  if (dims == 2) return at::conv2d(x[0], x[1], x[2], ones, "same", w.dilation, groups);
  return at::conv3d(x[0], x[1], x[2], ones, "same", w.dilation, groups);
}

std::string words(const char* name, const Drawn& w, int64_t groups) {
  return fmt::format("{} kernel {} stride {} padding {} dilation {} output_padding {} groups {}",
                     name, w.kernel, w.stride, w.padding, w.dilation, w.output_padding, groups);
}

OperatorCase draw_any(Draw& draw) {
  const int64_t dims = draw.one_of<int64_t>({1, 2, 2, 2, 3});
  const bool transposed = draw.chance(0.35);
  const int64_t groups = draw.integer(1, 2);
  const int64_t in = groups * draw.integer(1, 2);
  const int64_t out = groups * draw.integer(1, 2);
  const Drawn w = draw_windows(draw, dims, transposed);
  const at::Tensor x = draw.normal(joined({draw.integer(1, 3), in}, w.shape));
  const at::Tensor weight = draw.normal(transposed ? joined({in, out / groups}, w.kernel)
                                                   : joined({out, in / groups}, w.kernel));
  OperatorCase drawn{words(transposed ? "conv_transpose" : "conv", w, groups),
                     {x, weight, draw.normal({out})},
                     [=](const Tensors& inputs) {
                       return Tensors{transposed ? convolve_transposed(dims, inputs, w, groups)
                                                 : convolve(dims, inputs, w, groups)};
                     }};
  if (draw.chance(0.3)) drawn.plain = {1, 2};
  if (draw.chance(0.3)) {
    drawn.inputs.pop_back();
    drawn.call = [call = drawn.call](const Tensors& inputs) {
      return call({inputs[0], inputs[1], at::Tensor()});
    };
  }
  return drawn;
}

// Large enough that the inner part is computed while halos travel.
OperatorCase draw_large(Draw& draw) {
  const int64_t kernel = draw.integer(2, 5);
  const int64_t stride = draw.integer(1, 2);
  const int64_t padding = draw.integer(0, 3);
  const at::Tensor x = draw.normal({1, 8, draw.integer(30, 41), draw.integer(20, 27)});
  return OperatorCase{
      fmt::format("conv2d kernel {} stride {} padding {}", kernel, stride, padding),
      {x, draw.normal({8, 8, kernel, kernel}), draw.normal({8})},
      [=](const Tensors& inputs) {
        return Tensors{at::conv2d(inputs[0], inputs[1], inputs[2], stride, padding)};
      }};
}

OperatorCase draw_same(Draw& draw) {
  const int64_t dims = draw.integer(1, 2);
  Drawn w;
  for (int64_t d = 0; d < dims; ++d) {
    w.kernel.push_back(draw.integer(1, 5));
    w.dilation.push_back(draw.integer(1, 2));
    w.shape.push_back(draw.extent());
  }
  return OperatorCase{
      words("conv", w, 1),
      {draw.normal(joined({2, 2}, w.shape)), draw.normal(joined({3, 2}, w.kernel)),
       draw.normal({3})},
      [=](const Tensors& inputs) { return Tensors{convolve_same(dims, inputs, w, 1)}; }};
}

const bool kRegistered = register_operator_cases("convolution", [](Draw& draw) {
  if (draw.chance(0.1)) return draw_large(draw);
  return draw.chance(0.2) ? draw_same(draw) : draw_any(draw);
});

}  // namespace
}  // namespace meshrun
