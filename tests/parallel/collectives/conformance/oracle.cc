#include "tests/parallel/collectives/conformance/oracle.h"

#include <ATen/ATen.h>

namespace meshrun {

using at::Tensor;

Tensor content(int rank, int64_t salt, at::IntArrayRef shape, at::ScalarType type) {
  const Tensor numbers =
      (at::arange(c10::multiply_integers(shape), at::kDouble) * 7 + rank * 13 + salt * 5)
          .remainder(23)
          .reshape(shape) -
      11;
  if (type == at::kBool) return numbers.remainder(3) == 0;
  if (!at::isFloatingType(type) && !at::isComplexType(type)) {
    return numbers.to(type) * (type == at::kLong ? 1000000007 : 1);
  }
  const Tensor real = numbers * 0.3711 + rank * 1.1723;
  if (at::isComplexType(type)) return at::complex(real, real * -0.77 + 0.5).to(type);
  return real.to(type);
}

Tensor sum_in_rank_order(const std::vector<Tensor>& of_ranks, bool use_fp32) {
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
  return sum.to(type);
}

double relative_l2(const Tensor& actual, const Tensor& expected) {
  const auto wide = [](const Tensor& tensor) {
    return tensor.detach().cpu().to(tensor.is_complex() ? at::kComplexDouble : at::kDouble);
  };
  const double length = wide(expected).norm().abs().item<double>();
  const double off = (wide(actual) - wide(expected)).norm().abs().item<double>();
  return length > 0 ? off / length : off;
}

}  // namespace meshrun
