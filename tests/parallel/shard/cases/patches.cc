#include <algorithm>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

using Numbers = std::vector<int64_t>;

// The results; one number where the call raises, so that all ranks have to raise.
Tensors results_or_raised(const std::function<Tensors()>& call) {
  try {
    return call();
  } catch (const c10::Error&) {
    return {at::zeros({1})};
  }
}

struct Blocks {
  Numbers kernel, dilation, padding, stride;
  Numbers image;  // height and width
  Numbers counts;

  std::string words() const {
    return fmt::format("kernel {} dilation {} padding {} stride {}", kernel, dilation, padding,
                       stride);
  }
};

Blocks draw_blocks(Draw& draw) {
  Blocks b;
  for (size_t d = 0; d < 2; ++d) {
    b.kernel.push_back(draw.integer(1, 4));
    b.dilation.push_back(draw.integer(1, 2));
    b.padding.push_back(draw.integer(0, 3));
    b.stride.push_back(draw.chance(0.3) ? b.kernel[d] : draw.integer(1, 4));
    const int64_t reach = b.dilation[d] * (b.kernel[d] - 1) + 1;
    b.image.push_back(std::max({draw.integer(1, 11), reach - 2 * b.padding[d], int64_t{1}}));
    b.counts.push_back((b.image[d] + 2 * b.padding[d] - reach) / b.stride[d] + 1);
  }
  return b;
}

// Without a batch, with one, with an empty one.
Numbers draw_batch(Draw& draw) {
  if (draw.chance(0.3)) return {};
  return {draw.chance(0.05) ? 0 : draw.integer(1, 3)};
}

at::Tensor draw_values(Draw& draw, const Numbers& shape) {
  const at::Tensor x = draw.normal(shape);
  return draw.chance(0.2) ? x.to(at::kFloat) : x;
}

OperatorCase draw_unfold(Draw& draw) {
  const Blocks b = draw_blocks(draw);
  Numbers shape = draw_batch(draw);
  shape.push_back(draw.integer(1, 3));
  shape.insert(shape.end(), b.image.begin(), b.image.end());
  at::Tensor x = draw_values(draw, shape);
  if (draw.chance(0.1)) x = x.gt(0);
  // There and back, in the layout that the columns have.
  const bool folds = at::isFloatingType(x.scalar_type()) && draw.chance(0.3);
  return {fmt::format("im2col {} of {}{}", b.words(), shape, folds ? ", col2im" : ""),
          {x},
          [=](const Tensors& t) {
            const at::Tensor columns = at::im2col(t[0], b.kernel, b.dilation, b.padding, b.stride);
            if (!folds) return Tensors{columns};
            return Tensors{columns, at::col2im(columns * columns, b.image, b.kernel, b.dilation,
                                               b.padding, b.stride)};
          },
          folds ? Equality::kRounding : Equality::kBits};
}

OperatorCase draw_fold(Draw& draw) {
  const Blocks b = draw_blocks(draw);
  Numbers shape = draw_batch(draw);
  shape.push_back(draw.integer(1, 3) * b.kernel[0] * b.kernel[1]);
  shape.push_back(b.counts[0] * b.counts[1]);
  return {fmt::format("col2im {} to {} of {}", b.words(), b.image, shape),
          {draw_values(draw, shape)},
          [=](const Tensors& t) {
            return Tensors{at::col2im(t[0], b.image, b.kernel, b.dilation, b.padding, b.stride)};
          }};
}

OperatorCase draw_shuffle(Draw& draw) {
  const bool shuffles = draw.chance(0.5);
  const int64_t factor = draw.integer(1, 3);
  Numbers shape(static_cast<size_t>(draw.integer(0, 2)));
  for (int64_t& extent : shape) extent = draw.integer(1, 3);
  shape.push_back(draw.integer(1, 4) * (shuffles ? factor * factor : 1));
  for (int d = 0; d < 2; ++d) shape.push_back(draw.integer(1, 6) * (shuffles ? 1 : factor));
  // LibTorch's pixel_unshuffle gives a tensor without elements back as it is.
  const bool is_empty = shuffles && draw.chance(0.1);
  if (is_empty) shape[static_cast<size_t>(draw.integer(0, 1)) + shape.size() - 2] = 0;
  const bool returns = !is_empty && draw.chance(0.3);
  OperatorCase drawn{fmt::format("{} by {} of {}{}", shuffles ? "pixel_shuffle" : "pixel_unshuffle",
                                 factor, shape, returns ? ", and back" : ""),
                     {draw_values(draw, shape)},
                     [=](const Tensors& t) {
                       const at::Tensor moved = shuffles ? at::pixel_shuffle(t[0], factor)
                                                         : at::pixel_unshuffle(t[0], factor);
                       if (!returns) return Tensors{moved};
                       const at::Tensor squared = moved * moved;
                       return Tensors{moved, shuffles ? at::pixel_unshuffle(squared, factor)
                                                      : at::pixel_shuffle(squared, factor)};
                     },
                     Equality::kBits};
  drawn.differentiable = !is_empty;
  return drawn;
}

