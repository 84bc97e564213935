#include "parallel/base/extents.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace meshrun {
namespace {

TEST(ExtentsTest, TheFirstThingThatIsWrongIsNamed) {
  const auto check = [](std::vector<int64_t> extents, int64_t extent) {
    return check_extents("sizes", extents, extent, 2);
  };
  EXPECT_EQ(check({4, 0}, 4), "");
  EXPECT_EQ(check({4, 3}, -1), "");
  EXPECT_EQ(check({4}, 4),
            "sizes has 1 entries in a group of 2 ranks; one for each rank is expected");
  EXPECT_EQ(check({5, -1}, 4), "sizes[1] is -1; the extent of a piece is expected");
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(check({most, 1}, -1), "sizes[1] is 1; the extent of a piece is expected");
  EXPECT_EQ(check({2, 1}, 4), "sizes is [2, 1], 3 together; the tensor has 4 along that dimension");
  EXPECT_EQ(check({2, 3}, 4), "sizes is [2, 3], 5 together; the tensor has 4 along that dimension");
}

TEST(ExtentsTest, TakesRanksOfTheGroup) {
  EXPECT_EQ(check_rank("dst", 3, 4), "");
  EXPECT_EQ(check_rank("dst", 4, 4), "dst is 4 in a group of 4 ranks; 0 to 3 is expected");
  EXPECT_NE(check_rank("src", -1, 4), "");
}

TEST(ExtentsTest, OffsetsAreWherePiecesBeginAndTheEndOfTheLast) {
  const std::vector<int64_t> extents = {3, 0, 4};
  EXPECT_EQ(total_extent(extents), 7);
  EXPECT_EQ(extent_offsets(extents), (std::vector<int64_t>{0, 3, 3, 7}));
  EXPECT_EQ(extent_offsets(extents, 5), (std::vector<int64_t>{5, 8, 8, 12}));
  EXPECT_EQ(total_extent({}), 0);
  EXPECT_EQ(extent_offsets({}), std::vector<int64_t>{0});
}

}  // namespace
}  // namespace meshrun
