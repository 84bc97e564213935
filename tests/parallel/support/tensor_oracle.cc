#include "tests/parallel/support/tensor_oracle.h"

#include <ATen/ATen.h>

#include <limits>

namespace meshrun {

using at::Tensor;

Tensor sum_in_rank_order(const std::vector<Tensor>& of_ranks, bool use_fp32, int64_t divisor) {
  const at::ScalarType type = of_ranks[0].scalar_type();
  const bool widens = use_fp32 && (type == at::kHalf || type == at::kBFloat16);
  Tensor sum = widens ? of_ranks[0].to(at::kFloat) : of_ranks[0];
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    if (type == at::kBool) {
      sum = sum.logical_or(of_ranks[rank]);
    } else {
      sum = sum + of_ranks[rank].to(sum.scalar_type());
    }
  }
  if (divisor > 1) {
    // LibTorch divides complex numbers by complex ones.
    sum = sum.is_complex() ? at::view_as_complex(at::view_as_real(sum).div(divisor).contiguous())
                           : sum.div(divisor);
  }
  return sum.to(type);
}

double relative_l2(const Tensor& actual, const Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  const auto wide = [](const Tensor& tensor) {
    return tensor.detach().cpu().to(tensor.is_complex() ? at::kComplexDouble : at::kDouble);
  };
  const double length = wide(expected).norm().abs().item<double>();
  const double off = (wide(actual) - wide(expected)).norm().abs().item<double>();
  return length > 0 ? off / length : off;
}

}  // namespace meshrun
