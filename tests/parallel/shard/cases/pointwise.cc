#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

// Two shapes that broadcast.
std::pair<std::vector<int64_t>, std::vector<int64_t>> two_shapes(Draw& draw) {
  std::vector<int64_t> a;
  const int64_t ndim = draw.integer(1, 3);
  for (int64_t i = 0; i < ndim; ++i) a.push_back(draw.extent());
  std::vector<int64_t> b = a;
  if (draw.chance(0.3)) b.erase(b.begin());
  for (int64_t& extent : b) {
    if (draw.chance(0.2)) extent = 1;
  }
  return {a, b};
}

using Unary = at::Tensor (*)(const at::Tensor&);

OperatorCase unary(Draw& draw) {
  static const std::vector<std::pair<std::string, Unary>> kOperators = {
      {"relu", &at::relu}, {"neg", &at::neg},  {"sigmoid", &at::sigmoid},
      {"tanh", &at::tanh}, {"exp", &at::exp},
  };
  const auto [name, call] = draw.one_of(kOperators);
  return {name, {draw.normal(two_shapes(draw).first)},
          [call = call](const Tensors& x) { return Tensors{call(x[0])}; }};
}

OperatorCase binary(Draw& draw) {
  const auto [a, b] = two_shapes(draw);
  const int64_t kind = draw.integer(0, 5);
  const char* names[] = {"add", "sub", "mul", "div", "in place", "scalars"};
  OperatorCase drawn{names[kind], {draw.normal(a), draw.positive(b)}, [kind](const Tensors& x) {
                       switch (kind) {
                         case 0:
                           return Tensors{x[0] + x[1]};
                         case 1:
                           return Tensors{x[1] - x[0]};
                         case 2:
                           return Tensors{x[0] * x[1]};
                         case 3:
                           return Tensors{x[0] / x[1]};
                         case 4:
                           return Tensors{(x[0] * 2).add_(x[1], 3).mul_(x[1])};
                         default:
                           return Tensors{x[0] * 2 + 1, 1 - x[1] / 4};
                       }
                     }};
  if (kind < 4 && draw.chance(0.3)) drawn.plain = {static_cast<size_t>(draw.integer(0, 1))};
  return drawn;
}

const bool kRegistered = register_operator_cases("pointwise", [](Draw& draw) {
  return draw.chance(0.3) ? unary(draw) : binary(draw);
});

}  // namespace
}  // namespace meshrun
