// MKL's own interface (DFTI) to strided real transforms, where the process has it: LibTorch's CPU
// library for x86-64 has it inside. LibTorch's operators first bring the transformed dimension
// together and leave the result transposed; this reads and writes rows where they lie.
//
// Descriptors are made once for each geometry and kept. Threads: any. Internal to parallel/fft.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace meshrun::fft {

// Whether transform_real_rows() takes these planes: memory on the CPU, float32 or float64, and DFTI
// is there.
bool has_dfti(const at::Tensor& planes);

// Along dimension 1 of contiguous planes: real [N, height, W] to complex [N, height / 2 + 1, W]
// (forward), or back. `scale` multiplies the result.
void transform_real_rows(const at::Tensor& from, const at::Tensor& to, int64_t height, double scale,
                         bool forward);

}  // namespace meshrun::fft