// Arguments that LibTorch refuses.
OperatorCase draw_wrong(Draw& draw) {
  const at::Tensor x = draw.normal({2, 4, 5, 3});
  const at::Tensor columns = draw.normal({2, 8, 9});
  using Call = std::function<at::Tensor(const at::Tensor&)>;
  const auto unfold = [](Numbers kernel, Numbers dilation, Numbers padding, Numbers stride) {
    return Call(
        [=](const at::Tensor& t) { return at::im2col(t, kernel, dilation, padding, stride); });
  };
  const auto fold = [](Numbers size, Numbers kernel, Numbers padding, Numbers stride) {
    return Call([=](const at::Tensor& t) {
      return at::col2im(t, size, kernel, {1, 1}, padding, stride);
    });
  };
  const std::vector<std::pair<at::Tensor, Call>> calls = {
      {x, unfold({0, 2}, {1, 1}, {0, 0}, {1, 1})},
      {x, unfold({2, 2}, {0, 1}, {0, 0}, {1, 1})},
      {x, unfold({2, 2}, {1, 1}, {-1, 0}, {1, 1})},
      {x, unfold({2, 2}, {1, 1}, {0, 0}, {1, 0})},
      {x, unfold({2, 4}, {1, 1}, {0, 0}, {1, 1})},
      {x, unfold({2}, {1, 1}, {0, 0}, {1, 1})},
      {x.to(at::kLong), unfold({2, 2}, {1, 1}, {0, 0}, {1, 1})},
      {x.select(0, 0).select(0, 0), unfold({2, 2}, {1, 1}, {0, 0}, {1, 1})},
      {draw.normal({2, 4, 0, 3}), unfold({1, 1}, {1, 1}, {1, 1}, {1, 1})},
      {columns, fold({4, 4}, {2, 2}, {0, 0}, {2, 1})},
      {columns, fold({4, 4}, {3, 1}, {0, 0}, {1, 1})},
      {columns, fold({4, 4}, {2, 2}, {0, -1}, {1, 1})},
      {columns, fold({4}, {2, 2}, {0, 0}, {1, 1})},
      {columns, fold({4, 4}, {0, 2}, {0, 0}, {1, 1})},
      {columns.to(at::kLong), fold({4, 4}, {2, 2}, {0, 0}, {1, 1})},
      {draw.normal({2, 8, 0}), fold({1, 4}, {2, 2}, {0, 0}, {1, 1})},
      {x, [](const at::Tensor& t) { return at::pixel_shuffle(t, 3); }},
      {x, [](const at::Tensor& t) { return at::pixel_shuffle(t, 0); }},
      {x, [](const at::Tensor& t) { return at::pixel_unshuffle(t, 2); }},
      {x, [](const at::Tensor& t) { return at::pixel_unshuffle(t, -1); }},
      {x.select(0, 0).select(0, 0), [](const at::Tensor& t) { return at::pixel_shuffle(t, 1); }},
  };
  const int64_t which = draw.integer(0, static_cast<int64_t>(calls.size()) - 1);
  const auto& [operand, call] = calls[static_cast<size_t>(which)];
  return {fmt::format("wrong patches {}", which), {operand}, [call = call](const Tensors& t) {
            return results_or_raised([&] { return Tensors{call(t[0])}; });
          }};
}

const bool kRegistered = register_operator_cases("patches", [](Draw& draw) {
  if (draw.chance(0.05)) return draw_wrong(draw);
  const int64_t kind = draw.integer(0, 2);
  return kind == 0 ? draw_unfold(draw) : kind == 1 ? draw_fold(draw) : draw_shuffle(draw);
});

}  // namespace
}  // namespace meshrun
