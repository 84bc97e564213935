// Bytes that ranks send and copy in a transform, counted at the backend and at LibTorch's
// operators: one process takes each rank's place in turn.

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/record_function.h"
#include "parallel/base/split.h"
#include "parallel/fft/distributed_fft.h"
#include "parallel/fft/fft_plan.h"
#include "tests/parallel/support/loopback_backend.h"

namespace meshrun {
namespace {

constexpr int64_t kHeight = 720;
constexpr int64_t kWidth = 1440;
// Bytes that all ranks send in PhysicsNeMo: each rank sends all rows of its columns, complex,
// except its own rows.
double physicsnemo_bytes(int world) { return 8.0 * kHeight * kWidth / world * (world - 1); }

struct Counted {
  int64_t sent = 0;
  int64_t planned = 0;
};

// Bytes of all ranks together.
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
    counted.planned +=
        fft::FftPlan(shape, group)
            .cost(1, 4, is_forward ? fft::Direction::kForward : fft::Direction::kInverse)
            .wire_bytes();
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

// Counts what LibTorch's operators copy on this thread while it lives. Transforms read and write,
// whatever they do inside.
class CopyCounter {
 public:
  CopyCounter() {
    bytes_ = 0;
    depth_ = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&CopyCounter::start, &CopyCounter::end)
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~CopyCounter() { at::removeCallback(handle_); }
  CopyCounter(const CopyCounter&) = delete;
  CopyCounter& operator=(const CopyCounter&) = delete;

  int64_t bytes() const { return bytes_; }

 private:
  static bool is_transform(const std::string& name) { return name.starts_with("aten::_fft_"); }
  static bool is_copy(const std::string& name) {
    static const std::set<std::string> names = {
        "aten::copy_",           "aten::add_", "aten::flip",     "aten::cat",
        "aten::index",           "aten::roll", "aten::_to_copy", "aten::constant_pad_nd",
        "meshrun::copy_mirrored"};
    return names.contains(name);
  }
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& call) {
    if (is_transform(call.name()) || is_copy(call.name())) ++depth_;
    return nullptr;
  }
  static void end(const at::RecordFunction& call, at::ObserverContext*) {
    const std::string name = call.name();
    if (!is_transform(name) && !is_copy(name)) return;
    if (--depth_ > 0 || is_transform(name)) return;
    const c10::IValue& written =
        name == "meshrun::copy_mirrored" ? call.inputs()[0] : call.outputs()[0];
    // A number of an operator is a tensor without dimensions.
    const at::Tensor tensor = written.toTensor();
    if (tensor.dim() > 0) bytes_ += static_cast<int64_t>(tensor.nbytes());
  }

