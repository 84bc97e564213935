#include "parallel/comm/interface/memory_overlap.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fmt/format.h"

namespace meshrun {
namespace {

using at::Tensor;

struct Range {
  uintptr_t begin, end;  // of addresses, gaps included
  size_t index;
};

Range range_of(const Tensor& tensor, size_t index) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto bytes = static_cast<uintptr_t>((last + 1) * static_cast<int64_t>(tensor.itemsize()));
  return {begin, begin + bytes, index};
}

template <typename Visit>
bool any_address(const Tensor& tensor, uintptr_t at, int64_t dim, const Visit& visit) {
  if (dim == tensor.dim()) return visit(at);
  const auto step = static_cast<uintptr_t>(tensor.stride(dim) * tensor.itemsize());
  for (int64_t i = 0; i < tensor.size(dim); ++i, at += step) {
    if (any_address(tensor, at, dim + 1, visit)) return true;
  }
  return false;
}

// Elements may have other sizes, so bytes are compared.
bool have_common_byte(const Tensor& a, const Tensor& b) {
  const auto& [few, many] = a.numel() <= b.numel() ? std::tie(a, b) : std::tie(b, a);
  const auto for_each_byte = [](const Tensor& tensor, const auto& visit) {
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    return any_address(tensor, begin, 0, [&](uintptr_t at) {
      for (uintptr_t byte = at; byte < at + tensor.itemsize(); ++byte) {
        if (visit(byte)) return true;
      }
      return false;
    });
  };
  std::unordered_set<uintptr_t> bytes;
  for_each_byte(few, [&](uintptr_t byte) {
    bytes.insert(byte);
    return false;
  });
  return for_each_byte(many, [&](uintptr_t byte) { return bytes.contains(byte); });
}

}  // namespace

std::string find_memory_overlap(at::ArrayRef<Tensor> tensors, std::string_view name) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() > 0) ranges.push_back(range_of(tensors[i], i));
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (size_t j = i + 1; j < ranges.size() && ranges[j].begin < ranges[i].end; ++j) {
      const auto [first, second] = std::minmax(ranges[i].index, ranges[j].index);
      const Tensor &a = tensors[first], &b = tensors[second];
      const bool are_dense = a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense();
      if (!are_dense && !have_common_byte(a, b)) continue;
      return fmt::format("{0}[{1}] and {0}[{2}] are the same memory, or parts of it; pass it once",
                         name, first, second);
    }
  }
  return "";
}

}  // namespace meshrun
