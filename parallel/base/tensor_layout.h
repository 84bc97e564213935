// Describes tensors as memory for the engine. Pure.
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

// The memory of a tensor that consists of rows of equal length and pitch: a contiguous one, or a
// slice of a contiguous one along one dimension. Absent: the tensor must be copied.
std::optional<StridedSpan> span_of(const at::Tensor& tensor);

}  // namespace meshrun
