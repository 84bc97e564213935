#include "parallel/base/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "tests/parallel/support/reduction_oracle.h"

namespace meshrun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
std::vector<T> reduced(const std::vector<std::vector<T>>& sources, const Reduction& reduction,
                       int64_t elements_per_item = 1) {
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) {
    pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  }
  std::vector<T> out(sources[0].size());
  reduce(pointers, reinterpret_cast<std::byte*>(out.data()),
         static_cast<int64_t>(out.size()) / elements_per_item, reduction);
  return out;
}

// The same, with the result where one of the sources is.
template <class T>
std::vector<T> reduced_in_place(std::vector<std::vector<T>> sources, size_t place,
                                const Reduction& reduction) {
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources) {
    pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  }
  reduce(pointers, reinterpret_cast<std::byte*>(sources[place].data()),
         static_cast<int64_t>(sources[place].size()), reduction);
  return sources[place];
}

// Formats written down a second time, slowly.
float bf16_value(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

float f16_value(uint16_t x) {
  const int exponent = x >> 10 & 31, mantissa = x & 1023;
  const float sign = (x & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(mantissa), -24)
                       : sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

// The nearest value of a 16-bit format, ties to the even one, by bisection over its magnitudes.
uint16_t nearest(float x, uint16_t infinity, float (*value)(uint16_t)) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  if (std::isinf(x)) return sign | infinity;
  // The largest whose value is not above.
  uint16_t low = 0, high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (value(middle) <= magnitude ? low : high) = middle;
  }
  // Infinity stands where the next value would be.
  const double below = value(low);
  const double step = below - value(static_cast<uint16_t>(low > 0 ? low - 1 : 1));
  const double above = high == infinity ? below + step : value(high);
  const double to_low = magnitude - below, to_high = above - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && low % 2 == 1);
  return sign | (up ? high : low);
}

template <class T>
bool is_nan(T x) {
  return x != x;
}

const std::vector<ReductionOp> kAllOps = {
    ReductionOp::kSum, ReductionOp::kAverage, ReductionOp::kProduct, ReductionOp::kMin,
    ReductionOp::kMax, ReductionOp::kAnd,     ReductionOp::kOr,      ReductionOp::kXor};

template <class T>
T random_value(std::mt19937_64& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else {
    return std::ldexp(static_cast<T>(random() % 1000003) - 500000, static_cast<int>(random() % 30));
  }
}

template <class T>
void expect_plain_loops(DType dtype) {
  std::mt19937_64 random(static_cast<uint64_t>(dtype) + 1);
  for (ReductionOp op : kAllOps) {
    if (!reduction_problem(op, dtype).empty()) continue;
    for (size_t ranks : {1, 2, 3, 4, 5, 6, 7, 12}) {
      for (size_t count : {0, 1, 7, 1024, 1025, 3000}) {
        SCOPED_TRACE(testing::Message() << name_of(op) << " of " << name_of(dtype) << ", " << ranks
                                        << " sources, " << count << " elements");
        std::vector<std::vector<T>> sources(ranks, std::vector<T>(count));
        for (auto& source : sources) {
          for (T& x : source) x = random_value<T>(random);
        }
        const Reduction reduction{op, dtype, Accumulate::kWide, static_cast<int64_t>(ranks)};
        const std::vector<T> expected =
            reduced_in_rank_order(std::span<const std::vector<T>>(sources), op);
        ASSERT_EQ(reduced(sources, reduction), expected);
        for (size_t place : {size_t{0}, ranks / 2, ranks - 1}) {
          ASSERT_EQ(reduced_in_place(sources, place, reduction), expected) << "in source " << place;
        }
      }
    }
  }
}

