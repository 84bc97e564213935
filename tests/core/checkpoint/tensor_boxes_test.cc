#include "core/checkpoint/tensor_boxes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace meshrun {
namespace {

using ::testing::HasSubstr;
using Shape = std::vector<int64_t>;

// Cuts `box` at random, up to `depth` times one after another.
void Cut(const TensorBox& box, int depth, std::mt19937_64* random, std::vector<TensorBox>* boxes) {
  const size_t dim = (*random)() % std::max<size_t>(box.sizes.size(), 1);
  if (depth == 0 || box.sizes.empty() || box.sizes[dim] < 2) {
    boxes->push_back(box);
    return;
  }
  TensorBox low = box;
  TensorBox high = box;
  const auto at = static_cast<int64_t>((*random)() % static_cast<uint64_t>(box.sizes[dim] - 1)) + 1;
  low.sizes[dim] = at;
  high.begin[dim] += at;
  high.sizes[dim] -= at;
  Cut(low, depth - 1, random, boxes);
  Cut(high, depth - 1, random, boxes);
}

absl::Status Check(const Shape& shape, const std::vector<TensorBox>& boxes) {
  std::vector<const TensorBox*> all;
  for (const TensorBox& box : boxes) all.push_back(&box);
  return CheckCover("t", shape, all);
}

struct Made {
  Shape shape;
  std::vector<TensorBox> boxes;
};

Made RandomBoxes(std::mt19937_64* random) {
  Made made;
  for (size_t k = (*random)() % 4; k > 0; --k) {
    made.shape.push_back(static_cast<int64_t>((*random)() % 7) + 1);
  }
  Cut({.begin = Shape(made.shape.size(), 0), .sizes = made.shape}, 4, random, &made.boxes);
  std::ranges::shuffle(made.boxes, *random);
  return made;
}

TEST(TensorBoxesTest, AcceptsWhatCutsMake) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    const Made made = RandomBoxes(&random);
    EXPECT_EQ(Check(made.shape, made.boxes), absl::OkStatus());
  }
}

TEST(TensorBoxesTest, FindsEachMissingRepeatedAndChangedBox) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    const Made made = RandomBoxes(&random);
    const size_t k = random() % made.boxes.size();
    std::vector<TensorBox> boxes = made.boxes;
    boxes.erase(boxes.begin() + static_cast<int64_t>(k));
    EXPECT_EQ(Check(made.shape, boxes).code(), absl::StatusCode::kDataLoss);
    boxes = made.boxes;
    boxes.push_back(made.boxes[k]);
    EXPECT_EQ(Check(made.shape, boxes).code(), absl::StatusCode::kDataLoss);
    if (made.shape.empty()) continue;
    boxes = made.boxes;
    const size_t dim = random() % made.shape.size();
    boxes[k].begin[dim] += random() % 2 == 0 ? 1 : -1;
    EXPECT_FALSE(Check(made.shape, boxes).ok());
  }
}

TEST(TensorBoxesTest, IgnoresBoxesWithoutElements) {
  EXPECT_EQ(Check({2}, {{{0}, {2}}, {{2}, {0}}, {{1}, {0}}}), absl::OkStatus());
  EXPECT_EQ(Check({0}, {{{0}, {0}}}), absl::OkStatus());
  EXPECT_EQ(Check({}, {{{}, {}}}), absl::OkStatus());
  EXPECT_EQ(Check({}, {}).code(), absl::StatusCode::kDataLoss);
}

TEST(TensorBoxesTest, RefusesBoxesOfOtherDimensions) {
  EXPECT_THAT(std::string(Check({2}, {{{0, 0}, {2, 1}}}).message()),
              HasSubstr("is not within [2]"));
  EXPECT_FALSE(Check({2}, {{{INT64_MAX}, {2}}}).ok());
  EXPECT_FALSE(Check({2}, {{{-1}, {2}}}).ok());
  EXPECT_FALSE(Check({2}, {{{0}, {INT64_MIN}}}).ok());
}

// A staircase needs a cut for each step.
TEST(TensorBoxesTest, EndsSoonWhereManyCutsAreNeeded) {
  constexpr int64_t kSteps = 2000;
  std::vector<TensorBox> boxes;
  for (int64_t k = 0; k < kSteps; ++k) {
    boxes.push_back({{k, k}, {1, kSteps - k}});
    if (k + 1 < kSteps) boxes.push_back({{k + 1, k}, {kSteps - k - 1, 1}});
  }
  EXPECT_EQ(Check({kSteps, kSteps}, boxes).code(), absl::StatusCode::kUnimplemented);
}

TEST(TensorBoxesTest, ReadsEachRangeFromTheBoxesThatHaveIt) {
  constexpr uint64_t kElement = 3;
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const Made made = RandomBoxes(&random);
    uint64_t size = kElement;
    for (const int64_t extent : made.shape) size *= static_cast<uint64_t>(extent);
    const uint64_t begin = random() % size;
    std::string got(random() % (size - begin) + 1, '\xEE');
    for (const TensorBox& box : made.boxes) {
      // A box's byte says where it is in the tensor.
      const auto read = [&](uint64_t from, std::span<char> to) {
        for (size_t k = 0; k < to.size(); ++k) {
          uint64_t element = (from + k) / kElement;
          uint64_t place = 0;
          uint64_t stride = 1;
          for (size_t dim = made.shape.size(); dim-- > 0;) {
            const auto extent = static_cast<uint64_t>(box.sizes[dim]);
            place += (static_cast<uint64_t>(box.begin[dim]) + element % extent) * stride;
            element /= extent;
            stride *= static_cast<uint64_t>(made.shape[dim]);
          }
          EXPECT_EQ(element, 0u);
          to[k] = static_cast<char>(place * kElement + (from + k) % kElement);
        }
        return absl::OkStatus();
      };
      ASSERT_TRUE(ReadFromBox(made.shape, kElement, box, begin, std::span<char>(got), read).ok());
    }
    for (size_t k = 0; k < got.size(); ++k) {
      ASSERT_EQ(got[k], static_cast<char>(begin + k)) << "byte " << begin + k;
    }
  }
}

}  // namespace
}  // namespace meshrun
