// What a v-collective costs its own rank must not grow unnoticed: instructions as a multiple of
// at::add's, allocations and copied bytes. callgrind counts them: the machine's load does not
// matter.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/bench/host_cost/counted.h"

namespace meshrun::bench {
namespace {

constexpr const char* kProgram = "tests/bench/host_cost/host_cost";
constexpr const char* kRecorded = "tests/bench/host_cost/recorded.json";
// Pieces of the program: 4 x 16 float32, world of 8.
constexpr int64_t kPiece = 4 * 16 * 4;
constexpr int64_t kWhole = 8 * kPiece;

class HostCostTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { counted() = count_under_callgrind(kProgram); }

  static std::map<std::string, Counted>& counted() {
    static std::map<std::string, Counted> all;
    return all;
  }
};

TEST_F(HostCostTest, InstructionsAreWithinFivePercentOfTheRecordedMultipleOfAnAddition) {
  expect_recorded_ratios(counted(), "at::add", kRecorded);
}

TEST_F(HostCostTest, AllGatherVAllocatesItsResultAndNothingElse) {
  const Counted& forward = counted()["all_gather_v"];
  EXPECT_EQ(forward.allocations, 1);
  EXPECT_EQ(forward.peak_bytes, kWhole);
  const Counted& both = counted()["all_gather_v and backward"];
  EXPECT_EQ(both.allocations, 2);
  EXPECT_EQ(both.peak_bytes, kWhole + kPiece);
}

TEST_F(HostCostTest, AllGatherVCopiesItsOwnPieceAndNothingElse) {
  EXPECT_EQ(counted()["all_gather_v"].copied_bytes, kPiece);
  EXPECT_EQ(counted()["all_gather_v and backward"].copied_bytes, 2 * kPiece);
}

TEST_F(HostCostTest, ScatterVAndGatherVAllocateOneTensorEach) {
  EXPECT_EQ(counted()["gather_v"].allocations, 1);
  EXPECT_EQ(counted()["scatter_v"].allocations, 1);
  EXPECT_EQ(counted()["reduce_scatter_v"].allocations, 1);
}

}  // namespace
}  // namespace meshrun::bench