TEST(ReduceTest, EveryTypeAndOperationMatchesPlainLoops) {
  expect_plain_loops<uint8_t>(DType::kUInt8);
  expect_plain_loops<int8_t>(DType::kInt8);
  expect_plain_loops<int16_t>(DType::kInt16);
  expect_plain_loops<int32_t>(DType::kInt32);
  expect_plain_loops<int64_t>(DType::kInt64);
  expect_plain_loops<uint16_t>(DType::kUInt16);
  expect_plain_loops<uint32_t>(DType::kUInt32);
  expect_plain_loops<uint64_t>(DType::kUInt64);
  expect_plain_loops<float>(DType::kFloat32);
  expect_plain_loops<double>(DType::kFloat64);
}

TEST(ReduceTest, OrderIsRankOrder) {
  // ((1e8 + 1) - 1e8) + 1: each other order gives another number.
  const std::vector<std::vector<float>> sources = {{1e8f}, {1.0f}, {-1e8f}, {1.0f}};
  EXPECT_THAT(reduced(sources, {ReductionOp::kSum, DType::kFloat32}), ElementsAre(1.0f));
  const std::vector<std::vector<float>> other = {{1e8f}, {-1e8f}, {1.0f}, {1.0f}};
  EXPECT_THAT(reduced(other, {ReductionOp::kSum, DType::kFloat32}), ElementsAre(2.0f));
}

template <class T>
void expect_nan_wins(DType dtype) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  for (ReductionOp op : {ReductionOp::kMin, ReductionOp::kMax}) {
    for (size_t ranks : {1, 2, 3, 4, 5, 8}) {
      for (size_t where = 0; where < ranks; ++where) {
        std::vector<std::vector<T>> sources(ranks, std::vector<T>(40, T(3)));
        sources[where].assign(40, nan);
        sources[ranks - 1 - where][39] = std::numeric_limits<T>::infinity();
        const std::vector<T> out = reduced(sources, {op, dtype});
        for (size_t i = 0; i < 39; ++i) ASSERT_TRUE(is_nan(out[i])) << i;
      }
    }
  }
}

TEST(ReduceTest, NaNWins) {
  expect_nan_wins<float>(DType::kFloat32);
  expect_nan_wins<double>(DType::kFloat64);
  for (const auto& [dtype, nan, one, format] :
       {std::tuple{DType::kBFloat16, uint16_t{0xffc1}, uint16_t{0x3f80}, &bf16_value},
        std::tuple{DType::kFloat16, uint16_t{0xfe01}, uint16_t{0x3c00}, &f16_value}}) {
    for (ReductionOp op : {ReductionOp::kMin, ReductionOp::kMax, ReductionOp::kSum}) {
      for (Accumulate accumulate :
           {Accumulate::kWide, Accumulate::kNative, Accumulate::kWideInLevels}) {
        for (const auto& out :
             {reduced<uint16_t>({{nan}, {one}}, {op, dtype, accumulate}),
              reduced<uint16_t>({{one}, {nan}, {one}}, {op, dtype, accumulate})}) {
          EXPECT_TRUE(is_nan(format(out[0]))) << name_of(op) << " of " << name_of(dtype);
        }
      }
    }
  }
}

TEST(ReduceTest, TheLeastAndTheGreatestOfHalvesAreTheSameHoweverSumsAreRounded) {
  std::vector<std::vector<uint16_t>> sources(3, std::vector<uint16_t>(65536));
  for (size_t i = 0; i < 65536; ++i) {
    sources[0][i] = static_cast<uint16_t>(i);
    sources[1][i] = static_cast<uint16_t>(40503 * i);
    sources[2][i] = static_cast<uint16_t>(~i);
  }
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const ReductionOp op : {ReductionOp::kMin, ReductionOp::kMax}) {
      const auto wide = reduced(sources, {op, dtype, Accumulate::kWide});
      EXPECT_EQ(reduced(sources, {op, dtype, Accumulate::kNative}), wide);
      EXPECT_EQ(reduced(sources, {op, dtype, Accumulate::kWideInLevels}), wide);
    }
  }
}

