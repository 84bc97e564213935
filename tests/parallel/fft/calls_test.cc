// What parameters of the transforms take, asked of the compiler.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/fft/distributed_fftn.h"
#include "parallel/fft/fft_plan.h"
#include "tests/parallel/support/parameters.h"

namespace meshrun {

// Declared to be named in calls that are never made.
namespace given {
extern const at::Tensor field;
extern const fft::FftShape shape;
extern const fft::FftPlan plan;
extern const GroupArgument transform_group;
}  // namespace given

namespace {

template <typename T>
constexpr bool kIsAnExtent = requires(T value) {
  FftOptions{.s = {value, 8}};
};
template <typename T>
constexpr bool kBeginsTheList = requires(T value) {
  FftOptions{.dim = {value}};
};
template <typename T>
constexpr bool kIsFewestBytes = requires(T value) {
  FftOptions{.fewest_bytes = value};
};

TEST(FftCallsTest, OptionsTakeEachForItself) {
  using given::field;
  EXPECT_TAKES_INTEGERS_ONLY(FftOptions{.dim = {value, -1}});
  EXPECT_TAKES_INTEGERS_ONLY(FftOptions{.modes = {8, value}});
  EXPECT_TAKES_INTEGERS_ONLY(DistributedRFFT2::apply(field, {}, {value, -1}));
  EXPECT_TAKES_INTEGERS_ONLY(DistributedIRFFT2::apply(field, {}, {-2, value}));
  EXPECT_TAKES_INTEGERS_ONLY(distributed_rfftn(field, {.dim = {-3, value, -1}}));
  EXPECT_TRUE(kBeginsTheList<int> && kBeginsTheList<std::vector<IntArgument>>);
  EXPECT_FALSE(kBeginsTheList<bool> || kBeginsTheList<char> || kBeginsTheList<const char*>);
  EXPECT_TRUE(kIsAnExtent<int> && kIsAnExtent<std::optional<int64_t>>);
  EXPECT_TRUE(kIsAnExtent<std::nullopt_t>);
  EXPECT_FALSE(kIsAnExtent<bool> || kIsAnExtent<char> || kIsAnExtent<double>);
  EXPECT_FALSE(kIsAnExtent<const char*> || kIsAnExtent<parameters::Plain>);
  EXPECT_FALSE(kIsAnExtent<GroupArgument::Handle>);
  EXPECT_FALSE(kIsAnExtent<std::optional<bool>> || kIsAnExtent<std::optional<double>>);
  EXPECT_TRUE(kIsFewestBytes<bool> && kIsFewestBytes<std::optional<bool>>);
  EXPECT_TRUE(kIsFewestBytes<std::nullopt_t>);
  EXPECT_FALSE(kIsFewestBytes<int> || kIsFewestBytes<char> || kIsFewestBytes<double>);
  EXPECT_FALSE(kIsFewestBytes<const char*> || kIsFewestBytes<parameters::Plain>);
  EXPECT_FALSE(kIsFewestBytes<std::optional<int>> || kIsFewestBytes<GroupArgument::Handle>);
}

TEST(FftCallsTest, PlansTakeEachForItself) {
  using namespace given;
  using fft::Direction;
  using fft::FftShape;
  EXPECT_TAKES_INTEGERS_ONLY(FftShape{.field_height = value});
  EXPECT_TAKES_INTEGERS_ONLY(FftShape{.height = value});
  EXPECT_TAKES_INTEGERS_ONLY(FftShape{.width = value});
  EXPECT_TAKES_INTEGERS_ONLY(FftShape{.spectrum_columns = value});
  EXPECT_TAKES_BOOL_ONLY(FftShape{.both_signs = value});
  EXPECT_TAKES_BOOL_ONLY(FftShape{.fewest_bytes = value});
  EXPECT_TAKES_INTEGERS_ONLY(plan.cost(value, 4, Direction::kForward));
  EXPECT_TAKES_INTEGERS_ONLY(plan.cost(1, value, Direction::kForward));
  EXPECT_TAKES_INTEGERS_ONLY(plan.describe(value, 4, Direction::kInverse));
  EXPECT_TAKES_INTEGERS_ONLY(plan.describe(1, value, Direction::kInverse));
}

}  // namespace
}  // namespace meshrun
