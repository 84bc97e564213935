// Differences between tensors, and the numbers that elements are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "client/checkpoint/comparison.h"
#include "client/checkpoint/elements.h"
#include "client/render/checkpoint_report.h"
#include "core/checkpoint/open_tensors.h"
#include "tests/core/checkpoint/step_files.h"
#include "tests/core/checkpoint/temporary_directory.h"

namespace meshrun::client {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::EncodeTensors;
using ::testing::HasSubstr;
using testing::StoredTensors;
using testing::TemporaryDirectory;
using testing::WriteStep;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Comparison Compared(const StoredTensors& a, const StoredTensors& b,
                    std::optional<Tolerance> tolerance = {}) {
  const TemporaryDirectory directory;
  const auto left = OpenTensors(directory.Write("a", EncodeTensors(a)));
  const auto right = OpenTensors(directory.Write("b", EncodeTensors(b)));
  EXPECT_TRUE(left.ok() && right.ok());
  auto compared = Compare(**left, **right, {.tolerance = tolerance});
  EXPECT_TRUE(compared.ok()) << compared.status();
  return *compared;
}

template <typename T>
Comparison Differences(const char* dtype, const std::vector<T>& a, const std::vector<T>& b,
                       std::optional<Tolerance> tolerance = {}) {
  const std::vector<int64_t> shape = {static_cast<int64_t>(a.size())};
  return Compared({{"x", {{dtype, shape}, Bytes(a)}}}, {{"x", {{dtype, shape}, Bytes(b)}}},
                  tolerance);
}

TEST(ComparisonTest, NamesDtypesAndShapes) {
  const StoredTensors a = {{"same", {{"U8", {1}}, "s"}},
                           {"shape", {{"U8", {2}}, "xy"}},
                           {"dtype", {{"U8", {1}}, "d"}},
                           {"mine", {{"U8", {0}}, ""}}};
  const StoredTensors b = {{"same", {{"U8", {1}}, "s"}},
                           {"shape", {{"U8", {1, 2}}, "xy"}},
                           {"dtype", {{"I8", {1}}, "d"}},
                           {"yours", {{"U8", {0}}, ""}}};
  const Comparison found = Compared(a, b);
  EXPECT_FALSE(found.equal());
  EXPECT_THAT(found.only_in_a, ElementsAre("mine"));
  EXPECT_THAT(found.only_in_b, ElementsAre("yours"));
  EXPECT_EQ(found.bit_equal, 1u);
  ASSERT_EQ(found.different.size(), 2u);
  EXPECT_FALSE(found.different[0].comparable);
  EXPECT_THAT(
      ComparisonReport("A", "B", found, {}, 0),
      AllOf(HasSubstr("dtype is U8 [1] in A, and I8 [1] in B\n"), HasSubstr("only in A: mine\n"),
            HasSubstr("1 tensor bit-equal, 2 different, 2 only in one\n")));
  EXPECT_TRUE(Compared(a, a).equal());
}

TEST(ComparisonTest, ElementsAreCountedAndMeasured) {
  const Comparison found =
      Differences<float>("F32", {3, 1, 4, 2}, {3, 1, 0, 5}, Tolerance{.absolute = 3});
  ASSERT_EQ(found.different.size(), 1u);
  const TensorDifference& x = found.different[0];
  EXPECT_EQ(x.elements, 4u);
  EXPECT_EQ(x.differing, 2u);
  EXPECT_EQ(x.outside, 1u);
  EXPECT_EQ(x.nans, 0u);
  EXPECT_EQ(x.largest, 4.0);
  EXPECT_DOUBLE_EQ(x.relative_norm, 5.0 / std::sqrt(35.0));
  EXPECT_FALSE(found.equal());
  // |a - b| <= absolute + relative * |b|.
  EXPECT_TRUE(Differences<float>("F32", {11}, {10}, Tolerance{.relative = 0.1}).equal());
  EXPECT_FALSE(Differences<float>("F32", {10}, {9}, Tolerance{.relative = 0.1}).equal());
}

TEST(ComparisonTest, BitsCountWithoutATolerance) {
  EXPECT_FALSE(Differences<float>("F32", {0.0f}, {-0.0f}).equal());
  const Comparison near = Differences<float>("F32", {0.0f}, {-0.0f}, Tolerance{});
  EXPECT_TRUE(near.equal());
  EXPECT_EQ(near.different.at(0).differing, 1u);
  EXPECT_EQ(near.different.at(0).relative_norm, 0.0);
}

TEST(ComparisonTest, NansAreComparedByBits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float other = std::bit_cast<float>(0x7fc00001u);
  const Tolerance wide{.relative = 1, .absolute = 1e9};
  EXPECT_EQ(Differences<float>("F32", {nan, 1}, {nan, 1}).bit_equal, 1u);
  const Comparison found = Differences<float>("F32", {nan, nan, 1}, {other, 2, nan}, wide);
  EXPECT_EQ(found.different.at(0).nans, 3u);
  EXPECT_EQ(found.different.at(0).outside, 3u);
  EXPECT_EQ(found.different.at(0).largest, 0.0);
}

TEST(ComparisonTest, InfinitiesAreNearOnlyThemselves) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tolerance wide{.relative = 1, .absolute = 1e300};
  EXPECT_TRUE(Differences<double>("F64", {inf, -inf}, {inf, -inf}, wide).equal());
  const Comparison found = Differences<double>("F64", {inf, 1, inf}, {1, inf, -inf}, wide);
  EXPECT_EQ(found.different.at(0).outside, 3u);
  EXPECT_EQ(found.different.at(0).largest, inf);
  EXPECT_EQ(found.different.at(0).relative_norm, inf);
  EXPECT_EQ(json::parse(ComparisonJson("a", "b", found)).at("different").at(0).at("largest"),
            "Infinity");
  // One that both have does not hide what else differs.
  EXPECT_DOUBLE_EQ(Differences<double>("F64", {inf, 3}, {inf, 2}).different.at(0).relative_norm,
                   0.5);
  // The squares of these are beyond double.
  const Comparison large = Differences<double>("F64", {3e300}, {2e300});
  EXPECT_DOUBLE_EQ(large.different.at(0).relative_norm, 0.5);
}