  at::CallbackHandle handle_ = 0;
  inline static thread_local int64_t bytes_ = 0;
  inline static thread_local int depth_ = 0;
};

struct CopyCase {
  std::string name;
  // Sizes of the field, and of the transform.
  int64_t field_height = 0;
  int64_t field_width = 0;
  int64_t height = 0;
  int64_t width = 0;
  fft::Layout layout = fft::Layout::kCanonical;
  int64_t modes = 0;
  int64_t planes = 3;
  bool fewest_bytes = false;
  // Sizes of a spectrum that does not fit the transform; 0: it fits.
  int64_t spectrum_rows = 0;
  int64_t spectrum_columns = 0;
};

fft::FftShape shape_of(const CopyCase& given, int world) {
  const bool paired = given.layout == fft::Layout::kPaired;
  int64_t rows = paired ? given.height / 2 + 1 : given.height;
  int64_t columns = paired ? given.width : given.width / 2 + 1;
  if (given.modes > 0) {
    rows = given.modes;
    columns = 2 * given.modes;
  }
  if (given.spectrum_rows > 0) {
    rows = given.spectrum_rows;
    columns = given.spectrum_columns;
  }
  return {.field_height = given.field_height,
          .field_columns = compute_split_shapes(given.field_width, world),
          .height = given.height,
          .width = given.width,
          .layout = given.layout,
          .spectrum_rows = compute_split_shapes(rows, world),
          .spectrum_columns = columns,
          .both_signs = given.modes > 0,
          .fewest_bytes = given.fewest_bytes && world == 2};
}

int64_t named(const fft::FftCost& cost) {
  return std::accumulate(
      cost.copies.begin(), cost.copies.end(), int64_t{0},
      [](int64_t sum, const fft::FftCost::Copy& copy) { return sum + copy.bytes; });
}

TEST(CopiedBytesTest, ThePlanNamesEveryCopy) {
  using fft::Direction;
  const auto paired = fft::Layout::kPaired;
  const auto canonical = fft::Layout::kCanonical;
  const std::vector<CopyCase> cases = {
      {"even", 16, 20, 16, 20, canonical},
      {"odd", 15, 21, 15, 21, canonical},
      {"fewest bytes", 16, 20, 16, 20, canonical, 0, 3, true},
      {"padded", 11, 13, 16, 20, canonical},
      {"cut", 17, 23, 12, 14, canonical},
      {"one plane cut", 17, 23, 12, 14, canonical, 0, 1},
      {"fewer rows than ranks", 3, 2, 3, 2, canonical},
      {"paired even", 16, 20, 16, 20, paired},
      {"paired odd", 15, 21, 15, 21, paired},
      {"paired padded", 11, 13, 16, 20, paired},
      {"paired cut", 17, 23, 12, 14, paired},
      {"modes", 16, 20, 16, 20, paired, 4},
      {"all modes", 14, 16, 14, 16, paired, 8},
      {"modes of one plane", 16, 20, 16, 20, paired, 4, 1},
      {"spectrum cut", 12, 14, 12, 14, canonical, 0, 3, false, 17, 12},
      {"spectrum padded", 16, 20, 16, 20, canonical, 0, 3, false, 11, 7},
      {"paired spectrum cut", 12, 14, 12, 14, paired, 0, 3, false, 9, 23},
      {"paired spectrum padded", 16, 20, 16, 20, paired, 0, 3, false, 6, 13},
      {"chunks", 720, 1440, 720, 1440, paired, 0, 36},
  };
  for (const CopyCase& each : cases) {
    for (const int world : {1, 2, 3, 5}) {
      const bool is_large = each.planes > 3;
      if (is_large && world != 2) continue;
      for (int rank = 0; rank < (is_large ? 1 : world); ++rank) {
        const auto group = LoopbackBackend::make_group(rank, world);
        LoopbackBackend::of(group).copy_by_operators();
        const auto plan = std::make_shared<fft::FftPlan>(shape_of(each, world), group);
        const fft::FftShape& shape = plan->shape();
        for (const Direction direction : {Direction::kForward, Direction::kInverse}) {
          const bool is_forward = direction == Direction::kForward;
          SCOPED_TRACE(each.name + ", rank " + std::to_string(rank) + " of " +
                       std::to_string(world) + "\n" + plan->describe(each.planes, 4, direction));
          const at::Tensor input =
              is_forward ? at::ones({each.planes, shape.field_height, plan->own_columns()})
                         : at::ones({each.planes, plan->own_rows(), shape.spectrum_columns},
                                    at::kComplexFloat);
          const int64_t sent_before = LoopbackBackend::of(group).bytes_sent();
          const CopyCounter counter;
          is_forward ? plan->forward(input, fft::Scale::kNone)
                     : plan->inverse(input, fft::Scale::kNone);
          const fft::FftCost cost = plan->cost(each.planes, 4, direction);
          EXPECT_EQ(counter.bytes(), named(cost));
          EXPECT_EQ(LoopbackBackend::of(group).bytes_sent() - sent_before, cost.wire_bytes());
        }
      }
    }
  }
}

TEST(CopiedBytesTest, TheClassFormNamesTheCopyOfAnInputInAnotherOrder) {
  const auto group = LoopbackBackend::make_group(0, 1);
  const at::Tensor field = at::ones({6, 3, 8});
  DistributedRFFT2 in_order({.dim = {1, 2}, .group = group});
  in_order(field);
  EXPECT_EQ(in_order.describe().find("in order"), std::string::npos) << in_order.describe();
  DistributedRFFT2 strided({.dim = {0, 2}, .group = group});
  strided(field);
  EXPECT_NE(strided.describe().find("576 bytes copied: input brought in order"), std::string::npos)
      << strided.describe();
}

}  // namespace
}  // namespace meshrun
