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
  for (int64_t& extent : b) {
    if (draw.chance(0.2)) extent = 1;
  }
  if (draw.chance(0.3)) b.erase(b.begin());
  return {a, b};
}

using Unary = at::Tensor (*)(const at::Tensor&);

OperatorCase unary(Draw& draw) {
  struct Function {
    std::string name;
    Unary call;
    Equality equality = Equality::kUlps;
  };
  constexpr Equality kExact = Equality::kBits;
  // For functions composed of several others, each of which rounds.
  constexpr Equality kComposed = Equality::kRounding;
  static const std::vector<Function> kFunctions = {
      {"abs", &at::abs, kExact},
      {"atan", &at::atan},
      {"ceil", &at::ceil, kExact},
      {"cos", &at::cos},
      {"erf", &at::erf},
      {"exp", &at::exp},
      {"expm1", &at::expm1},
      {"floor", &at::floor, kExact},
      {"hardsigmoid", &at::hardsigmoid, kComposed},
      {"hardswish", &at::hardswish, kComposed},
      {"logical_not", &at::logical_not, kExact},
      {"mish", &at::mish, kComposed},
      {"neg", &at::neg, kExact},
      {"relu", &at::relu, kExact},
      {"sigmoid", &at::sigmoid},
      {"sign", &at::sign, kExact},
      {"silu", &at::silu},
      {"sin", &at::sin},
      {"sinh", &at::sinh},
      {"square", &at::square, kExact},
      {"tanh", &at::tanh},
      {"trunc", &at::trunc, kExact},
      {"isnan", &at::isnan, kExact},
      {"log_sigmoid", &at::log_sigmoid, kComposed},
  };
  static const std::vector<Function> kOfPositive = {
      {"digamma", &at::digamma, kComposed},
      {"lgamma", &at::lgamma, kComposed},
      {"log", &at::log},
      {"log1p", &at::log1p},
      {"log2", &at::log2},
      {"reciprocal", &at::reciprocal, kExact},
      {"rsqrt", &at::rsqrt},
      {"sqrt", &at::sqrt, kExact},
  };
  const bool of_positive = draw.chance(0.25);
  const Function function = draw.one_of(of_positive ? kOfPositive : kFunctions);
  const auto shape = two_shapes(draw).first;
  return {function.name,
          {of_positive ? draw.positive(shape) : draw.normal(shape)},
          [call = function.call](const Tensors& x) { return Tensors{call(x[0])}; },
          function.equality};
}

// With arguments that are not tensors, of other dtypes, in place, out=.
OperatorCase other_forms(Draw& draw) {
  const at::Tensor x = draw.normal(two_shapes(draw).first);
  static const std::vector<std::pair<std::string, std::function<Tensors(const Tensors&)>>> kForms =
      {
          {"gelu, elu, leaky_relu",
           [](const Tensors& t) {
             return Tensors{at::gelu(t[0]), at::gelu(t[0], "tanh"), at::elu(t[0]),
                            at::leaky_relu(t[0], 0.1)};
           }},
          {"clamp, hardtanh, softplus",
           [](const Tensors& t) {
             return Tensors{at::clamp(t[0], -0.5, 0.5), at::hardtanh(t[0]), at::softplus(t[0]),
                            at::clamp_min(t[0], 0.1)};
           }},
          {"pow, fmod, remainder",
           [](const Tensors& t) {
             return Tensors{at::pow(t[0], 3), at::pow(2, t[0]), at::fmod(t[0], 0.7),
                            at::remainder(t[0], 0.7)};
           }},
          {"comparisons",
           [](const Tensors& t) {
             return Tensors{t[0] > 0, t[0].le(0.3), t[0] == t[0], at::isfinite(t[0])};
           }},
          {"dtypes",
           [](const Tensors& t) {
             return Tensors{t[0].to(at::kFloat), t[0].to(at::kBFloat16).to(at::kDouble),
                            (t[0] * 4).to(at::kLong).bitwise_and(3)};
           }},
          {"in place",
           [](const Tensors& t) {
             at::Tensor y = t[0] * 1;
             y.mul_(2).add_(1).clamp_(-0.9, 0.9).div_(3);
             y.masked_fill_(y > 0.25, 0.5);
             return Tensors{y, t[0].detach().clone().zero_(), t[0].detach().clone().fill_(3)};
           }},
          {"out=",
           [](const Tensors& t) {
             const at::Tensor x = t[0].detach();
             at::Tensor same = at::empty_like(x);
             at::add_out(same, x, x);
             at::Tensor other = at::empty_like(x).sum();
             at::mul_out(other, x, x);
             // Partial where the input is.
             at::Tensor product = x.clone();
             at::mul_out(product, x, x);
             at::Tensor moved = x.clone();
             at::add_out(moved, x, 2, 1);
             at::Tensor scaled = x.clone();
             at::mul_out(scaled, x, 2);
             return Tensors{same, other, product, moved, scaled};
           }},
      };
  const auto [name, call] = draw.one_of(kForms);
  return {name, {x}, call};
}

OperatorCase ternary(Draw& draw) {
  const auto [a, b] = two_shapes(draw);
  return {"where, addcmul, lerp, masked_fill",
          {draw.normal(a), draw.normal(b), draw.positive(a), draw.integers(b, 0, 1)},
          [](const Tensors& x) {
            const at::Tensor mask = x[3] > 0;
            return Tensors{at::where(mask, x[0], x[1]),   at::addcmul(x[0], x[1], x[2], 0.5),
                           at::addcdiv(x[0], x[1], x[2]), at::lerp(x[0], x[2], 0.3),
                           at::maximum(x[0], x[1]),       at::masked_fill(x[0], mask, 2.0),
                           at::atan2(x[0], x[2]),         at::pow(x[2], x[1])};
          }};
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
  // (x * 2).add_(y, 3) may be fused into one rounding, or not.
  if (kind != 4) drawn.equality = Equality::kBits;
  if (kind < 4 && draw.chance(0.3)) drawn.plain = {static_cast<size_t>(draw.integer(0, 1))};
  return drawn;
}

const bool kRegistered = register_operator_cases("pointwise", [](Draw& draw) {
  switch (draw.integer(0, 3)) {
    case 0:
      return unary(draw);
    case 1:
      return other_forms(draw);
    case 2:
      return ternary(draw);
    default:
      return binary(draw);
  }
});

}  // namespace
}  // namespace meshrun