TEST(ComparisonTest, LargeIntegersAreExact) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(Differences<uint64_t>("U64", {most}, {most - 1}).different.at(0).largest, 1.0);
  const int64_t least = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(Differences<int64_t>("I64", {least}, {least + 1}).different.at(0).largest, 1.0);
  EXPECT_EQ(Differences<int64_t>("I64", {least}, {-1 - least}).different.at(0).largest,
            18446744073709551615.0);
}

TEST(ComparisonTest, ComplexNumbersHaveTheirDistance) {
  const Comparison found = Differences<float>("F32", {0, 0}, {3, 4});
  EXPECT_EQ(found.different.at(0).largest, 4.0);
  const Comparison complex = Compared({{"x", {{"C64", {1}}, Bytes<float>({0, 0})}}},
                                      {{"x", {{"C64", {1}}, Bytes<float>({3, 4})}}});
  EXPECT_EQ(complex.different.at(0).largest, 5.0);
  EXPECT_EQ(complex.different.at(0).differing, 1u);
}

TEST(ComparisonTest, BlocksAreReadBehindEachOther) {
  // Three blocks, and a difference in the last.
  std::vector<float> a(5'000'000, 1.0f);
  std::vector<float> b = a;
  b.back() = 2.0f;
  const Comparison found = Differences<float>("F32", a, b);
  EXPECT_EQ(found.different.at(0).differing, 1u);
  EXPECT_EQ(found.different.at(0).elements, 5'000'000u);
}