TEST(ReduceTest, Bf16RoundsOnce) {
  // 256 + 1 + 1: bf16 has 8 bits, so each single addition of 1 would round back to 256.
  const uint16_t big = 0x4380, one = 0x3f80;
  ASSERT_EQ(bf16_value(big), 256.0f);
  const std::vector<std::vector<uint16_t>> sources = {{big}, {one}, {one}};
  const auto wide = reduced(sources, {ReductionOp::kSum, DType::kBFloat16, Accumulate::kWide});
  EXPECT_EQ(bf16_value(wide[0]), 258.0f);
  // One level alone.
  const auto in_levels =
      reduced(sources, {ReductionOp::kSum, DType::kBFloat16, Accumulate::kWideInLevels});
  EXPECT_EQ(bf16_value(in_levels[0]), 258.0f);
  const auto native = reduced(sources, {ReductionOp::kSum, DType::kBFloat16, Accumulate::kNative});
  EXPECT_EQ(bf16_value(native[0]), 256.0f);
}

TEST(ReduceTest, F16RoundsOnce) {
  const uint16_t big = 0x6800, one = 0x3c00;
  ASSERT_EQ(f16_value(big), 2048.0f);
  const std::vector<std::vector<uint16_t>> sources = {{big}, {one}, {one}};
  const auto wide = reduced(sources, {ReductionOp::kSum, DType::kFloat16, Accumulate::kWide});
  EXPECT_EQ(f16_value(wide[0]), 2050.0f);
  const auto native = reduced(sources, {ReductionOp::kSum, DType::kFloat16, Accumulate::kNative});
  EXPECT_EQ(f16_value(native[0]), 2048.0f);
}

TEST(ReduceTest, AnAverageIsDividedBeforeItIsRounded) {
  // (256 + 5 + 0) / 3 = 87; rounding the sum first, to 260, gives 86.67, which is 86.5 in bf16.
  const std::vector<std::vector<uint16_t>> sources = {{0x4380}, {0x40a0}, {0}};
  const auto out =
      reduced(sources, {ReductionOp::kAverage, DType::kBFloat16, Accumulate::kWide, 3});
  EXPECT_EQ(bf16_value(out[0]), 87.0f);
  const auto native =
      reduced(sources, {ReductionOp::kAverage, DType::kBFloat16, Accumulate::kNative, 3});
  EXPECT_EQ(bf16_value(native[0]), 86.5f);
}

TEST(ReduceTest, HalvesKeepEveryValue) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    const auto value = dtype == DType::kFloat16 ? &f16_value : &bf16_value;
    const auto out = reduced<uint16_t>({all}, {ReductionOp::kSum, dtype});
    for (size_t i = 0; i < all.size(); ++i) {
      if (is_nan(value(all[i]))) {
        ASSERT_TRUE(is_nan(value(out[i]))) << i;
      } else {
        ASSERT_EQ(out[i], all[i]);
      }
    }
  }
}

TEST(ReduceTest, HalvesAreRoundedToTheNearestAndTiesToEven) {
  std::mt19937 random(3);
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const auto value = dtype == DType::kFloat16 ? &f16_value : &bf16_value;
    const uint16_t infinity = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
    const size_t count = 20000;
    std::vector<std::vector<uint16_t>> sources(3, std::vector<uint16_t>(count));
    for (size_t i = 0; i < count; ++i) {
      sources[0][i] = static_cast<uint16_t>(random());
      // Near each other, so that bits are lost one at a time.
      sources[1][i] = static_cast<uint16_t>(sources[0][i] - random() % 12000);
      sources[2][i] = static_cast<uint16_t>(sources[1][i] ^ (random() & 0x8fff));
    }
    for (ReductionOp op : {ReductionOp::kSum, ReductionOp::kProduct}) {
      const auto out = reduced(sources, {op, dtype});
      for (size_t i = 0; i < count; ++i) {
        float x = value(sources[0][i]);
        for (size_t k : {1, 2}) {
          const float y = value(sources[k][i]);
          x = op == ReductionOp::kSum ? x + y : x * y;
        }
        if (is_nan(x)) {
          ASSERT_TRUE(is_nan(value(out[i])));
        } else {
          ASSERT_EQ(out[i], nearest(x, infinity, value)) << name_of(dtype) << " " << x;
        }
      }
    }
  }
}

