#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

OperatorCase cat(Draw& draw) {
  const std::vector<int64_t> shape = {draw.extent(), draw.extent(), draw.extent()};
  const int64_t dim = draw.integer(0, 2);
  std::vector<int64_t> other = shape;
  other[static_cast<size_t>(dim)] = draw.integer(0, 9);
  OperatorCase drawn{"cat",
                     {draw.normal(shape), draw.normal(other), draw.normal(shape)},
                     [=](const Tensors& x) {
                       return Tensors{at::cat({x[0], x[1]}, dim), at::cat({x[0], x[1], x[2]}, dim),
                                      at::cat({x[0], x[0].slice(dim, 1)}, dim)};
                     },
                     Equality::kBits};
  if (draw.chance(0.3)) drawn.plain = {static_cast<size_t>(draw.integer(0, 2))};
  return drawn;
}

OperatorCase stack(Draw& draw) {
  const std::vector<int64_t> shape = {draw.extent(), draw.extent()};
  const int64_t dim = draw.integer(0, 2);
  return {"stack, hstack",
          {draw.normal(shape), draw.normal(shape)},
          [=](const Tensors& x) {
            return Tensors{at::stack({x[0], x[1]}, dim), at::stack({x[0]}, dim),
                           at::hstack({x[0], x[1]}), at::vstack({x[0], x[1]})};
          },
          Equality::kBits};
}

OperatorCase moves(Draw& draw) {
  const at::Tensor x = draw.normal({draw.extent(), draw.extent(), draw.extent()});
  const auto dims = draw.one_of<std::vector<int64_t>>({{0}, {-1}, {0, 1}, {2, 0}});
  const int64_t shift = draw.integer(-12, 12);
  const int64_t count = draw.integer(1, 3);
  switch (draw.integer(0, 3)) {
    case 0:
      return {
          "flip", {x}, [=](const Tensors& t) { return Tensors{t[0].flip(dims)}; }, Equality::kBits};
    case 1:
      return {"roll",
              {x},
              [=](const Tensors& t) {
                return Tensors{t[0].roll(shift, dims[0]), t[0].roll({shift, 1}, {0, 2}),
                               t[0].roll(shift)};
              },
              Equality::kBits};
    case 2:
      return {"repeat, tile",
              {x},
              [=](const Tensors& t) {
                return Tensors{t[0].repeat({count, 1, 2}), t[0].repeat({2, 1, count, 1}),
                               t[0].repeat_interleave(count, dims[0]), t[0].tile(count)};
              },
              Equality::kBits};
    default:
      return {"tril, triu",
              {x},
              [=](const Tensors& t) {
                at::Tensor y = t[0] * 1;
                y.tril_(shift / 3);
                return Tensors{t[0].tril(shift / 3), t[0].triu(), y,
                               at::diag_embed(t[0], shift / 4, 0, -1)};
              },
              Equality::kBits};
  }
}

// New tensors of a sharded one's layout, and of another shape.
OperatorCase created(Draw& draw) {
  const std::vector<int64_t> shape = {draw.extent(), draw.extent()};
  return {"new_zeros, new_ones, new_full, new_empty",
          {draw.normal(shape)},
          [shape](const Tensors& t) {
            const at::Tensor x = t[0].detach();
            return Tensors{x.new_zeros(shape),
                           x.new_ones(shape),
                           x.new_full(shape, 0.5),
                           x.new_zeros({3, 2}),
                           x.new_full({4}, 2, at::kFloat),
                           at::full_like(x, 3),
                           at::ones_like(x),
                           x.new_empty(shape).fill_(1.5),
                           x.new_empty_strided(shape, {1, shape[0]}).fill_(2.5),
                           at::empty_like(x).copy_(x)};
          },
          Equality::kBits};
}

const bool kRegistered = register_operator_cases("joining", [](Draw& draw) {
  using Drawn = OperatorCase (*)(Draw&);
  return draw.one_of<Drawn>({&cat, &stack, &moves, &moves, &created})(draw);
});

}  // namespace
}  // namespace meshrun
