// Tensors that follow one another in a stream of bytes, which ranks exchange interval by interval.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "parallel/checkpoint/stored_values.h"

namespace meshrun::detail {

// Tensors begin at multiples of it, which are multiples of every element.
inline constexpr uint64_t kStreamAlignment = 64;

inline uint64_t aligned_in_stream(uint64_t bytes) {
  return (bytes + kStreamAlignment - 1) / kStreamAlignment * kStreamAlignment;
}

struct StreamInterval {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
};

// Where a tensor lies.
struct StreamPlace : StreamInterval {
  uint64_t element = 1;  // bytes

  // Behind the tensors that end at `before`.
  static StreamPlace after(uint64_t before, const TensorInfo& info) {
    const uint64_t begin = aligned_in_stream(before);
    return {{begin, begin + stored_bytes(info)}, ElementBytes(info.dtype).value()};
  }
};

// Calls visit(tensor, first, last) with the elements of each tensor that lie in the interval. A
// tensor has its StreamPlace as `place`.
template <typename Tensor, typename Visit>
void visit_stream(const std::vector<Tensor>& stream, const StreamInterval& interval,
                  const Visit& visit) {
  auto tensor = std::ranges::lower_bound(stream, interval.begin + 1, {},
                                         [](const Tensor& each) { return each.place.end; });
  for (; tensor != stream.end() && tensor->place.begin < interval.end; ++tensor) {
    const StreamPlace& place = tensor->place;
    const uint64_t begin = std::max(interval.begin, place.begin);
    const uint64_t end = std::min(interval.end, place.end);
    if (begin >= end) continue;
    visit(*tensor, static_cast<int64_t>((begin - place.begin) / place.element),
          static_cast<int64_t>((end - place.begin) / place.element));
  }
}

}  // namespace meshrun::detail
