// The one-dimensional transforms of a rank's own planes, and moves of rows between buffers.
//
// Planes are [N, rows, columns]. Scale is LibTorch's: kNone, kRoot (1 / sqrt(n)), kFull (1 / n), n
// being the transform's length; it is part of the transform, never a pass of its own. Works on CPU
// and CUDA tensors, float32 and float64. Without gradients. Internal to parallel/fft.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/fft/fft_geometry.h"

namespace meshrun::fft {

enum class Scale : int64_t { kNone = 0, kRoot = 1, kFull = 2 };

// [N, H, W] real -> half rows [N, height / 2 + 1, W]; rows beyond H count as zeros, rows beyond
// height are dropped. The result may be strided.
at::Tensor real_rows_forward(const at::Tensor& planes, int64_t height, Scale scale);
// [N, height / 2 + 1, W] -> [N, height, W] real. May be strided.
at::Tensor real_rows_inverse(const at::Tensor& half_rows, int64_t height, Scale scale);
// [N, R, W] -> [N, R, width] complex along the last dimension, cut or padded with zeros at its end.
at::Tensor complex_columns(const at::Tensor& rows, int64_t width, Scale scale, bool forward);

// `tensor` with `extent` along `dim`: cut (a view) or padded with zeros at its end (a copy).
at::Tensor resized(const at::Tensor& tensor, int64_t dim, int64_t extent);

// Rows of a spectrum with all columns, [N, ., width], to rows with half the columns, [N, count,
// width / 2 + 1]: those of the run, or the rows that mirror them.
void store_rows(const at::Tensor& stored, const at::Tensor& half_rows, const RowRun& run);
// The reverse: what the run's rows say of `half_rows`. Where both a row and its mirror say the
// same element (column 0, and width / 2 of an even width), it is their Hermitian mean: `load_rows`
// of all rows that are not mirrored come first, then end_direct_rows(), then the mirrored ones.
void load_rows(const at::Tensor& stored, const at::Tensor& half_rows, const RowRun& run);
// `self`: the half rows that are their own mirror.
void end_direct_rows(const at::Tensor& half_rows, const std::vector<int64_t>& self);

}  // namespace meshrun::fft
