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

const bool kRegistered = register_operator_cases("joining", [](Draw& draw) {
  using Drawn = OperatorCase (*)(Draw&);
  return draw.one_of<Drawn>({&cat, &stack})(draw);
});

}  // namespace
}  // namespace meshrun
