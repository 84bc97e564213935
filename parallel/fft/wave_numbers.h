// The lowest wave numbers of both signs along a dimension of a spectrum: 0 .. m - 1, then -m .. -1.
//
// Differentiable. Shapes: `tensor` any; along `dim` low_waves() takes extent >= 2 m and returns
// 2 m, all_waves() the reverse, with zeros between. Threads: any. Errors: LibTorch's.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace meshrun::fft {

at::Tensor low_waves(const at::Tensor& tensor, int64_t dim, int64_t modes);
at::Tensor all_waves(const at::Tensor& tensor, int64_t dim, int64_t extent);

}  // namespace meshrun::fft
