#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ATen/ATen.h"
#include "parallel/shard/neighborhood/neighborhood_attention.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/shard/raising_call.h"

namespace meshrun {
namespace {

using at::Tensor;

// Scores of all pairs, minus infinity for those that are no neighbors.
Tensor dense_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Neighborhood& how) {
  const size_t dims = how.kernel_size.size();
  Tensor allowed = at::ones({1, 1}, at::kBool);
  for (size_t i = 0; i < dims; ++i) {
    const int64_t extent = q.size(static_cast<int64_t>(i) + 1);
    const int64_t kernel = how.kernel_size[i];
    const int64_t dilation = how.dilation.empty() ? 1 : how.dilation[i];
    const bool causal = !how.is_causal.empty() && how.is_causal[i];
    const Tensor line = at::zeros({extent, extent}, at::kBool);
    for (int64_t p = 0; p < extent; ++p) {
      std::vector<int64_t> own;  // those of p's remainder
      for (int64_t at = p % dilation; at < extent; at += dilation) own.push_back(at);
      const auto place = p / dilation;
      int64_t begin = place - kernel / 2;
      if (causal) {
        begin = place - kernel + 1;
      } else {
        while (begin + kernel > static_cast<int64_t>(own.size())) --begin;
        if (begin < 0) begin = 0;
      }
      for (int64_t at = begin; at < begin + kernel; ++at) {
        if (at >= 0)
          line.index_put_({at::tensor(p), at::tensor(own[static_cast<size_t>(at)])},
                          at::scalar_tensor(true, at::kBool));
      }
    }
    allowed = at::kron(allowed.to(at::kLong), line.to(at::kLong)).to(at::kBool);
  }
  const auto flat = [&](const Tensor& x) {  // [batch, heads, positions, D]
    return x.flatten(1, static_cast<int64_t>(dims)).transpose(1, 2);
  };
  const double scale = how.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  const Tensor scores = at::matmul(flat(q), flat(k).transpose(2, 3)) * scale;
  const Tensor weights = at::softmax(
      scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity()), -1);
  std::vector<int64_t> shape = v.sizes().vec();
  return at::matmul(weights, flat(v)).transpose(1, 2).reshape(shape);
}

OperatorCase neighborhood_case(Draw& draw) {
  const size_t dims = draw.chance(0.5) ? 1 : 2;
  Neighborhood how;
  std::vector<int64_t> shape = {draw.integer(1, 2)};
  for (size_t i = 0; i < dims; ++i) {
    how.kernel_size.push_back(draw.integer(1, 4));
    how.dilation.push_back(draw.integer(1, 3));
    how.is_causal.push_back(draw.chance(0.3));
    shape.push_back(how.kernel_size[i] * how.dilation[i] + draw.integer(0, dims == 1 ? 8 : 3));
  }
  if (draw.chance(0.3)) how.scale = 0.7;
  shape.push_back(draw.integer(1, 2));
  shape.push_back(draw.integer(1, 3));
  std::vector<int64_t> of_value = shape;
  of_value.back() = draw.integer(1, 3);
  OperatorCase drawn{
      "neighborhood_attention",
      {draw.normal(shape), draw.normal(shape), draw.normal(of_value)},
      [=](const Tensors& t) {
        const Tensor result = neighborhood_attention(t[0], t[1], t[2], how);
        if (!is_shard_tensor(result)) {
          EXPECT_TRUE(at::allclose(result, dense_attention(t[0], t[1], t[2], how), 1e-10, 1e-10));
        }
        Neighborhood wide = how;
        wide.kernel_size[0] = t[0].size(1) + 1;
        return Tensors{result, raises([&] { neighborhood_attention(t[0], t[1], t[2], wide); }),
                       raises([&] { neighborhood_attention(t[0], t[1].unsqueeze(0), t[2], how); })};
      }};
  if (draw.chance(0.2)) drawn.plain = {static_cast<size_t>(draw.integer(0, 2))};
  return drawn;
}

const bool kRegistered = register_operator_cases("neighborhood attention", &neighborhood_case);

}  // namespace
}  // namespace meshrun
