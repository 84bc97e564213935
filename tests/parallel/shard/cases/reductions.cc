#include <limits>

#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"

namespace meshrun {
namespace {

using Dims = std::vector<int64_t>;

Dims some_dims(Draw& draw) {
  return draw.one_of<Dims>({{0}, {1}, {2}, {0, 1}, {-1, 0}, {0, 1, 2}, {}});
}

OperatorCase sums(Draw& draw, const at::Tensor& x, bool keepdim, const Dims& dims) {
  const int64_t dim = draw.integer(-3, 2);
  return {"sum, mean, nansum, prod, logsumexp", {x}, [=](const Tensors& t) {
            const at::Tensor plain = t[0].detach();
            at::Tensor out = at::sum(plain, dims, keepdim) * 0;
            at::Tensor largest = out * 1;
            at::sum_out(out, plain, dims, keepdim);
            at::amax_out(largest, plain, dims, keepdim);
            return Tensors{out,
                           largest,
                           at::sum(t[0], dims, keepdim),
                           at::sum(t[0]),
                           at::mean(t[0], dims, keepdim),
                           at::mean(t[0]),
                           at::mean(plain.to(at::kFloat), dims, keepdim, at::kDouble),
                           at::nansum(t[0], dims, keepdim),
                           at::prod(t[0], dim, keepdim),
                           at::prod(t[0]),
                           at::logsumexp(t[0], dims.empty() ? Dims{0, 1, 2} : dims, keepdim)};
          }};
}

OperatorCase spreads(const at::Tensor& x, bool keepdim, const Dims& dims, double correction) {
  return {"var, std, var_mean, std_mean", {x + 100}, [=](const Tensors& t) {
            const auto [variance, mean] = at::var_mean(t[0], dims, correction, keepdim);
            const auto [deviation, mean2] = at::std_mean(t[0], dims, correction, keepdim);
            return Tensors{at::var(t[0], dims, correction, keepdim),
                           at::std(t[0], dims, correction, keepdim),
                           at::var(t[0], false),
                           variance,
                           mean,
                           deviation,
                           mean2};
          }};
}

OperatorCase norms(Draw& draw, const at::Tensor& x, bool keepdim, const Dims& dims) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double p = draw.one_of<double>({0, 1, 2, 3, 0.5, infinity, -infinity, -1});
  return {"norm", {x}, [=](const Tensors& t) {
            return Tensors{at::linalg_vector_norm(t[0], p, dims, keepdim), at::norm(t[0]),
                           at::norm(t[0], p), at::norm(t[0], 2, dims, keepdim),
                           at::linalg_vector_norm(t[0].detach().to(at::kFloat), 2, dims, keepdim,
                                                  at::kDouble)};
          }};
}

// Few different values, so that many are equal.
OperatorCase extremes(Draw& draw, const at::Tensor& given, bool keepdim, const Dims& dims) {
  const at::Tensor x =
      draw.chance(0.5) ? given : draw.integers(given.sizes(), -2, 2).to(at::kDouble);
  const int64_t dim = draw.integer(-3, 2);
  return {"amax, amin, max, min, argmax, argmin, aminmax",
          {x},
          [=](const Tensors& t) {
            Tensors results = {at::amax(t[0], dims, keepdim),
                               at::amin(t[0], dims, keepdim),
                               at::max(t[0]),
                               at::min(t[0]),
                               at::argmax(t[0].detach()),
                               at::argmin(t[0].detach(), dim, keepdim),
                               at::argmax(t[0].detach(), dim, keepdim),
                               at::argmin(t[0].detach(), std::nullopt, keepdim)};
            for (const auto& pair : {at::max(t[0], dim, keepdim), at::min(t[0], dim, keepdim),
                                     at::aminmax(t[0].detach(), dim, keepdim),
                                     at::aminmax(t[0].detach(), std::nullopt, keepdim)}) {
              const Tensors two = both(pair);
              results.insert(results.end(), two.begin(), two.end());
            }
            return results;
          },
          Equality::kBits};
}

OperatorCase truths(Draw& draw, const at::Tensor& x, bool keepdim, const Dims& dims) {
  const int64_t dim = draw.integer(-3, 2);
  return {"all, any, count_nonzero, item, equal, allclose",
          {draw.integers(x.sizes(), 0, 1), draw.integers({}, 0, 5), x},
          [=](const Tensors& t) {
            const at::Tensor mask = t[0] > 0;
            const at::Tensor y = t[2].detach();
            const std::vector<double> answers = {
                static_cast<double>(t[1].item<int64_t>()),
                static_cast<double>(at::sum(t[0]).item<int64_t>()),
                at::equal(t[0], t[0] * 1) ? 1.0 : 0.0,
                at::equal(t[0], t[0] + (mask.any(0, true))) ? 1.0 : 0.0,
                at::allclose(y, y + 1e-12) ? 1.0 : 0.0,
                at::allclose(y, y * 1.1) ? 1.0 : 0.0,
                mask.any().is_nonzero() ? 1.0 : 0.0};
            return Tensors{
                mask.all(), mask.any(), mask.all(dim, keepdim), mask.any(dim, keepdim),
                at::all(mask, dims.empty() ? Dims{0} : dims, keepdim),
                at::any(t[0], dims.empty() ? Dims{0} : dims, keepdim),
                // Bytes have truths of their own dtype, no dimension its own meaning.
                at::all(t[0].to(at::kByte)), at::any(t[0].to(at::kByte) * 3, dim, keepdim),
                at::all(t[0].to(at::kByte) * 3, dims, keepdim),
                at::any(t[0].to(at::kByte) * 3, dims, keepdim), at::all(t[0], dims, keepdim),
                at::count_nonzero(t[0]), at::count_nonzero(t[0], dims), at::tensor(answers)};
          },
          Equality::kBits,
          true,
          {},
          {},
          true};
}

const bool kRegistered = register_operator_cases("reductions", [](Draw& draw) {
  const at::Tensor x = draw.normal({draw.extent(), draw.extent(), draw.extent()});
  const bool keepdim = draw.chance(0.5);
  const Dims dims = some_dims(draw);
  switch (draw.integer(0, 4)) {
    case 0:
      return sums(draw, x, keepdim, dims);
    case 1:
      // LibTorch's gradient of a variance over an empty list of dimensions is wrong.
      return spreads(x, keepdim, dims.empty() ? Dims{0, 1, 2} : dims,
                     draw.one_of<double>({0, 1, 0.5}));
    case 2:
      return norms(draw, x, keepdim, dims);
    case 3:
      return extremes(draw, x, keepdim, dims);
    default:
      return truths(draw, x, keepdim, dims);
  }
});

}  // namespace
}  // namespace meshrun
