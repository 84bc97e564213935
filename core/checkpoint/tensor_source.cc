#include "core/checkpoint/tensor_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

namespace meshrun {

std::optional<uint64_t> ElementBytes(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, uint64_t>, 17> kDtypes = {{
      {"BOOL", 1},
      {"U8", 1},
      {"I8", 1},
      {"U16", 2},
      {"I16", 2},
      {"U32", 4},
      {"I32", 4},
      {"U64", 8},
      {"I64", 8},
      {"F8_E4M3", 1},
      {"F8_E5M2", 1},
      {"F8_E8M0", 1},
      {"F16", 2},
      {"BF16", 2},
      {"F32", 4},
      {"F64", 8},
      {"C64", 8},
  }};
  for (const auto& [name, bytes] : kDtypes) {
    if (name == dtype) return bytes;
  }
  return std::nullopt;
}

absl::StatusOr<uint64_t> TensorBytes(const std::string& name, const TensorInfo& tensor) {
  const std::optional<uint64_t> element = ElementBytes(tensor.dtype);
  if (!element) {
    return absl::InvalidArgumentError(
        fmt::format("{} has the dtype '{}', which is not known", name, tensor.dtype));
  }
  for (const int64_t extent : tensor.shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(
          fmt::format("{} is {}: {} is a negative extent", name, DescribeTensor(tensor), extent));
    }
  }
  if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) return 0;
  uint64_t bytes = *element;
  for (const int64_t extent : tensor.shape) {
    // An offset in a file is an int64_t.
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes) ||
        bytes > static_cast<uint64_t>(INT64_MAX)) {
      return absl::InvalidArgumentError(fmt::format(
          "{} is {}, and its size does not fit into 63 bits", name, DescribeTensor(tensor)));
    }
  }
  return bytes;
}

std::string DescribeTensor(const TensorInfo& tensor) {
  return fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.shape, ", "));
}

}  // namespace meshrun
