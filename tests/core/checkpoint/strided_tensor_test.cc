#include "core/checkpoint/strided_tensor.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace meshrun {
namespace {

class StridedTensorTest : public ::testing::Test {
 protected:
  StridedTensorTest()
      : path_(std::filesystem::path(::testing::TempDir()) /
              fmt::format("{}.{}", ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                          ::getpid())) {}
  ~StridedTensorTest() override { std::filesystem::remove(path_); }

  // A tensor over a file of `size` random bytes, which content_ has.
  StridedTensor Make(size_t size, std::vector<int64_t> shape, std::vector<int64_t> strides,
                     int64_t offset = 0, uint64_t element_bytes = 4) {
    content_.clear();
    while (content_.size() < size) content_ += static_cast<char>(random_());
    std::ofstream(path_, std::ios::binary) << content_;
    return {.info = {.dtype = "F32", .shape = shape},
            .storage = *FileRegion::Open(path_),
            .element_bytes = element_bytes,
            .offset = offset,
            .shape = shape,
            .strides = std::move(strides)};
  }

  // What ReadStrided() should give for all of the tensor, element by element.
  std::string Whole(const StridedTensor& tensor) const {
    uint64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<uint64_t>(extent);
    std::string bytes;
    for (uint64_t element = 0; element < count; ++element) {
      uint64_t rest = element;
      auto place = static_cast<uint64_t>(tensor.offset);
      for (size_t k = tensor.shape.size(); k-- > 0;) {
        const auto extent = static_cast<uint64_t>(tensor.shape[k]);
        place += rest % extent * static_cast<uint64_t>(tensor.strides[k]);
        rest /= extent;
      }
      bytes += content_.substr(place * tensor.element_bytes, tensor.element_bytes);
    }
    return bytes;
  }

  void ExpectReadsRanges(const StridedTensor& tensor, int rounds) {
    const std::string whole = Whole(tensor);
    for (int round = 0; round < rounds; ++round) {
      const uint64_t begin = random_() % (whole.size() + 1);
      std::string part(random_() % (whole.size() - begin + 1), '\xEE');
      ASSERT_TRUE(ReadStrided(tensor, begin, part).ok());
      ASSERT_EQ(part, whole.substr(begin, part.size()));
    }
  }

  const std::filesystem::path path_;
  std::string content_;
  std::mt19937_64 random_{4};
};

TEST_F(StridedTensorTest, ReadsAnyRangeOfAnyStrides) {
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
    for (size_t k = random_() % 4; k > 0; --k) {
      shape.push_back(static_cast<int64_t>(random_() % 5) + 1);
      strides.push_back(static_cast<int64_t>(random_() % 9));
    }
    const uint64_t element = uint64_t{1} << random_() % 5;
    const StridedTensor tensor =
        Make(150 * element, shape, strides, static_cast<int64_t>(random_() % 20), element);
    ASSERT_TRUE(CheckStrides(tensor, "t").ok());
    ExpectReadsRanges(tensor, 10);
  }
}

// Rows that are far apart are read by themselves, those that are near with what is between them.
TEST_F(StridedTensorTest, ReadsRowsThatAreNearAndFar) {
  ExpectReadsRanges(Make(4 * 300 * 50, {50, 7}, {300, 1}), 20);
  ExpectReadsRanges(Make(4 * 9000 * 20, {20, 7}, {9000, 1}), 20);
  ExpectReadsRanges(Make(4 * 400 * 2000, {2000, 3}, {400, 1}), 20);
  ExpectReadsRanges(Make(4 * 3 * 1000, {40, 3, 30}, {30, 0, 1}), 20);
  ExpectReadsRanges(Make(4 * 24000, {20, 30, 40}, {1, 800, 20}), 20);
  ExpectReadsRanges(Make(4 * 64 * 64, {64, 64}, {1, 64}), 20);
}

TEST_F(StridedTensorTest, ChangesSignsOfViews) {
  StridedTensor tensor = Make(64, {8}, {2}, 0, 4);
  tensor.negates_first = true;
  std::string negated(32, '\0');
  ASSERT_TRUE(ReadStrided(tensor, 0, negated).ok());
  const std::string whole = Whole(tensor);
  for (size_t k = 0; k < negated.size(); ++k) {
    EXPECT_EQ(static_cast<char>(whole[k] ^ (k % 4 == 3 ? 0x80 : 0)), negated[k]);
  }
  std::string part(5, '\0');
  ASSERT_TRUE(ReadStrided(tensor, 6, part).ok());
  EXPECT_EQ(part, negated.substr(6, 5));
  // A conjugate of complex numbers, in the middle of one.
  tensor = Make(64, {4}, {1}, 0, 16);
  tensor.negates_second = true;
  part.assign(30, '\0');
  ASSERT_TRUE(ReadStrided(tensor, 11, part).ok());
  for (size_t k = 0; k < part.size(); ++k) {
    EXPECT_EQ(static_cast<char>(content_[11 + k] ^ ((11 + k) % 16 == 15 ? 0x80 : 0)), part[k]);
  }
}

TEST_F(StridedTensorTest, OfTruncatedFilesIsDamaged) {
  const StridedTensor tensor = Make(64, {4, 4}, {1, 4});
  std::filesystem::resize_file(path_, 40);
  std::string bytes(64, '\0');
  EXPECT_EQ(ReadStrided(tensor, 0, bytes).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace meshrun
