#include "parallel/kernels/segmented_sum.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "parallel/base/prefetch.h"
#include "parallel/base/reduce.h"

namespace meshrun {
namespace {

// Rows of these lengths lie anywhere and are too short for the processor to see a stream in: so
// many ahead are asked for.
constexpr int64_t kLeastPrefetched = 256, kMostPrefetched = 4096;
constexpr int64_t kAhead = 4;

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

// Bytes [offset, offset + to.size()) of the slices of `input`, which has one row of them.
void gather_run(std::span<std::byte> to, const Slices& input, std::span<const int64_t> index,
                SliceShape shape, int64_t offset) {
  shape.outer = 1;
  const auto row = static_cast<size_t>(shape.inner * element_size(shape.dtype));
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

// Slices of single elements are added in turns: the first terms of all segments, then the second
// ones, and so on, so that the processor need not guess how long each segment is. One list of turns
// serves all rows; it pays from kLeastRows rows on, if no segment has more than kMostTurns terms.
constexpr int64_t kLeastRows = 8, kMostTurns = 64;

template <typename Element>
void sum_elements(std::byte* output, const Slices& first, const Slices& second,
                  std::span<const int64_t> offsets, std::span<const int64_t> positions,
                  int64_t outer, int64_t longest, int64_t begin, int64_t end) {
  struct Term {
    int64_t from, to;
  };
  struct Turn {
    std::vector<Term> in_first, in_second;
  };
  std::vector<Turn> turns(static_cast<size_t>(std::max<int64_t>(1, longest)));
  for (int64_t r = begin; r < end; ++r) {
    const int64_t from = offsets[static_cast<size_t>(r)];
    const int64_t count = offsets[static_cast<size_t>(r) + 1] - from;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t p = positions[static_cast<size_t>(from + k)];
      Turn& turn = turns[static_cast<size_t>(k)];
      if (p < first.count) {
        turn.in_first.push_back({p, r});
      } else {
        turn.in_second.push_back({p - first.count, r});
      }
    }
  }
  const auto slices = static_cast<int64_t>(offsets.size() - 1);
  for (int64_t o = 0; o < outer; ++o) {
    Element* const to = reinterpret_cast<Element*>(output) + o * slices;
    const auto* const in_first = reinterpret_cast<const Element*>(first.data) + o * first.pitch;
    const auto* const in_second = reinterpret_cast<const Element*>(second.data) + o * second.pitch;
    std::fill(to + begin, to + end, Element(0));
    for (const Term& term : turns[0].in_first) to[term.to] = in_first[term.from];
    for (const Term& term : turns[0].in_second) to[term.to] = in_second[term.from];
    for (size_t k = 1; k < turns.size(); ++k) {
      for (const Term& term : turns[k].in_first) to[term.to] += in_first[term.from];
      for (const Term& term : turns[k].in_second) to[term.to] += in_second[term.from];
    }
  }
}

template <typename Element>
void sum_of(std::byte* output, const Slices& first, const Slices& second,
            std::span<const int64_t> offsets, std::span<const int64_t> positions,
            const SliceShape& shape, int64_t begin, int64_t end) {
  if (shape.inner == 1 && shape.outer >= kLeastRows) {
    int64_t longest = 0;
    for (int64_t r = begin; r < end; ++r) {
      const auto segment = static_cast<size_t>(r);
      longest = std::max(longest, offsets[segment + 1] - offsets[segment]);
    }
    if (longest <= kMostTurns) {
      return sum_elements<Element>(output, first, second, offsets, positions, shape.outer, longest,
                                   begin, end);
    }
  }
  sum_short<Element>(output, first, second, offsets, positions, shape, begin, end);
}

}  // namespace

void gather_slices(std::byte* output, int64_t output_pitch, const Slices& input,
                   std::span<const int64_t> index, const SliceShape& shape, int64_t begin,
                   int64_t end) {
  const int64_t size = element_size(shape.dtype);
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
        prefetch_to_read(from + index[static_cast<size_t>(r + kAhead)] * row, row);
        prefetch_to_write(to + (r + kAhead) * row, row);
      }
      std::memcpy(to + r * row, from + index[static_cast<size_t>(r)] * row,
                  static_cast<size_t>(row));
    }
  }
}

void gather_bytes(StridedSpan to, int64_t to_offset, int64_t bytes, const Slices& input,
                  std::span<const int64_t> index, const SliceShape& shape, int64_t offset) {
  const int64_t size = element_size(shape.dtype);
  const int64_t row = static_cast<int64_t>(index.size()) * shape.inner * size;
  while (bytes > 0) {
    const int64_t in_row = offset % row;
    const int64_t run = std::min({bytes, row - in_row, to.layout.run_at(to_offset)});
    const Slices one_row{input.data + offset / row * input.pitch * size, input.count, 0};
    gather_run({to.data + to.layout.position(to_offset), static_cast<size_t>(run)}, one_row, index,
               shape, in_row);
    offset += run;
    to_offset += run;
    bytes -= run;
  }
}

void segmented_sum(std::byte* output, const Slices& first, const Slices& second,
                   std::span<const int64_t> offsets, std::span<const int64_t> positions,
                   const SliceShape& shape, bool use_fp32, int64_t begin, int64_t end) {
  const int64_t size = element_size(shape.dtype);
  const int64_t row = shape.inner * size;
  const int64_t output_pitch = static_cast<int64_t>(offsets.size() - 1) * row;
  if (row == 0) return;
  if (shape.inner <= kShort && shape.dtype == DType::kFloat32) {
    return sum_of<float>(output, first, second, offsets, positions, shape, begin, end);
  }
  if (shape.inner <= kShort && shape.dtype == DType::kFloat64) {
    return sum_of<double>(output, first, second, offsets, positions, shape, begin, end);
  }
  const Reduction sum{ReductionOp::kSum, shape.dtype,
                      use_fp32 ? Accumulate::kWide : Accumulate::kNative};
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
        reduce(sources, to, shape.inner, sum);
      }
    }
  }
}

}  // namespace meshrun
