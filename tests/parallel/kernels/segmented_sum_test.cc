#include "parallel/kernels/segmented_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace meshrun {
namespace {

template <typename T>
Slices slices(const std::vector<T>& values, int64_t count, int64_t pitch) {
  return {reinterpret_cast<const std::byte*>(values.data()), count, pitch};
}

template <typename T>
std::byte* bytes(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

// Three slices of two rows of two elements: 10 11 | 20 21 | 30 31, and 12 13 | 22 23 | 32 33.
const std::vector<float> kThree = {10, 11, 20, 21, 30, 31, 12, 13, 22, 23, 32, 33};
const SliceShape kShape{2, 2, DType::kFloat32};

TEST(GatherSlicesTest, CopiesSlicesByIndexAlsoTwice) {
  std::vector<float> output(12, -1);
  const std::vector<int64_t> index = {2, 0, 2};
  gather_slices(bytes(output), 6, slices(kThree, 3, 6), index, kShape, 0, 3);
  EXPECT_EQ(output, (std::vector<float>{30, 31, 10, 11, 30, 31, 32, 33, 12, 13, 32, 33}));
}

TEST(GatherSlicesTest, WritesIntoASliceOfALargerTensor) {
  std::vector<float> output(16, -1);
  const std::vector<int64_t> index = {1, 0};
  gather_slices(bytes(output), 8, slices(kThree, 3, 6), index, kShape, 1, 2);
  EXPECT_EQ(output[2], 10);
  EXPECT_EQ(output[11], 13);
  EXPECT_EQ(output[0], -1);
}

TEST(GatherSlicesTest, TakesSingleElementsOfEverySize) {
  const std::vector<int64_t> index = {3, 1};
  const auto check = [&]<typename T>(T, DType dtype) {
    const std::vector<T> input = {T(1), T(2), T(3), T(4)};
    std::vector<T> output(2);
    gather_slices(bytes(output), 2, slices(input, 4, 4), index, {1, 1, dtype}, 0, 2);
    EXPECT_EQ(output, (std::vector<T>{T(4), T(2)}));
  };
  check(uint8_t{}, DType::kUInt8);
  check(int16_t{}, DType::kInt16);
  check(float{}, DType::kFloat32);
  check(double{}, DType::kFloat64);
  struct Pair {
    double real = 0, imaginary = 0;
    explicit Pair(double x = 0) : real(x), imaginary(-x) {}
    bool operator==(const Pair&) const = default;
  };
  check(Pair{}, DType::kComplex128);
}

// Any part of what gather_slices() makes, packed or in rows of any length.
TEST(GatherBytesTest, ArePartsOfTheGatheredSlices) {
  const std::vector<int64_t> index = {2, 0, 2, 1, 1};
  std::vector<float> gathered(20);
  gather_slices(bytes(gathered), 10, slices(kThree, 3, 6), index, kShape, 0, 5);
  const auto* const expected = reinterpret_cast<const std::byte*>(gathered.data());
  for (const Layout& layout : {Layout{1, 80, 80}, {2, 40, 56}, {8, 10, 13}}) {
    for (int64_t offset = 0; offset < 80; offset += 3) {
      for (int64_t count = 0; offset + count <= 80; count += 7) {
        std::vector<std::byte> memory(static_cast<size_t>(layout.extent()), std::byte{0xee});
        const StridedSpan to{memory.data(), layout};
        gather_bytes(to, 80 - offset - count, count, slices(kThree, 3, 6), index, kShape, offset);
        std::vector<std::byte> found(80);
        pack(to, 0, found);
        for (int64_t at = 0; at < 80; ++at) {
          const int64_t from = at - (80 - offset - count);
          const bool is_written = from >= 0 && from < count;
          ASSERT_EQ(found[static_cast<size_t>(at)],
                    is_written ? expected[offset + from] : std::byte{0xee})
              << layout.rows << " rows, " << offset << " + " << count << ", at " << at;
        }
      }
    }
  }
}

TEST(SegmentedSumTest, AddsTheSlicesOfASegmentFromBothTensors) {
  const std::vector<float> two = {100, 200, 300, 400, 500, 600, 700, 800};
  std::vector<float> output(12, -1);
  // Slice 0: 2 of the first, 0 of the second; slice 1: none; slice 2: 1 of the second alone.
  const std::vector<int64_t> offsets = {0, 2, 2, 3}, positions = {2, 3, 4};
  segmented_sum(bytes(output), slices(kThree, 3, 6), slices(two, 2, 4), offsets, positions, kShape,
                true, 0, 3);
  EXPECT_EQ(output, (std::vector<float>{130, 231, 0, 0, 300, 400, 532, 633, 0, 0, 700, 800}));
}

TEST(SegmentedSumTest, AddsInTheOrderGiven) {
  const std::vector<float> values = {1e8f, 1, -1e8f};
  std::vector<float> output(1);
  const auto sum = [&](const std::vector<int64_t>& positions) {
    const std::vector<int64_t> offsets = {0, 3};
    segmented_sum(bytes(output), slices(values, 3, 3), {}, offsets, positions,
                  {1, 1, DType::kFloat32}, true, 0, 1);
    return output[0];
  };
  EXPECT_EQ(sum({0, 1, 2}), (1e8f + 1) - 1e8f);
  EXPECT_EQ(sum({0, 2, 1}), 1);
}

// Many rows of single elements take another path in the kernel.
TEST(SegmentedSumTest, AddsManyRowsToTheBitsOfEachByItself) {
  constexpr int64_t kRows = 20, kOfFirst = 5, kOfSecond = 3, kSlices = 6;
  const std::vector<int64_t> offsets = {0, 3, 3, 4, 8, 8, 11};
  const std::vector<int64_t> positions = {7, 0, 2, 1, 3, 6, 4, 5, 2, 7, 7};
  const auto check = [&]<typename T>(T, DType dtype) {
    std::vector<T> first(kRows * kOfFirst), second(kRows * kOfSecond);
    for (size_t i = 0; i < first.size(); ++i) first[i] = T(1) / static_cast<T>(i + 3);
    for (size_t i = 0; i < second.size(); ++i) second[i] = T(-1e7) / static_cast<T>(i + 1);
    first[1] = T(-0.0);  // by itself in slice 2
    std::vector<T> output(kRows * kSlices, -1), expected(kRows * kSlices, -1);
    // Not the first slice, nor the last.
    segmented_sum(bytes(output), slices(first, kOfFirst, kOfFirst),
                  slices(second, kOfSecond, kOfSecond), offsets, positions, {kRows, 1, dtype}, true,
                  1, kSlices - 1);
    for (int64_t row = 0; row < kRows; ++row) {
      const auto row_of = [&](const std::vector<T>& values, int64_t count) {
        return Slices{reinterpret_cast<const std::byte*>(values.data() + row * count), count, 0};
      };
      segmented_sum(reinterpret_cast<std::byte*>(expected.data() + row * kSlices),
                    row_of(first, kOfFirst), row_of(second, kOfSecond), offsets, positions,
                    {1, 1, dtype}, true, 1, kSlices - 1);
    }
    // Zeros of both signs are equal, and not the same.
    EXPECT_EQ(std::memcmp(output.data(), expected.data(), output.size() * sizeof(T)), 0);
    EXPECT_TRUE(std::signbit(output[2]));
  };
  check(float{}, DType::kFloat32);
  check(double{}, DType::kFloat64);
}

TEST(SegmentedSumTest, RoundsHalfPrecisionOnceInFloat32OrEachTime) {
  // bfloat16: 256 and 1, whose sum rounds to 256 again.
  const std::vector<uint16_t> values = {0x4380, 0x3f80};
  std::vector<uint16_t> output(1);
  const std::vector<int64_t> offsets = {0, 3}, positions = {0, 1, 1};
  const auto sum = [&](bool use_fp32) {
    segmented_sum(bytes(output), slices(values, 2, 2), {}, offsets, positions,
                  {1, 1, DType::kBFloat16}, use_fp32, 0, 1);
    return output[0];
  };
  EXPECT_EQ(sum(true), 0x4381);  // 258
  EXPECT_EQ(sum(false), 0x4380);
}

TEST(SegmentedSumTest, TakesARangeAndNothingElse) {
  std::vector<float> output(12, -1);
  const std::vector<int64_t> offsets = {0, 1, 2, 3}, positions = {0, 1, 2};
  segmented_sum(bytes(output), slices(kThree, 3, 6), {}, offsets, positions, kShape, true, 1, 2);
  EXPECT_EQ(output, (std::vector<float>{-1, -1, 20, 21, -1, -1, -1, -1, 22, 23, -1, -1}));
}

// No rows, rows of no elements, no slices to write: nothing is read and nothing written.
TEST(SegmentedSumTest, OfNothingWritesNothing) {
  const std::vector<int64_t> offsets = {0, 1}, positions = {0};
  const std::vector<float> untouched(4, -1);
  const auto after = [&](const SliceShape& shape, int64_t end) {
    std::vector<float> output = untouched;
    segmented_sum(bytes(output), {nullptr, 1, 0}, {}, offsets, positions, shape, true, 0, end);
    return output;
  };
  EXPECT_EQ(after({3, 0, DType::kFloat32}, 1), untouched);
  EXPECT_EQ(after({0, 2, DType::kFloat32}, 1), untouched);
  EXPECT_EQ(after({3, 1, DType::kFloat32}, 0), untouched);
}

// In both ways of adding: short slices of floats, and all others.
TEST(SegmentedSumTest, AnEmptySegmentIsZeros) {
  const std::vector<int64_t> empty = {0, 0}, none;
  for (const SliceShape& shape :
       {SliceShape{2, 2, DType::kFloat32}, {2, 100, DType::kFloat32}, {2, 1, DType::kInt64}}) {
    const int64_t size = shape.outer * shape.inner * element_size(shape.dtype);
    std::vector<std::byte> output(static_cast<size_t>(size), std::byte{0xee});
    segmented_sum(output.data(), {nullptr, 0, 0}, {}, empty, none, shape, true, 0, 1);
    EXPECT_EQ(output, std::vector<std::byte>(output.size()));
  }
}

}  // namespace
}  // namespace meshrun
