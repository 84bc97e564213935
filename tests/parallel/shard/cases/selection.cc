#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/shard/raising_call.h"

namespace meshrun {
namespace {

using SelectionShape = std::vector<int64_t>;

// Sometimes 0.
int64_t extent_or_none(Draw& draw) { return draw.chance(0.1) ? 0 : draw.extent(); }

SelectionShape some_shape(Draw& draw, int64_t fewest, int64_t most) {
  SelectionShape shape(static_cast<size_t>(draw.integer(fewest, most)));
  for (int64_t& extent : shape) extent = extent_or_none(draw);
  return shape;
}

OperatorCase trace_case(Draw& draw) {
  const at::ScalarType type =
      draw.one_of<at::ScalarType>({at::kDouble, at::kDouble, at::kFloat, at::kInt, at::kByte});
  const SelectionShape shape = {extent_or_none(draw), extent_or_none(draw)};
  return {"trace", {(draw.normal(shape) * 9).to(type)}, [](const Tensors& t) {
            return Tensors{at::trace(t[0]), raises([&] { at::trace(t[0].unsqueeze(0)); }),
                           raises([&] { at::trace(t[0].detach() > 0); })};
          }};
}

OperatorCase glu_case(Draw& draw) {
  SelectionShape shape = some_shape(draw, 1, 3);
  const auto ndim = static_cast<int64_t>(shape.size());
  const int64_t dim = draw.integer(-ndim, ndim - 1);
  const auto d = static_cast<size_t>(dim < 0 ? dim + ndim : dim);
  const int64_t half = shape[d];
  shape[d] = 2 * half;
  const at::Tensor x = draw.normal(shape);
  shape[d] = half;
  return {"glu", {draw.normal(shape), x}, [=](const Tensors& t) {
            return Tensors{at::glu(t[1], dim), at::glu_backward(t[0], t[1], dim),
                           raises([&] { at::glu(t[1].narrow(dim, 0, 1), dim); }),
                           raises([&] { at::glu(t[1].sum(), 0); }),
                           raises([&] { at::glu(t[1], ndim); })};
          }};
}

OperatorCase cross_case(Draw& draw) {
  SelectionShape shape = some_shape(draw, 1, 3);
  const auto ndim = static_cast<int64_t>(shape.size());
  const int64_t dim = draw.integer(-ndim, ndim - 1);
  const auto d = static_cast<size_t>(dim < 0 ? dim + ndim : dim);
  SelectionShape other = shape;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (draw.chance(0.3)) (draw.chance(0.5) ? shape : other)[i] = 1;
  }
  shape[d] = 3;
  other[d] = 3;
  OperatorCase drawn{
      "linalg_cross", {draw.normal(other), draw.normal(shape)}, [=](const Tensors& t) {
        return Tensors{at::linalg_cross(t[1], t[0], dim), at::cross(t[0], t[1], dim),
                       raises([&] { at::linalg_cross(t[1], t[0].narrow(dim, 0, 2), dim); }),
                       raises([&] { at::linalg_cross(t[1], t[0].unsqueeze(0), dim); })};
      }};
  if (draw.chance(0.2)) drawn.plain = {0};
  return drawn;
}

OperatorCase rot90_case(Draw& draw) {
  const at::Tensor x = draw.normal(some_shape(draw, 2, 3));
  const int64_t first = draw.integer(0, x.dim() - 1);
  const int64_t second = (first + draw.integer(1, x.dim() - 1)) % x.dim();
  const SelectionShape dims = {draw.chance(0.5) ? first : first - x.dim(),
                               draw.chance(0.5) ? second : second - x.dim()};
  const int64_t k = draw.integer(-5, 5);
  return {"rot90",
          {x},
          [=](const Tensors& t) {
            return Tensors{at::rot90(t[0], k, dims), raises([&] {
                             at::rot90(t[0], k, {first, first});
                           }),
                           raises([&] {
                             at::rot90(t[0], k, {first, first - t[0].dim()});
                           }),
                           raises([&] { at::rot90(t[0], k, {first}); }), raises([&] {
                             at::rot90(t[0], k, {first, t[0].dim()});
                           })};
          },
          Equality::kBits};
}

OperatorCase take_case(Draw& draw) {
  const at::Tensor x = draw.normal(some_shape(draw, 0, 3));
  SelectionShape shape = some_shape(draw, 0, 2);
  if (x.numel() == 0) shape = {0};
  const int64_t numel = x.numel();
  const at::Tensor index =
      numel == 0 ? at::empty(shape, at::kLong) : draw.integers(shape, -numel, numel - 1);
  OperatorCase drawn{"take",
                     {index, x},
                     [=](const Tensors& t) {
                       return Tensors{at::take(t[1], t[0]),
                                      raises([&] { at::take(t[1], at::full({2}, numel)); }),
                                      raises([&] { at::take(t[1], at::full({2}, -numel - 1)); }),
                                      raises([&] { at::take(t[1], t[0].to(at::kInt)); })};
                     },
                     Equality::kBits};
  if (draw.chance(0.4)) drawn.plain = {0};
  return drawn;
}

const bool kRegistered = register_operator_cases("selection", [](Draw& draw) {
  using Drawn = OperatorCase (*)(Draw&);
  return draw.one_of<Drawn>({&trace_case, &glu_case, &cross_case, &rot90_case, &take_case})(draw);
});

}  // namespace
}  // namespace meshrun