TEST(ReduceTest, IntegersWrap) {
  EXPECT_THAT(reduced<int8_t>({{127}, {1}}, {ReductionOp::kSum, DType::kInt8}), ElementsAre(-128));
  EXPECT_THAT(reduced<int32_t>({{std::numeric_limits<int32_t>::max()}, {2}},
                               {ReductionOp::kProduct, DType::kInt32}),
              ElementsAre(-2));
  EXPECT_THAT(reduced<uint16_t>({{65535}, {65535}}, {ReductionOp::kProduct, DType::kUInt16}),
              ElementsAre(1));
}

TEST(ReduceTest, BoolSumIsOr) {
  const std::vector<std::vector<uint8_t>> sources = {{0, 1, 0, 1}, {0, 0, 1, 1}, {0, 1, 1, 1}};
  const auto of = [&](ReductionOp op) { return reduced(sources, {op, DType::kBool}); };
  for (ReductionOp op : {ReductionOp::kSum, ReductionOp::kMax, ReductionOp::kOr}) {
    EXPECT_THAT(of(op), ElementsAre(0, 1, 1, 1)) << name_of(op);
  }
  for (ReductionOp op : {ReductionOp::kProduct, ReductionOp::kMin, ReductionOp::kAnd}) {
    EXPECT_THAT(of(op), ElementsAre(0, 0, 0, 1)) << name_of(op);
  }
  EXPECT_THAT(of(ReductionOp::kXor), ElementsAre(0, 0, 0, 1));
}

TEST(ReduceTest, ComplexNumbersAreAddedAndMultiplied) {
  const std::vector<std::vector<double>> sources = {{1, 2, 0, 1}, {3, 4, 0, 1}};
  EXPECT_THAT(reduced(sources, {ReductionOp::kSum, DType::kComplex128}, 2),
              ElementsAre(4, 6, 0, 2));
  EXPECT_THAT(reduced(sources, {ReductionOp::kProduct, DType::kComplex128}, 2),
              ElementsAre(-5, 10, -1, 0));
  const std::vector<std::vector<float>> floats = {{1, 2}, {3, 4}};
  EXPECT_THAT(reduced(floats, {ReductionOp::kAverage, DType::kComplex64, Accumulate::kWide, 2}, 2),
              ElementsAre(2, 3));
}

TEST(ReduceTest, NoTwoOperationsAreFused) {
  // (1 + e)(1 + e) - (1 + 2e): zero where the product is rounded, e * e in a fused operation.
  const float e = std::ldexp(1.0f, -23);
  std::vector<std::vector<float>> sources(2);
  for (int i = 0; i < 33; ++i) {
    sources[0].insert(sources[0].end(), {1 + e, 1.0f});
    sources[1].insert(sources[1].end(), {1 + e, 1 + 2 * e});
  }
  const auto out = reduced(sources, {ReductionOp::kProduct, DType::kComplex64}, 2);
  for (size_t i = 0; i < out.size(); i += 2) ASSERT_EQ(out[i], 0.0f);
}

TEST(ReduceTest, WhatHasNoMeaningIsNamed) {
  EXPECT_EQ(reduction_problem(ReductionOp::kSum, DType::kBool), "");
  EXPECT_EQ(reduction_problem(ReductionOp::kNone, DType::kFloat8E5M2), "");
  EXPECT_THAT(reduction_problem(ReductionOp::kAverage, DType::kInt32),
              HasSubstr("average of int32"));
  EXPECT_THAT(reduction_problem(ReductionOp::kMax, DType::kComplex64), HasSubstr("no order"));
  EXPECT_THAT(reduction_problem(ReductionOp::kXor, DType::kFloat32), HasSubstr("integer"));
  EXPECT_THAT(reduction_problem(ReductionOp::kSum, DType::kFloat8E4M3Fn),
              HasSubstr("never reduced"));
}

}  // namespace
}  // namespace meshrun
