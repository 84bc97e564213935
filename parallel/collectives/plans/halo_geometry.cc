#include "parallel/collectives/plans/halo_geometry.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace meshrun {
namespace {

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
int64_t ceil_divide(int64_t a, int64_t b) { return -floor_divide(-a, b); }

// Where each piece begins, and the extent of the whole.
std::vector<int64_t> offsets_of(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> offsets(sizes.size() + 1, 0);
  std::partial_sum(sizes.begin(), sizes.end(), offsets.begin() + 1);
  return offsets;
}

// A run that lies within one rank's piece: positions from its first one.
struct Run {
  size_t rank;
  SplitRange positions;
};

// The runs of `range` in order, between the paddings.
std::vector<Run> runs_of(const std::vector<int64_t>& offsets, SplitRange range, bool periodic) {
  const int64_t whole = offsets.back();
  std::vector<Run> runs;
  if (!periodic) range = {std::max<int64_t>(range.begin, 0), std::min(range.end, whole)};
  if (whole == 0) return runs;
  for (int64_t at = range.begin; at < range.end;) {
    const int64_t position = at - floor_divide(at, whole) * whole;
    const auto next = std::upper_bound(offsets.begin(), offsets.end(), position);
    const int64_t count = std::min(*next - position, range.end - at);
    const auto rank = static_cast<size_t>(next - offsets.begin() - 1);
    const int64_t begin = position - offsets[rank];
    runs.push_back({rank, {begin, begin + count}});
    at += count;
  }
  return runs;
}

bool overlap(std::vector<SplitRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const SplitRange& a, const SplitRange& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end) return true;
  }
  return false;
}

}  // namespace

WindowedDim::WindowedDim(IntArgument outputs, Reads reads)
    : outputs_(std::max<int64_t>(outputs, 0)), reads_(std::move(reads)) {}

WindowedDim WindowedDim::sliding(IntArgument outputs, IntArgument kernel, IntArgument stride,
                                 IntArgument padding, IntArgument dilation) {
  return {outputs, [=](int64_t output) {
            const int64_t begin = output * stride - padding;
            return SplitRange{begin, begin + dilation * (kernel - 1) + 1};
          }};
}

WindowedDim WindowedDim::picking(std::vector<int64_t> positions, IntArgument low) {
  const auto outputs = static_cast<int64_t>(positions.size());
  WindowedDim dim(outputs, [positions = std::move(positions)](int64_t output) {
    const int64_t position = positions[static_cast<size_t>(output)];
    return SplitRange{position, position + 1};
  });
  dim.place_ = [low](int64_t output) { return SplitRange{output - low, output - low + 1}; };
  return dim;
}

WindowedDim WindowedDim::transposed(IntArgument outputs, IntArgument kernel, IntArgument stride,
                                    IntArgument padding, IntArgument dilation) {
  return {outputs, [=](int64_t output) {
            const int64_t last = floor_divide(output + padding, stride);
            const int64_t first = ceil_divide(output + padding - dilation * (kernel - 1), stride);
            return SplitRange{std::min(first, last), last + 1};
          }};
}

