#include <algorithm>
#include <cmath>

#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

OperatorCase matrices(Draw& draw) {
  const int64_t m = draw.extent(), k = draw.extent(), n = draw.extent(), b = draw.integer(1, 4);
  switch (draw.integer(0, 6)) {
    case 0:
      return {"mm", {draw.normal({m, k}), draw.normal({k, n})}, [](const Tensors& x) {
                return Tensors{at::mm(x[0], x[1]), at::matmul(x[0], x[1])};
              }};
    case 1:
      return {"bmm", {draw.normal({b, m, k}), draw.normal({b, k, n})}, [](const Tensors& x) {
                return Tensors{at::bmm(x[0], x[1])};
              }};
    case 2:
      return {
          "addmm",
          {draw.normal({draw.chance(0.5) ? m : 1, n}), draw.normal({m, k}), draw.normal({k, n})},
          [](const Tensors& x) {
            return Tensors{at::addmm(x[0], x[1], x[2], 0.5, 2), at::addmm(x[0], x[1], x[2])};
          }};
    case 3:
      return {"baddbmm, addbmm",
              {draw.normal({b, m, n}), draw.normal({b, m, k}), draw.normal({b, k, n}),
               draw.normal({m, n})},
              [](const Tensors& x) {
                return Tensors{at::baddbmm(x[0], x[1], x[2], 0.5, 2),
                               at::addbmm(x[3], x[1], x[2], 3, 0.5)};
              }};
    case 4:
      return {"mv, dot, vdot, addmv, outer, addr",
              {draw.normal({m, k}), draw.normal({k}), draw.normal({k}), draw.normal({m})},
              [](const Tensors& x) {
                return Tensors{at::mv(x[0], x[1]),    at::dot(x[1], x[2]),
                               at::vdot(x[1], x[2]),  at::addmv(x[3], x[0], x[1], 0.5, 2),
                               at::outer(x[3], x[1]), at::addr(x[0], x[3], x[2], 2, 0.5),
                               at::matmul(x[0], x[1])};
              }};
    case 5:
      return {"in place",
              {draw.normal({m, n}), draw.normal({m, k}), draw.normal({k, n})},
              [](const Tensors& x) {
                at::Tensor y = x[0] * 2;
                y.addmm_(x[1], x[2], 0.5, 2);
                at::Tensor out = at::empty_like(x[0].detach());
                at::mm_out(out, x[1].detach(), x[2].detach());
                return Tensors{y, out};
              }};
    default:
      return {"tensordot", {draw.normal({m, k, n}), draw.normal({n, b, k})}, [](const Tensors& x) {
                return Tensors{at::tensordot(x[0], x[1], {1, 2}, {2, 0}),
                               at::tensordot(x[0], x[1], {2}, {0})};
              }};
  }
}

OperatorCase layers(Draw& draw) {
  const int64_t m = draw.extent(), k = draw.extent(), n = draw.extent(), b = draw.integer(1, 4);
  const std::vector<int64_t> input = draw.one_of<std::vector<int64_t>>({{k}, {m, k}, {b, m, k}});
  OperatorCase drawn{
      "linear", {draw.normal(input), draw.normal({n, k}), draw.normal({n})}, [](const Tensors& x) {
        return Tensors{at::linear(x[0], x[1], x[2]), at::linear(x[0], x[1])};
      }};
  if (draw.chance(0.3)) {
    drawn.name = "bilinear";
    const std::vector<int64_t> other = input.size() == 1   ? std::vector<int64_t>{b}
                                       : input.size() == 2 ? std::vector<int64_t>{m, b}
                                                           : std::vector<int64_t>{b, m, b};
    // Weights as a layer has them: results whose terms cancel are then not small beside the terms.
    const double scale = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(k * b, 1)));
    drawn.inputs = {draw.normal(input), draw.normal(other), draw.normal({n, k, b}) * scale,
                    draw.normal({n})};
    drawn.call = [](const Tensors& x) { return Tensors{at::bilinear(x[0], x[1], x[2], x[3])}; };
  } else if (draw.chance(0.3)) {
    drawn.plain = {1, 2};
  }
  return drawn;
}

OperatorCase broadcasting_matmul(Draw& draw) {
  const int64_t m = draw.extent(), k = draw.extent(), n = draw.extent(), b = draw.integer(1, 4);
  const auto left = draw.one_of<std::vector<int64_t>>(
      {{k}, {m, k}, {b, m, k}, {1, m, k}, {2, 1, m, k}, {2, b, m, k}});
  const auto right =
      draw.one_of<std::vector<int64_t>>({{k}, {k, n}, {b, k, n}, {1, k, n}, {2, b, k, n}});
  return {"matmul", {draw.normal(left), draw.normal(right)}, [](const Tensors& x) {
            return Tensors{at::matmul(x[0], x[1])};
          }};
}

OperatorCase einsum(Draw& draw) {
  const int64_t m = draw.extent(), k = draw.extent(), n = draw.extent(), b = draw.integer(1, 4);
  struct Equation {
    const char* text;
    std::vector<std::vector<int64_t>> shapes;
  };
  const auto equation = draw.one_of<Equation>({{"ij,jk->ik", {{m, k}, {k, n}}},
                                               {"bij,bjk->bik", {{b, m, k}, {b, k, n}}},
                                               {"ij, jk", {{m, k}, {k, n}}},
                                               {"...ij,...jk->...ik", {{b, m, k}, {k, n}}},
                                               {"bixy,io->boxy", {{b, m, k, n}, {m, 3}}},
                                               {"i,j->ij", {{m}, {n}}},
                                               {"ij->", {{m, n}}},
                                               {"ij->ji", {{m, n}}},
                                               {"ii,ij->ij", {{m, m}, {m, n}}},
                                               {"ij,ij,ij->j", {{m, n}, {m, n}, {m, n}}},
                                               {"ij,jk,kl->il", {{m, k}, {k, n}, {n, b}}},
                                               {"bhqd,bhkd->bhqk", {{b, 2, m, k}, {b, 2, n, k}}}});
  OperatorCase drawn{"einsum " + std::string(equation.text), {}, [equation](const Tensors& x) {
                       return Tensors{at::einsum(equation.text, x)};
                     }};
  for (const auto& shape : equation.shapes) drawn.inputs.push_back(draw.normal(shape));
  return drawn;
}

const bool kRegistered = register_operator_cases("matrix products", [](Draw& draw) {
  switch (draw.integer(0, 3)) {
    case 0:
      return layers(draw);
    case 1:
      return broadcasting_matmul(draw);
    case 2:
      return einsum(draw);
    default:
      return matrices(draw);
  }
});

}  // namespace
}  // namespace meshrun
