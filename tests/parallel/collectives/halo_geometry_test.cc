#include "parallel/collectives/plans/halo_geometry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace meshrun {
namespace {

using std::vector;

int64_t total(const vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

constexpr int64_t kPadding = -1;

// What each rank's range holds where the element at position p is p: first by the plans of all
// ranks, whose messages are carried out, then from the whole.
vector<vector<int64_t>> moved(const vector<int64_t>& sizes, const vector<SplitRange>& ranges,
                              bool periodic) {
  const size_t world = sizes.size();
  vector<vector<int64_t>> pieces(world);
  vector<RangeTransfer> plans;
  int64_t next = 0;
  for (size_t r = 0; r < world; ++r) {
    for (int64_t i = 0; i < sizes[r]; ++i) pieces[r].push_back(next++);
    plans.push_back(plan_ranges(sizes, ranges, static_cast<int>(r), periodic));
  }
  vector<vector<int64_t>> received(world);
  for (size_t from = 0; from < world; ++from) {
    vector<int64_t> packed;
    for (const SplitRange& range : plans[from].given) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        packed.push_back(pieces[from].at(static_cast<size_t>(i)));
      }
    }
    auto at = packed.begin();
    for (size_t to = 0; to < world; ++to) {
      EXPECT_EQ(plans[from].sent[to], plans[to].received[from]);
      received[to].insert(received[to].end(), at, at + plans[from].sent[to]);
      at += plans[from].sent[to];
    }
    EXPECT_EQ(plans[from].sent[from], 0);
    EXPECT_TRUE(at == packed.end());
  }
  vector<vector<int64_t>> results(world);
  for (size_t r = 0; r < world; ++r) {
    vector<int64_t>& result = results[r];
    result.assign(static_cast<size_t>(plans[r].low_padding), kPadding);
    for (const RangeTransfer::Part& part : plans[r].parts) {
      const vector<int64_t>& source = part.own ? pieces[r] : received[r];
      for (int64_t i = 0; i < part.count; ++i) {
        result.push_back(source.at(static_cast<size_t>(part.begin + i)));
      }
    }
    result.resize(result.size() + static_cast<size_t>(plans[r].high_padding), kPadding);
    EXPECT_EQ(static_cast<int64_t>(result.size()), plans[r].extent());
  }
  return results;
}

vector<vector<int64_t>> cut_out(int64_t whole, const vector<SplitRange>& ranges, bool periodic) {
  vector<vector<int64_t>> results;
  for (const SplitRange& range : ranges) {
    results.emplace_back();
    for (int64_t p = range.begin; p < range.end; ++p) {
      const bool inside = p >= 0 && p < whole;
      results.back().push_back(periodic ? ((p % whole) + whole) % whole : inside ? p : kPadding);
    }
  }
  return results;
}

vector<int64_t> random_sizes(std::mt19937& random, int world) {
  vector<int64_t> sizes;
  for (int r = 0; r < world; ++r) {
    sizes.push_back(random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 9));
  }
  return sizes;
}

TEST(HaloGeometryTest, EveryRankGetsItsRange) {
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    const int world = 1 + static_cast<int>(random() % 6);
    const vector<int64_t> sizes = random_sizes(random, world);
    const bool periodic = random() % 2 == 0 && total(sizes) > 0;
    vector<SplitRange> ranges;
    for (int r = 0; r < world; ++r) {
      const int64_t begin = static_cast<int64_t>(random() % 40) - 15;
      ranges.push_back({begin, begin + static_cast<int64_t>(random() % 20)});
    }
    EXPECT_EQ(moved(sizes, ranges, periodic), cut_out(total(sizes), ranges, periodic));
    int64_t messages = 0;
    for (int r = 0; r < world; ++r) {
      const int64_t received = plan_ranges(sizes, ranges, r, periodic).num_received();
      messages += received;
      // What is needed and not one's own, nothing else.
      int64_t begin = 0, needed = 0;
      for (int q = 0; q < r; ++q) begin += sizes[static_cast<size_t>(q)];
      const auto wanted = cut_out(total(sizes), ranges, periodic)[static_cast<size_t>(r)];
      for (const int64_t position : wanted) {
        const bool is_own = position >= begin && position < begin + sizes[static_cast<size_t>(r)];
        if (position != kPadding && !is_own) ++needed;
      }
      EXPECT_EQ(received, needed);
    }
    EXPECT_EQ(messages > 0, anything_travels(sizes, ranges, periodic));
  }
}

