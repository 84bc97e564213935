// Which rows of a distributed two-dimensional real transform each rank computes, holds and moves:
// pure arithmetic of what all ranks know, without LibTorch.
//
// The transform of a real field of `height` rows needs the half rows 0 .. height / 2 alone; row
// height - h is the mirrored conjugate of row h. A half row is computed by one rank.
//
//   paired     rank r computes a block of half rows, and holds what it has computed
//   canonical  rank r holds a block of all rows. Two ranks hold rows h and height - h: one computes
//              half row h and sends the other its row; neighbouring half rows are dealt to both
//              evenly. `shared`, two ranks: both compute all half rows that they hold a row of,
//              which sends a little less and computes more
//
// Threads: values. Errors: none; callers check extents.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/base/split.h"

namespace meshrun::fft {

enum class Layout { kCanonical, kPaired };

// Consecutive rows that travel together. row_begin + i is half row half_begin + i or, `mirrored`,
// half_begin - i.
struct RowRun {
  int64_t row_begin = 0;
  int64_t half_begin = 0;
  int64_t count = 0;
  bool mirrored = false;

  bool operator==(const RowRun&) const = default;
};

class HalfRows {
 public:
  // `held`: by rank, how many of the rows 0, 1, ... it holds, in rank order; of half rows where
  // paired. Rows beyond the sum are dropped (as zeros: the transform's inverse), rows beyond the
  // transform's are nobody's.
  HalfRows(Layout layout, int64_t height, std::vector<int64_t> held, bool shared = false);

  Layout layout() const { return layout_; }
  int64_t height() const { return height_; }
  int world() const { return static_cast<int>(held_.size()); }
  const std::vector<int64_t>& held() const { return held_; }
  // height / 2 + 1.
  int64_t num_half_rows() const { return height_ / 2 + 1; }

  // The half rows that a rank computes, ascending; and how many, by rank. A rank's computed half
  // rows are numbered in this order.
  const std::vector<SplitRange>& computed(int rank) const { return computed_[index(rank)]; }
  const std::vector<int64_t>& num_computed() const { return num_computed_; }
  // All half rows that are computed, rank by rank: what a transposition splits.
  std::vector<SplitRange> in_rank_order() const;
  // Whether in_rank_order() is 0, 1, 2, ..., each once.
  bool is_ordered() const;

  // Canonical: the rows that `holder` holds and `computer` computes. row_begin counts from the
  // holder's first row, half_begin from the computer's computed half rows.
  const std::vector<RowRun>& runs(int computer, int holder) const {
    return runs_[index(computer) * held_.size() + index(holder)];
  }
  // Rows in runs(computer, holder).
  int64_t num_rows(int computer, int holder) const;
  // Canonical: numbers of the computed half rows that are their own mirror (0 and height / 2).
  std::vector<int64_t> self_mirrored(int rank) const;
  // Whether half rows are computed by several ranks, from what each holds: their sum is the half
  // row that an inverse transform goes on with.
  bool is_shared() const { return shared_; }
  // Whether computing ranks get every row of every pair that they compute.
  bool is_complete() const { return complete_ && !shared_; }

 private:
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  void deal_paired();
  void deal_canonical();
  int holder_of(int64_t row) const;

  Layout layout_;
  int64_t height_;
  std::vector<int64_t> held_;
  std::vector<int64_t> offsets_;  // of held_, world + 1
  std::vector<std::vector<SplitRange>> computed_;
  std::vector<int64_t> num_computed_;
  std::vector<std::vector<RowRun>> runs_;
  bool complete_ = true;
  bool shared_ = false;
};

// How many pieces a batch of `planes` is cut into, so that one piece travels while the next one is
// transformed: one for each 32 MiB of `wire_bytes`, at most 4.
int64_t num_chunks(int64_t planes, int64_t wire_bytes, int world);

// The parts of [0, extent) that remain of consecutive `sizes`: {3, 3, 2} within 5 is {3, 2, 0}.
std::vector<int64_t> sizes_within(const std::vector<int64_t>& sizes, int64_t extent);

// Floating-point operations of complex transforms of length n, by the usual count 5 n log2 n; a
// real transform has half of them.
double complex_flops(int64_t n, int64_t count);

}  // namespace meshrun::fft
