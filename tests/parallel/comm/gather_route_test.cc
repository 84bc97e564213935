#include "parallel/comm/point_to_point/gather_route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace meshrun {
namespace {

GatherRoute route(const std::vector<int64_t>& sizes) { return choose_gather_route(sizes); }

TEST(GatherRouteTest, EqualPiecesAreOneAllGather) {
  EXPECT_EQ(route({3, 3}), GatherRoute::kAllGather);
  EXPECT_EQ(route({1, 1, 1, 1, 1, 1, 1, 1}), GatherRoute::kAllGather);
}

TEST(GatherRouteTest, NearlyEqualOnesAreSent) {
  EXPECT_EQ(route({4, 4, 3}), GatherRoute::kSends);
  // With two ranks each sends its piece once, whatever its size.
  EXPECT_EQ(route({1, 1000}), GatherRoute::kSends);
  EXPECT_EQ(route({0, 5}), GatherRoute::kSends);
}

TEST(GatherRouteTest, ATenthMoreIsTheBorder) {
  EXPECT_EQ(route({6, 5, 4}), GatherRoute::kSends);          // 12 against 11
  EXPECT_EQ(route({60, 49, 40}), GatherRoute::kBroadcasts);  // 120 against 109
  EXPECT_EQ(route({6, 4, 4}), GatherRoute::kBroadcasts);     // 12 against 10
}

TEST(GatherRouteTest, VeryUnevenOnesAreBroadcast) {
  EXPECT_EQ(route({1, 1, 6}), GatherRoute::kBroadcasts);
  EXPECT_EQ(route({0, 0, 0, 5}), GatherRoute::kBroadcasts);
  EXPECT_EQ(route({1, 2, 3, 4, 5, 6, 7, 8}), GatherRoute::kBroadcasts);
}

TEST(GatherRouteTest, WhereNothingTravelsNothingIsCalled) {
  EXPECT_EQ(route({}), GatherRoute::kSends);
  EXPECT_EQ(route({7}), GatherRoute::kSends);
  EXPECT_EQ(route({0, 0, 0}), GatherRoute::kSends);
}

TEST(GatherRouteTest, TheOrderOfTheRanksDoesNotMatter) {
  std::vector<int64_t> sizes = {0, 2, 2, 9};
  const GatherRoute first = route(sizes);
  while (std::next_permutation(sizes.begin(), sizes.end())) EXPECT_EQ(route(sizes), first);
}

}  // namespace
}  // namespace meshrun