// Ranks' outputs follow one another, and their ranges hold all that these read.
void expect_sound(const WindowedDim& windows, const vector<int64_t>& sizes) {
  const vector<SplitRange> owned = windows.owned(sizes), ranges = windows.ranges(sizes);
  int64_t next = 0;
  for (size_t r = 0; r < sizes.size(); ++r) {
    EXPECT_EQ(owned[r].begin, next);
    next = owned[r].end;
    const bool owns_none = sizes[r] == 0 && total(sizes) > 0;
    EXPECT_TRUE(!owns_none || owned[r].size() == 0);
    for (int64_t output = owned[r].begin; output < owned[r].end; ++output) {
      EXPECT_LE(ranges[r].begin, windows.reads(output).begin);
      EXPECT_GE(ranges[r].end, windows.reads(output).end);
    }
  }
  EXPECT_EQ(next, windows.outputs());
}

TEST(HaloGeometryTest, EveryOutputHasOneOwnerThatReadsItsWindow) {
  std::mt19937 random(8);
  const auto draw = [&](int64_t from, int64_t to) {
    return from + static_cast<int64_t>(random() % static_cast<uint32_t>(to - from + 1));
  };
  for (int i = 0; i < 2000; ++i) {
    const vector<int64_t> sizes = random_sizes(random, static_cast<int>(draw(1, 5)));
    const int64_t kernel = draw(1, 5), stride = draw(1, 4), padding = draw(0, 4),
                  dilation = draw(1, 3);
    expect_sound(WindowedDim::sliding(
                     sliding_outputs(total(sizes), kernel, stride, padding, padding, dilation),
                     kernel, stride, padding, dilation),
                 sizes);
    expect_sound(WindowedDim::transposed(
                     transposed_outputs(total(sizes), kernel, stride, padding, dilation, 0), kernel,
                     stride, padding, dilation),
                 sizes);
  }
}

TEST(HaloGeometryTest, AConvolutionThatKeepsTheExtentKeepsThePieces) {
  const vector<int64_t> sizes = {3, 0, 5, 1};
  for (const int64_t kernel : {1, 2, 3, 4, 7}) {
    const auto windows = WindowedDim::sliding(9, kernel, 1, (kernel - 1) / 2, 1);
    EXPECT_EQ(windows.output_sizes(sizes), sizes) << kernel;
  }
}

TEST(HaloGeometryTest, WindowsWithinPiecesNeedNoNeighbour) {
  const vector<int64_t> sizes = {8, 0, 4, 7};
  const auto patches = WindowedDim::sliding(sliding_outputs(19, 4, 4, 0, 0, 1), 4, 4, 0, 1);
  EXPECT_EQ(patches.output_sizes(sizes), (vector<int64_t>{2, 0, 1, 1}));
  EXPECT_FALSE(anything_travels(sizes, patches.ranges(sizes)));
  const auto upsampled = WindowedDim::transposed(transposed_outputs(19, 4, 4, 0, 1, 0), 4, 4, 0, 1);
  EXPECT_EQ(upsampled.output_sizes(sizes), (vector<int64_t>{32, 0, 16, 28}));
  EXPECT_FALSE(anything_travels(sizes, upsampled.ranges(sizes)));
}

TEST(HaloGeometryTest, PiecesSmallerThanTheHaloAreCrossed) {
  const vector<int64_t> sizes = {1, 1, 0, 1, 1};
  const auto windows = WindowedDim::sliding(4, 5, 1, 2, 1);
  const RangeTransfer second = plan_ranges(sizes, windows.ranges(sizes), 1);
  EXPECT_EQ(second.received, (vector<int64_t>{1, 0, 0, 1, 1}));
  EXPECT_EQ(second.sent, (vector<int64_t>{1, 0, 0, 1, 1}));
  EXPECT_EQ(second.low_padding, 1);
  EXPECT_EQ(second.high_padding, 0);
  EXPECT_TRUE(second.gives_twice);
}

TEST(HaloGeometryTest, OutputExtentsAreThoseOfLibTorch) {
  EXPECT_EQ(sliding_outputs(10, 3, 2, 1, 1, 1), 5);
  EXPECT_EQ(sliding_outputs(10, 3, 2, 0, 0, 2), 3);
  EXPECT_EQ(sliding_outputs(2, 5, 1, 1, 1, 1), 0);
  EXPECT_EQ(sliding_outputs(10, 3, 3, 0, 0, 1), 3);
  EXPECT_EQ(sliding_outputs(10, 3, 3, 0, 0, 1, true), 4);
  // The fourth window would begin in the padding behind.
  EXPECT_EQ(sliding_outputs(9, 2, 5, 1, 1, 1, true), 2);
  EXPECT_EQ(transposed_outputs(5, 3, 2, 1, 1, 1), 10);
}

}  // namespace
}  // namespace meshrun
