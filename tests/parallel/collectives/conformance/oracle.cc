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

}  // namespace meshrun