std::vector<SplitRange> WindowedDim::owned(const std::vector<int64_t>& sizes) const {
  const std::vector<int64_t> offsets = offsets_of(sizes);
  const int64_t whole = offsets.back();
  const auto centre = [&](int64_t output) {
    const SplitRange range = place_ ? place_(output) : reads_(output);
    const int64_t middle = floor_divide(range.begin + range.end - 1, 2);
    return std::clamp<int64_t>(middle, 0, whole - 1);
  };
  std::vector<SplitRange> owned(sizes.size(), SplitRange{outputs_, outputs_});
  owned.front().begin = 0;
  for (size_t r = 1; r < sizes.size() && whole > 0; ++r) {
    int64_t low = owned[r - 1].begin, high = outputs_;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (centre(middle) >= offsets[r]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    owned[r].begin = low;
    owned[r - 1].end = low;
  }
  return owned;
}

std::vector<int64_t> WindowedDim::output_sizes(const std::vector<int64_t>& sizes) const {
  std::vector<int64_t> extents;
  for (const SplitRange& range : owned(sizes)) extents.push_back(range.size());
  return extents;
}

std::vector<SplitRange> WindowedDim::ranges(const std::vector<int64_t>& sizes) const {
  std::vector<SplitRange> ranges;
  for (const SplitRange& outputs : owned(sizes)) {
    if (outputs.size() == 0) {
      ranges.emplace_back();
      continue;
    }
    SplitRange range{reads_(outputs.begin).begin, reads_(outputs.end - 1).end};
    for (int64_t output = outputs.begin; place_ && output < outputs.end; ++output) {
      const SplitRange read = reads_(output);
      range = {std::min(range.begin, read.begin), std::max(range.end, read.end)};
    }
    ranges.push_back(range);
  }
  return ranges;
}

int64_t sliding_outputs(IntArgument inputs, IntArgument kernel, IntArgument stride,
                        IntArgument padding_low, IntArgument padding_high, IntArgument dilation,
                        BoolArgument ceil_mode) {
  const int64_t room = inputs + padding_low + padding_high - dilation * (kernel - 1) - 1;
  const int64_t outputs = floor_divide(room + (ceil_mode ? stride - 1 : 0), stride) + 1;
  // The last window of ceil_mode begins within the input or the padding before it.
  if (ceil_mode && (outputs - 1) * stride >= inputs + padding_low) return outputs - 1;
  return outputs;
}

int64_t transposed_outputs(IntArgument inputs, IntArgument kernel, IntArgument stride,
                           IntArgument padding, IntArgument dilation, IntArgument output_padding) {
  return (inputs - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1;
}

int64_t RangeTransfer::extent() const {
  return std::accumulate(parts.begin(), parts.end(), low_padding + high_padding,
                         [](int64_t sum, const Part& part) { return sum + part.count; });
}

int64_t RangeTransfer::num_received() const {
  return std::accumulate(received.begin(), received.end(), int64_t{0});
}

RangeTransfer plan_ranges(const std::vector<int64_t>& sizes, const std::vector<SplitRange>& ranges,
                          IntArgument rank, BoolArgument periodic) {
  const auto self = static_cast<size_t>(rank);
  const std::vector<int64_t> offsets = offsets_of(sizes);
  const int64_t whole = offsets.back();
  RangeTransfer plan;
  plan.sent.resize(sizes.size());
  plan.received.resize(sizes.size());
  const SplitRange wanted = ranges[self];
  if (!periodic && wanted.size() > 0) {
    plan.low_padding = std::clamp<int64_t>(-wanted.begin, 0, wanted.size());
    plan.high_padding =
        std::clamp<int64_t>(wanted.end - whole, 0, wanted.size() - plan.low_padding);
  }
  const std::vector<Run> runs = runs_of(offsets, wanted, periodic);
  for (const Run& run : runs) {
    if (run.rank != self) plan.received[run.rank] += run.positions.size();
  }
  // Where the next position from each rank is among those received.
  std::vector<int64_t> next = offsets_of(plan.received);
  for (const Run& run : runs) {
    RangeTransfer::Part part{true, run.positions.begin, run.positions.size()};
    if (run.rank != self) {
      part = {false, next[run.rank], part.count};
      next[run.rank] += part.count;
    }
    const bool continues = !plan.parts.empty() && plan.parts.back().own == part.own &&
                           plan.parts.back().begin + plan.parts.back().count == part.begin;
    if (continues) {
      plan.parts.back().count += part.count;
    } else {
      plan.parts.push_back(part);
    }
  }
  for (size_t peer = 0; peer < sizes.size(); ++peer) {
    if (peer == self) continue;
    for (const Run& run : runs_of(offsets, ranges[peer], periodic)) {
      if (run.rank != self) continue;
      plan.given.push_back(run.positions);
      plan.sent[peer] += run.positions.size();
    }
  }
  plan.gives_twice = overlap(plan.given);
  return plan;
}

bool anything_travels(const std::vector<int64_t>& sizes, const std::vector<SplitRange>& ranges,
                      BoolArgument periodic) {
  const std::vector<int64_t> offsets = offsets_of(sizes);
  for (size_t r = 0; r < sizes.size(); ++r) {
    for (const Run& run : runs_of(offsets, ranges[r], periodic)) {
      if (run.rank != r) return true;
    }
  }
  return false;
}

}  // namespace meshrun
