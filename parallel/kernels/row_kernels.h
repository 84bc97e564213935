// The interface between the indexed exchange and a device's kernels that move and add slices.
//
// A slice is tensor.select(dim, i): for a tensor (outer, extent, inner), `outer` rows of `inner`
// elements. Each device type registers one table; for a device without one, ATen's operators do the
// same (row_kernels.cc). The CPU has kernels of its own (row_kernels_cpu.cc).
//
// What all kernels may rely on: all tensors are on one device; `dim` is in range and not negative;
// the output has the right shape and is contiguous (except in gather_rows); indices are in range,
// int64, contiguous and on the same device. Extents may be 0, and inputs may have any strides.
// Kernels run on the current stream, allocate only from the caching allocator and never
// synchronise, so a CUDA graph can capture them. Autograd is not involved.
//
// Threads: register before main; call from any. Errors: c10::Error for a dtype without a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "c10/core/DeviceType.h"
#include "c10/core/Event.h"
#include "parallel/base/strided_span.h"

namespace meshrun {

struct RowKernels {
  // output.select(dim, i) = input.select(dim, index[i]), converted where the dtypes differ.
  // `output` is a slice along dim of a contiguous tensor, so at dim 0 contiguous.
  void (*gather_rows)(const at::Tensor& output, const at::Tensor& input, const at::Tensor& index,
                      int64_t dim);

  // output.select(dim, r) = the sum, in this order, of the slices positions[offsets[r]] up to
  // positions[offsets[r + 1] - 1]; zero where there are none. Position p is slice p of `first`
  // where p < first.size(dim), else slice p - first.size(dim) of `second`. `offsets` has
  // output.size(dim) + 1 entries. float16 and bfloat16 are added in float32 and rounded once; with
  // `use_fp32` false after each addition. No atomics: the same bits in every run.
  void (*segmented_sum)(const at::Tensor& output, const at::Tensor& first, const at::Tensor& second,
                        const at::Tensor& offsets, const at::Tensor& positions, int64_t dim,
                        bool use_fp32);

  // Takes slices index[begin], ..., index[begin + count - 1] along dim as gather_rows would put
  // them together, and writes their packed bytes [offset, offset + bytes) to `to_offset` of `to`.
  // Holds the input; the caller keeps `index` alive.
  using Filler = std::function<void(int64_t begin, int64_t count, int64_t offset, StridedSpan to,
                                    int64_t to_offset, int64_t bytes)>;
  // Returns none for an input whose slices are not evenly apart. Null: the device has none.
  Filler (*filler)(const at::Tensor& input, const at::Tensor& index, int64_t dim) = nullptr;

  // Whether a graph is captured on the device's current stream. Null: there are none.
  bool (*is_capturing)(c10::Device device) = nullptr;
  // Whether the device is past an event, also while a graph is captured. Null: c10::Event::query().
  bool (*has_passed)(const c10::Event& event) = nullptr;
};

// `kernels` lives as long as the process. Returns true, for a static initialiser.
bool register_row_kernels(c10::DeviceType device, const RowKernels* kernels);
const RowKernels& row_kernels(c10::DeviceType device);
// ATen's operators, for any device; the sum synchronises.
const RowKernels& aten_row_kernels();

}  // namespace meshrun
