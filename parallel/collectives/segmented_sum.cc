#include "parallel/collectives/segmented_sum.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "parallel/comm/ucx/engine/reduce.h"

namespace meshrun {
namespace {

// Rows of these lengths lie anywhere and are too short for the processor to see a stream in: so
// many ahead are asked for. A fifth of the time of what does not fit in the caches.
constexpr int64_t kLeastPrefetched = 256, kMostPrefetched = 4096;
constexpr int64_t kAhead = 4;

void prefetch(const std::byte* row, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at);
}

// Rows of one element, whose copies are a load and a store.
template <typename Element>
void gather_elements(std::byte* output, int64_t output_pitch, const Slices& input,
                     std::span<const int64_t> index, int64_t outer, int64_t begin, int64_t end) {
  for (int64_t o = 0; o < outer; ++o) {
    Element* const to = reinterpret_cast<Element*>(output) + o * output_pitch;
    const Element* const from = reinterpret_cast<const Element*>(input.data) + o * input.pitch;
    for (int64_t r = begin; r < end; ++r) to[r] = from[index[static_cast<size_t>(r)]];
  }
}

// Slices so short that a call for each would cost more than its additions.
constexpr int64_t kShort = 16;

template <typename Element>
void sum_short(std::byte* output, const Slices& first, const Slices& second,
               std::span<const int64_t> offsets, std::span<const int64_t> positions,
               const SliceShape& shape, int64_t begin, int64_t end) {
  const int64_t inner = shape.inner;
  const auto slices = static_cast<int64_t>(offsets.size() - 1);
  for (int64_t o = 0; o < shape.outer; ++o) {
    const auto* const in_first = reinterpret_cast<const Element*>(first.data) + o * first.pitch;
    const auto* const in_second = reinterpret_cast<const Element*>(second.data) + o * second.pitch;
    const auto source = [&](int64_t k) {
      const int64_t p = positions[static_cast<size_t>(k)];
      return p < first.count ? in_first + p * inner : in_second + (p - first.count) * inner;
    };
    for (int64_t r = begin; r < end; ++r) {
      Element* const to = reinterpret_cast<Element*>(output) + (o * slices + r) * inner;
      const int64_t from = offsets[static_cast<size_t>(r)];
      const int64_t until = offsets[static_cast<size_t>(r) + 1];
      for (int64_t i = 0; i < inner; ++i) {
        Element sum = from < until ? source(from)[i] : Element(0);
        for (int64_t k = from + 1; k < until; ++k) sum += source(k)[i];
        to[i] = sum;
      }
    }
  }
}

}  // namespace

void gather_slices(std::byte* output, int64_t output_pitch, const Slices& input,
                   std::span<const int64_t> index, const SliceShape& shape, int64_t begin,
                   int64_t end) {
  const int64_t size = ucx::element_size(shape.dtype);
  if (shape.inner == 1) {
    switch (size) {
      case 1:
        return gather_elements<uint8_t>(output, output_pitch, input, index, shape.outer, begin,
                                        end);
      case 2:
        return gather_elements<uint16_t>(output, output_pitch, input, index, shape.outer, begin,
                                         end);
      case 4:
        return gather_elements<uint32_t>(output, output_pitch, input, index, shape.outer, begin,
                                         end);
      case 8:
        return gather_elements<uint64_t>(output, output_pitch, input, index, shape.outer, begin,
                                         end);
      default:
        break;
    }
  }
  const int64_t row = shape.inner * size;
  if (row == 0) return;
  const bool is_long = row >= kLeastPrefetched && row <= kMostPrefetched;
  for (int64_t o = 0; o < shape.outer; ++o) {
    std::byte* const to = output + o * output_pitch * size;
    const std::byte* const from = input.data + o * input.pitch * size;
    for (int64_t r = begin; r < end; ++r) {
      if (is_long && r + kAhead < end) {
        prefetch(from + index[static_cast<size_t>(r + kAhead)] * row, row);
      }
      std::memcpy(to + r * row, from + index[static_cast<size_t>(r)] * row,
                  static_cast<size_t>(row));
    }
  }
}

void gather_bytes(std::span<std::byte> to, const Slices& input, std::span<const int64_t> index,
                  const SliceShape& shape, int64_t offset) {
  const auto row = static_cast<size_t>(shape.inner * ucx::element_size(shape.dtype));
  if (row == 0) return;
  size_t slice = static_cast<size_t>(offset) / row, skipped = static_cast<size_t>(offset) % row;
  const auto part = [&] {
    const size_t bytes = std::min(row - skipped, to.size());
    std::memcpy(to.data(), input.data + static_cast<size_t>(index[slice]) * row + skipped, bytes);
    to = to.subspan(bytes);
    ++slice;
    skipped = 0;
  };
  if (skipped > 0) part();
  const auto whole = static_cast<int64_t>(to.size() / row);
  gather_slices(to.data(), 0, input, index.subspan(slice), shape, 0, whole);
  to = to.subspan(static_cast<size_t>(whole) * row);
  slice += static_cast<size_t>(whole);
  if (!to.empty()) part();
}

void segmented_sum(std::byte* output, const Slices& first, const Slices& second,
                   std::span<const int64_t> offsets, std::span<const int64_t> positions,
                   const SliceShape& shape, bool use_fp32, int64_t begin, int64_t end) {
  const int64_t size = ucx::element_size(shape.dtype);
  const int64_t row = shape.inner * size;
  const int64_t output_pitch = static_cast<int64_t>(offsets.size() - 1) * row;
  if (row == 0) return;
  if (shape.inner <= kShort && shape.dtype == ucx::DType::kFloat32) {
    return sum_short<float>(output, first, second, offsets, positions, shape, begin, end);
  }
  if (shape.inner <= kShort && shape.dtype == ucx::DType::kFloat64) {
    return sum_short<double>(output, first, second, offsets, positions, shape, begin, end);
  }
  const ucx::Reduction sum{ucx::ReduceOp::kSum, shape.dtype,
                           use_fp32 ? ucx::Accumulate::kWide : ucx::Accumulate::kNative};
  std::vector<const std::byte*> sources;
  for (int64_t o = 0; o < shape.outer; ++o) {
    const std::byte* const in_first = first.data + o * first.pitch * size;
    const std::byte* const in_second = second.data + o * second.pitch * size;
    for (int64_t r = begin; r < end; ++r) {
      std::byte* const to = output + o * output_pitch + r * row;
      sources.clear();
      for (int64_t k = offsets[static_cast<size_t>(r)]; k < offsets[static_cast<size_t>(r) + 1];
           ++k) {
        const int64_t p = positions[static_cast<size_t>(k)];
        sources.push_back(p < first.count ? in_first + p * row
                                          : in_second + (p - first.count) * row);
      }
      if (sources.empty()) {
        std::memset(to, 0, static_cast<size_t>(row));
      } else if (sources.size() == 1) {
        std::memcpy(to, sources[0], static_cast<size_t>(row));
      } else {
        ucx::reduce(sources, to, shape.inner, sum);
      }
    }
  }
}

}  // namespace meshrun
