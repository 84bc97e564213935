// Bytes that ranks send in a transform, counted at the backend: one process takes each rank's place
// in turn.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/collectives/split.h"
#include "parallel/fft/distributed_fft.h"
#include "parallel/fft/fft_plan.h"
#include "tests/parallel/support/loopback_backend.h"

namespace meshrun {
namespace {

constexpr int64_t kHeight = 720;
constexpr int64_t kWidth = 1440;
// Of a rank: all rows of its columns, complex, but its own.
double physicsnemo_bytes(int world) { return 8.0 * kHeight * kWidth / world * (world - 1); }

struct Counted {
  int64_t sent = 0;
  int64_t planned = 0;
};

// Of all ranks together.
Counted transform(int world, const FftOptions& given, bool is_forward) {
  Counted counted;
  for (int rank = 0; rank < world; ++rank) {
    const auto group = LoopbackBackend::make_group(rank, world);
    FftOptions options = given;
    options.group = group;
    const bool paired = options.layout == FftLayout::kPaired;
    const auto columns = compute_split_shapes(kWidth, world);
    const auto modes = options.modes.empty() ? 0 : static_cast<int64_t>(options.modes[0]);
    const auto rows = compute_split_shapes(modes > 0 ? modes
                                           : paired  ? kHeight / 2 + 1
                                                     : kHeight,
                                           world);
    const int64_t kept = modes > 0 ? 2 * modes : paired ? kWidth : kWidth / 2 + 1;
    const auto own = static_cast<size_t>(rank);
    if (is_forward) {
      options.input_sizes = columns;
      distributed_rfft2(at::ones({kHeight, columns[own]}), options);
    } else {
      options.s = {kHeight, kWidth};
      options.input_sizes = rows;
      distributed_irfft2(at::ones({rows[own], kept}, at::kComplexFloat), options);
    }
    counted.sent += LoopbackBackend::of(group).bytes_sent();
    fft::FftShape shape{kHeight,
                        columns,
                        kHeight,
                        kWidth,
                        paired ? fft::Layout::kPaired : fft::Layout::kCanonical,
                        rows,
                        kept,
                        modes > 0,
                        world == 2};
    counted.planned += fft::FftPlan(shape, group).cost(1, 4).wire_bytes();
  }
  return counted;
}

TEST(WireBytesTest, AreThoseOfThePlanAndBelowThePeers) {
  for (const int world : {2, 3, 4, 8}) {
    const double peer = physicsnemo_bytes(world);
    for (const bool is_forward : {true, false}) {
      const auto share = [&](const FftOptions& options) {
        const Counted counted = transform(world, options, is_forward);
        EXPECT_EQ(counted.sent, counted.planned);
        return static_cast<double>(counted.sent) / peer;
      };
      const double paired = share({.layout = FftLayout::kPaired});
      const double canonical = share({});
      const double modes = share({.layout = FftLayout::kPaired, .modes = {32, 32}});
      EXPECT_LE(paired, 0.55);
      EXPECT_LE(canonical, world == 2 ? 1.0 : world == 4 ? 0.85 : 0.9);
      EXPECT_LE(modes, 0.1);
      std::printf(
          "wire of %d ranks, %s: paired %.4f, canonical %.4f, 32 modes %.4f of the peer's\n", world,
          is_forward ? "forward" : "inverse", paired, canonical, modes);
    }
  }
}

}  // namespace
}  // namespace meshrun