TEST(ComparisonTest, WhatIsBesideTheModelIsLeftOutWhereTheOtherIsNoCheckpoint) {
  const TemporaryDirectory directory;
  const std::string model = EncodeTensors({{"v", {{"U8", {1}}, "v"}}, {"w", {{"U8", {1}}, "w"}}});
  Manifest manifest;
  manifest.step = 5;
  const std::string step =
      WriteStep(directory, manifest,
                {{"model.safetensors", model},
                 {"optimizer.safetensors", EncodeTensors({{"step.w", {{"U8", {1}}, "5"}}})}});
  // It is not read.
  directory.Write("step-5/optimizer.safetensors", "damaged");
  const std::string file = directory.Write("f", model);
  for (const bool turned : {false, true}) {
    const auto found = turned ? Compare(file, step, {}) : Compare(step, file, {});
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_TRUE(found->equal());
    EXPECT_THAT(found->left_out, ElementsAre("optimizer.safetensors"));
    EXPECT_EQ(found->bit_equal, 2u);
  }
  EXPECT_EQ(Compare(step, step, {}).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ComparisonTest, WhatBothHaveBesideTheirModelsIsCompared) {
  const TemporaryDirectory directory;
  const std::string model = EncodeTensors({{"w", {{"U8", {1}}, "w"}}});
  Manifest manifest;
  const auto write = [&](int64_t step, const std::string& count) {
    manifest.step = step;
    return WriteStep(directory, manifest,
                     {{"model.safetensors", model},
                      {"optimizer.safetensors", EncodeTensors({{"n", {{"U8", {1}}, count}}})}});
  };
  const std::string a = write(5, "5");
  const std::string b = write(6, "6");
  const std::string all = directory.Write(
      "all", EncodeTensors({{"w", {{"U8", {1}}, "w"}}, {"optimizer/n", {{"U8", {1}}, "6"}}}));
  for (const std::string& other : {b, all}) {
    const auto found = Compare(a, other, {});
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(found->different.size(), 1u);
    EXPECT_EQ(found->different[0].name, "optimizer/n");
    EXPECT_THAT(found->left_out, ElementsAre());
  }
}

long double Decoded(const char* dtype, uint64_t bits) {
  long double value = 0;
  EXPECT_TRUE(WithDecoder(dtype, [&](const auto& decode) {
    if constexpr (!std::is_same_v<decltype(decode), const ComplexDecoder&>) {
      value = decode(reinterpret_cast<const char*>(&bits));
    }
  }));
  return value;
}

TEST(ElementsTest, EveryFloatOfABytesOrTwoIsExact) {
  // By the definition: sign * 2^(e - bias) * 1.m, 2^(1 - bias) * 0.m for e = 0.
  const auto value = [](uint32_t bits, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double mantissa =
        static_cast<double>(bits & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
    const double size = exponent == 0 ? mantissa * std::pow(2.0, 1 - bias)
                                      : (1 + mantissa) * std::pow(2.0, exponent - bias);
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -size : size;
  };
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits >> 10 & 31) != 31) {
      ASSERT_EQ(Decoded("F16", bits), value(bits, 5, 10)) << bits;
    }
    if ((bits >> 7 & 255) != 255) {
      ASSERT_EQ(Decoded("BF16", bits), value(bits, 8, 7)) << bits;
    }
  }
  for (uint32_t bits = 0; bits < 0x100; ++bits) {
    if ((bits & 0x7f) != 0x7f) {
      ASSERT_EQ(Decoded("F8_E4M3", bits), value(bits, 4, 3)) << bits;
    }
    if ((bits >> 2 & 31) != 31) {
      ASSERT_EQ(Decoded("F8_E5M2", bits), value(bits, 5, 2)) << bits;
    }
    if (bits != 0xff) {
      ASSERT_EQ(Decoded("F8_E8M0", bits), std::pow(2.0, int(bits) - 127)) << bits;
    }
  }
  EXPECT_EQ(Decoded("F16", 0x7c00), std::numeric_limits<long double>::infinity());
  EXPECT_EQ(Decoded("F16", 0x7bff), 65504);
  EXPECT_TRUE(std::isnan(Decoded("F16", 0x7c01)));
  EXPECT_EQ(Decoded("F8_E4M3", 0x7e), 448);
  EXPECT_EQ(Decoded("F8_E5M2", 0x7b), 57344);
  EXPECT_EQ(Decoded("F8_E5M2", 0xfc), -std::numeric_limits<long double>::infinity());
  for (const char* dtype : {"F8_E4M3", "F8_E5M2", "F8_E8M0"}) {
    EXPECT_TRUE(std::isnan(Decoded(dtype, 0xff))) << dtype;
  }
}

TEST(ElementsTest, EveryDtypeHasADecoder) {
  for (const char* dtype : {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F8_E4M3",
                            "F8_E5M2", "F8_E8M0", "F16", "BF16", "F32", "F64", "C64"}) {
    EXPECT_TRUE(ElementBytes(dtype)) << dtype;
    EXPECT_TRUE(WithDecoder(dtype, [&](const auto& decode) {
      EXPECT_EQ(decode.kBytes, *ElementBytes(dtype)) << dtype;
    }));
  }
  EXPECT_FALSE(WithDecoder("F4", [](const auto&) {}));
  EXPECT_EQ(Decoded("I8", 0xff), -1);
  EXPECT_EQ(Decoded("I16", 0x8000), -32768);
  EXPECT_EQ(Decoded("U32", 0xffffffff), 4294967295.0L);
}

}  // namespace
}  // namespace meshrun::client
