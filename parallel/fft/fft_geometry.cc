#include "parallel/fft/fft_geometry.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "parallel/base/extents.h"

namespace meshrun::fft {
namespace {

// A message of less gains nothing from being cut: putting the pieces together takes longer.
constexpr int64_t kBytesPerChunk = int64_t{32} << 20;
constexpr int64_t kMaxChunks = 4;

void append(std::vector<SplitRange>& blocks, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (!blocks.empty() && blocks.back().end == begin) {
    blocks.back().end = end;
  } else {
    blocks.push_back({begin, end});
  }
}

}  // namespace

HalfRows::HalfRows(Layout layout, int64_t height, std::vector<int64_t> held, bool shared)
    : layout_(layout),
      height_(height),
      held_(std::move(held)),
      offsets_(extent_offsets(held_)),
      computed_(held_.size()),
      num_computed_(held_.size(), 0),
      runs_(held_.size() * held_.size()),
      shared_(shared && layout == Layout::kCanonical && held_.size() == 2) {
  if (layout_ == Layout::kPaired) {
    deal_paired();
  } else {
    deal_canonical();
  }
  for (size_t rank = 0; rank < held_.size(); ++rank) {
    for (const SplitRange& block : computed_[rank]) num_computed_[rank] += block.size();
  }
}

void HalfRows::deal_paired() {
  for (size_t rank = 0; rank < held_.size(); ++rank) {
    append(computed_[rank], std::min(offsets_[rank], num_half_rows()),
           std::min(offsets_[rank + 1], num_half_rows()));
  }
  complete_ = offsets_.back() >= num_half_rows();
}

int HalfRows::holder_of(int64_t row) const {
  if (row >= offsets_.back()) return -1;
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), row);
  return static_cast<int>(after - offsets_.begin()) - 1;
}

void HalfRows::deal_canonical() {
  const auto mirror = [&](int64_t half) { return half == 0 ? 0 : height_ - half; };
  complete_ = offsets_.back() >= height_;
  // Half rows whose two rows have the same two holders.
  std::vector<int> computer(static_cast<size_t>(num_half_rows()), -1);
  for (int64_t begin = 0; begin < num_half_rows();) {
    const int low = holder_of(begin);
    const int high = holder_of(mirror(begin));
    int64_t end = begin + 1;
    while (end < num_half_rows() && holder_of(end) == low && holder_of(mirror(end)) == high) ++end;
    const int64_t middle = low < 0 ? begin : high < 0 ? end : begin + (end - begin + 1) / 2;
    for (int64_t half = begin; half < end; ++half) {
      const int rank = half < middle ? low : high;
      computer[static_cast<size_t>(half)] = rank;
      if (!shared_ && rank >= 0) append(computed_[index(rank)], half, half + 1);
      if (!shared_) continue;
      if (low >= 0) append(computed_[index(low)], half, half + 1);
      if (high >= 0 && high != low) append(computed_[index(high)], half, half + 1);
    }
    begin = end;
  }

  // The number of each half row among those of a rank.
  std::vector<std::vector<int64_t>> numbers(held_.size(), std::vector<int64_t>(computer.size(), 0));
  for (size_t rank = 0; rank < held_.size(); ++rank) {
    int64_t next = 0;
    for (const SplitRange& block : computed_[rank]) {
      for (int64_t half = block.begin; half < block.end; ++half) {
        numbers[rank][static_cast<size_t>(half)] = next++;
      }
    }
  }
  for (int64_t row = 0; row < std::min(height_, offsets_.back()); ++row) {
    const int holder = holder_of(row);
    const bool mirrored = row > height_ / 2;
    const auto half = static_cast<size_t>(mirrored ? height_ - row : row);
    const size_t from = index(shared_ ? holder : computer[half]);
    std::vector<RowRun>& runs = runs_[from * held_.size() + index(holder)];
    const int64_t local = row - offsets_[index(holder)];
    if (!runs.empty()) {
      RowRun& last = runs.back();
      const int64_t next = last.half_begin + (mirrored ? -last.count : last.count);
      if (last.mirrored == mirrored && last.row_begin + last.count == local &&
          next == numbers[from][half]) {
        ++last.count;
        continue;
      }
    }
    runs.push_back({local, numbers[from][half], 1, mirrored});
  }
}

std::vector<SplitRange> HalfRows::in_rank_order() const {
  std::vector<SplitRange> blocks;
  for (const std::vector<SplitRange>& of_rank : computed_) {
    for (const SplitRange& block : of_rank) append(blocks, block.begin, block.end);
  }
  return blocks;
}

bool HalfRows::is_ordered() const {
  if (shared_) return false;
  const std::vector<SplitRange> blocks = in_rank_order();
  return blocks.empty() || (blocks.size() == 1 && blocks[0].begin == 0);
}

int64_t HalfRows::num_rows(int computer, int holder) const {
  int64_t rows = 0;
  for (const RowRun& run : runs(computer, holder)) rows += run.count;
  return rows;
}

std::vector<int64_t> HalfRows::self_mirrored(int rank) const {
  std::vector<int64_t> numbers;
  int64_t next = 0;
  for (const SplitRange& block : computed(rank)) {
    if (block.begin == 0) numbers.push_back(next);
    if (height_ % 2 == 0 && height_ > 0 && block.begin <= height_ / 2 && height_ / 2 < block.end) {
      numbers.push_back(next + height_ / 2 - block.begin);
    }
    next += block.size();
  }
  return numbers;
}

int64_t num_chunks(int64_t planes, int64_t wire_bytes, int world) {
  if (world == 1 || planes <= 1) return 1;
  return std::clamp(wire_bytes / kBytesPerChunk, int64_t{1}, std::min(planes, kMaxChunks));
}

std::vector<int64_t> sizes_within(const std::vector<int64_t>& sizes, int64_t extent) {
  std::vector<int64_t> within;
  within.reserve(sizes.size());
  int64_t left = extent;
  for (const int64_t size : sizes) {
    within.push_back(std::min(size, left));
    left -= within.back();
  }
  return within;
}

double complex_flops(int64_t n, int64_t count) {
  if (n <= 1) return 0;
  return 5.0 * static_cast<double>(n) * std::log2(static_cast<double>(n)) *
         static_cast<double>(count);
}

}  // namespace meshrun::fft
