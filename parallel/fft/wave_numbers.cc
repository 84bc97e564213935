#include "parallel/fft/wave_numbers.h"

#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/zeros.h"

namespace meshrun::fft {

at::Tensor low_waves(const at::Tensor& tensor, int64_t dim, int64_t modes) {
  const int64_t extent = tensor.size(dim);
  if (2 * modes == extent) return tensor;
  return at::cat({tensor.narrow(dim, 0, modes), tensor.narrow(dim, extent - modes, modes)}, dim);
}

at::Tensor all_waves(const at::Tensor& tensor, int64_t dim, int64_t extent) {
  const int64_t modes = tensor.size(dim) / 2;
  if (2 * modes == extent) return tensor;
  std::vector<int64_t> between = tensor.sizes().vec();
  between[static_cast<size_t>(dim < 0 ? dim + tensor.dim() : dim)] = extent - 2 * modes;
  return at::cat({tensor.narrow(dim, 0, modes), at::zeros(between, tensor.options()),
                  tensor.narrow(dim, modes, modes)},
                 dim);
}

}  // namespace meshrun::fft
