#include "parallel/base/tensor_layout.h"

namespace meshrun {
namespace {

std::byte* bytes_of(const at::Tensor& tensor) {
  // c10d writes to the tensors that it is given as const too.
  return static_cast<std::byte*>(tensor.data_ptr());
}

}  // namespace

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return DType::kBool;
    case at::kByte:
      return DType::kUInt8;
    case at::kChar:
      return DType::kInt8;
    case at::kShort:
      return DType::kInt16;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kUInt16:
      return DType::kUInt16;
    case at::kUInt32:
      return DType::kUInt32;
    case at::kUInt64:
      return DType::kUInt64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kComplexHalf:
      return DType::kComplex32;
    case at::kComplexFloat:
      return DType::kComplex64;
    case at::kComplexDouble:
      return DType::kComplex128;
    case at::kFloat8_e4m3fn:
      return DType::kFloat8E4M3Fn;
    case at::kFloat8_e5m2:
      return DType::kFloat8E5M2;
    case at::kFloat8_e4m3fnuz:
      return DType::kFloat8E4M3Fnuz;
    case at::kFloat8_e5m2fnuz:
      return DType::kFloat8E5M2Fnuz;
    default:
      return std::nullopt;
  }
}

Layout slice_layout(at::IntArrayRef shape, int64_t dim, int64_t extent, int64_t element_size) {
  int64_t rows = 1, inner = element_size;
  for (int64_t d = 0; d < dim; ++d) rows *= shape[d];
  for (int64_t d = dim + 1; d < static_cast<int64_t>(shape.size()); ++d) inner *= shape[d];
  const int64_t row = extent * inner;
  if (rows * row == 0) return {};
  const int64_t pitch = shape[dim] * inner;
  if (rows == 1 || row == pitch) return {1, rows * row, rows * row};
  return {rows, row, pitch};
}

std::optional<StridedSpan> span_of(const at::Tensor& tensor) {
  if (tensor.is_conj() || tensor.is_neg()) return std::nullopt;
  if (tensor.numel() == 0) return StridedSpan{};
  const auto element = static_cast<int64_t>(tensor.element_size());
  if (tensor.is_contiguous()) {
    return contiguous(bytes_of(tensor), tensor.numel() * element);
  }
  int64_t row = 1, rows = 1, pitch = 0;
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    const int64_t size = tensor.size(d), stride = tensor.stride(d);
    if (size == 1) continue;
    if (pitch == 0 && stride == row) {
      row *= size;
    } else if (pitch == 0 ? stride > row : stride == pitch * rows) {
      if (pitch == 0) pitch = stride;
      rows *= size;
    } else {
      return std::nullopt;
    }
  }
  return StridedSpan{bytes_of(tensor), {rows, row * element, pitch * element}};
}

}  // namespace meshrun
