// Regions of tensors as boxes.
#include "parallel/checkpoint/regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace meshrun {
namespace {

using ::testing::ElementsAre;

// The elements of the boxes, in their order.
std::vector<int64_t> elements_of(const std::vector<Region>& boxes) {
  std::vector<int64_t> elements;
  for (const Region& box : boxes) {
    visit_runs(box, 0, Region::whole(box.shape).elements(), [&](const RegionRun& run) {
      for (int64_t i = 0; i < run.count; ++i) elements.push_back(run.in_tensor + i);
    });
  }
  return elements;
}

TEST(BoxesTest, ASliceIsAFewBoxesWithItsElementsInOrder) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{24}, {4, 6}, {2, 3, 4}, {2, 3, 2, 2}, {24, 1}, {1, 24}}) {
    for (int64_t first = 0; first < 24; ++first) {
      for (int64_t count = 1; first + count <= 24; ++count) {
        const std::vector<Region> boxes = boxes_of(Region::flat(24, first, count), shape);
        std::vector<int64_t> expected;
        for (int64_t i = 0; i < count; ++i) expected.push_back(first + i);
        EXPECT_EQ(elements_of(boxes), expected) << first << " " << count;
        EXPECT_LE(boxes.size(), 2 * shape.size());
        for (const Region& box : boxes) EXPECT_EQ(box.shape, shape);
      }
    }
  }
}

TEST(BoxesTest, ABoxStaysAndANumberIsOne) {
  const Region columns{{4, 6}, {0, 2}, {4, 3}};
  EXPECT_THAT(boxes_of(columns, {4, 6}), ElementsAre(columns));
  EXPECT_THAT(boxes_of(Region::flat(1, 0, 1), {}), ElementsAre(Region::whole({})));
  EXPECT_TRUE(boxes_of(Region::flat(24, 3, 0), {4, 6}).empty());
  // The pairs of complex numbers.
  const Region pairs{{12, 2}, {5, 0}, {3, 2}};
  EXPECT_THAT(elements_of(boxes_of(pairs, {3, 4, 2})), ElementsAre(10, 11, 12, 13, 14, 15));
}

TEST(RegionsTest, PiecesCoverATensorIfEachElementIsInOne) {
  const auto part = [](int64_t begin, int64_t size) { return Region::flat(4, begin, size); };
  EXPECT_TRUE(cover_tensor({part(0, 4)}));
  EXPECT_TRUE(cover_tensor({part(2, 2), part(0, 2), part(2, 2), part(4, 0)}));
  EXPECT_TRUE(cover_tensor({part(1, 1), part(0, 4)}));
  EXPECT_FALSE(cover_tensor({}));
  EXPECT_FALSE(cover_tensor({part(0, 3)}));
  EXPECT_FALSE(cover_tensor({part(0, 2), part(1, 2)})) << "as many elements as there are";
  EXPECT_FALSE(cover_tensor({part(0, 2), {{2, 2}, {1, 0}, {1, 2}}})) << "of another shape";
}

}  // namespace
}  // namespace meshrun
