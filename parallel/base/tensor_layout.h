// Tensors as the engine's memory. Pure.
#pragma once

#include <optional>
#include <string>

#include "ATen/core/Tensor.h"
#include "parallel/base/dtype.h"
#include "parallel/base/strided_span.h"

namespace meshrun {

// Absent: quantized, sub-byte and other types that have no plain elements.
std::optional<DType> dtype_of(at::ScalarType type);

// `extent` elements along `dim` of a contiguous tensor of that shape.
Layout slice_layout(at::IntArrayRef shape, int64_t dim, int64_t extent, int64_t element_size);

// Where `tensor`, as it lies, is rows of equal length and pitch: contiguous, or a slice of a
// contiguous tensor along one dimension. Absent: it must be copied.
std::optional<StridedSpan> span_of(const at::Tensor& tensor);

}  // namespace meshrun
