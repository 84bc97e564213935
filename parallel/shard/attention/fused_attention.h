// LibTorch's fused kernels for one tile of attention, which never have its scores in memory:
//
//   CPU    flash: any bias
//   CUDA   flash where the operands came as float16 or bfloat16 (extents of 8, 16, ... 256), the
//          memory-efficient one where they came as float32 (extents of 4, 8, ...); no bias
//
// A kernel on a GPU is not taken on trust: what it makes of a padded logsumexp or of a triangle
// that is no square differs between releases. Before its first use on a device for a dtype and an
// extent it computes small tiles, which must be what products of matrices give; else a warning says
// so once, and products are used. torch.backends.cuda.enable_flash_sdp(False) and
// enable_mem_efficient_sdp(False) turn them off. They round products of float16 and bfloat16 for
// each tile, and their gradients may differ in the last bits between runs.
//
// No gradients are recorded. Threads: any. Errors: LibTorch's.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "parallel/shard/attention/tile_products.h"

namespace meshrun {

class FusedAttention {
 public:
  virtual ~FusedAttention() = default;

  // Whether it computes such tiles at all. `dtype`: in which the operands came.
  virtual bool takes(at::ScalarType dtype, int64_t extent, bool has_bias) const = 0;
  // As attend_by_products(); nothing is `kept`, and the extents of key and value are equal.
  virtual std::tuple<at::Tensor, at::Tensor> attend(const TileOperands& tile) const = 0;
  // As gradients_by_products(), without those of the scores.
  virtual TileGradients gradients(const TileOperands& tile, const at::Tensor& grad_output,
                                  const at::Tensor& output, const at::Tensor& logsumexp) const = 0;
};

// The one to use on this device; null: none.
const FusedAttention* fused_attention(c10::Device device, at::ScalarType dtype, int64_t extent,
                                      bool has_bias);

// Empty where the kernel computes small tiles as products do; else what differs. Raises what the
// kernel does.
std::string difference_from_products(const FusedAttention& kernel, c10::Device device,
                                     at::ScalarType dtype, int64_t extent);

}  // namespace meshrun
