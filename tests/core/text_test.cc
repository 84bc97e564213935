#include "core/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/ids.h"
#include "core/parse_integer.h"
#include "core/signal_name.h"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

TEST(DurationTextTest, ReadsUnitsAndSumsThem) {
  EXPECT_EQ(*ParseDuration("250ms"), milliseconds(250));
  EXPECT_EQ(*ParseDuration("5"), milliseconds(5000));
  EXPECT_EQ(*ParseDuration("1h30m"), milliseconds(5'400'000));
  for (const char* wrong :
       {"", "s", "5x", "-1s", "1.5s", "99999999999999999999s", "99999999999d"}) {
    EXPECT_FALSE(ParseDuration(wrong).ok()) << wrong;
  }
}

TEST(DurationTextTest, ShowsTheTwoLargestUnits) {
  EXPECT_EQ(FormatDuration(milliseconds(250)), "250ms");
  EXPECT_EQ(FormatDuration(milliseconds(1500)), "1.5s");
  EXPECT_EQ(FormatDuration(milliseconds(5000)), "5s");
  EXPECT_EQ(FormatDuration(milliseconds(90'000)), "1m30s");
  EXPECT_EQ(FormatDuration(std::chrono::hours(49)), "2d1h");
}

TEST(BytesTextTest, CountsInPowersOf1024) {
  EXPECT_EQ(*ParseBytes("4G"), uint64_t{4} << 30);
  EXPECT_EQ(*ParseBytes("512MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseBytes("17"), 17u);
  for (const char* wrong : {"", "G", "4X", "4Gx", "18446744073709551615T"}) {
    EXPECT_FALSE(ParseBytes(wrong).ok()) << wrong;
  }
  EXPECT_EQ(FormatBytes(uint64_t{3} << 29), "1.5 GiB");
}

TEST(RanksTextTest, RangesRoundTrip) {
  EXPECT_THAT(*ParseRanks("7,0,2-4,3"), ElementsAre(0, 2, 3, 4, 7));
  EXPECT_EQ(FormatRanks({0, 2, 3, 4, 7}), "0,2-4,7");
  for (const char* wrong : {"", "a", "3-1", "1,,2", "1-"})
    EXPECT_FALSE(ParseRanks(wrong).ok()) << wrong;
}

TEST(GpuIdsTextTest, AreNumbersOrUuidsInTheirOrder) {
  EXPECT_THAT(*ParseGpuIds("5,1,GPU-3f"), ElementsAre("5", "1", "GPU-3f"));
  for (const char* wrong : {"", "1,,2", "1,", ",1", "1, 2"})
    EXPECT_FALSE(ParseGpuIds(wrong).ok()) << wrong;
}

TEST(NaturalOrderTest, ComparesRunsOfDigitsAsNumbers) {
  std::vector<std::string> names = {"node10", "node9", "node09b", "node1", "gpu2-n1"};
  std::sort(names.begin(), names.end(), NaturalLess);
  EXPECT_THAT(names, ElementsAre("gpu2-n1", "node1", "node9", "node09b", "node10"));
  EXPECT_FALSE(NaturalLess("n1", "n1"));
  EXPECT_NE(NaturalLess("n01", "n1"), NaturalLess("n1", "n01"));
}

TEST(ParseIntegerTest, TakesTheWholeTextAndNeverWraps) {
  EXPECT_EQ(ParseInteger<uint16_t>("65535"), 65535);
  EXPECT_EQ(ParseInteger<uint16_t>("007"), 7);
  EXPECT_EQ(ParseInteger<int>("-12"), -12);
  EXPECT_EQ(ParseInteger<uint64_t>("18446744073709551615"), UINT64_MAX);
  // 2^16 and 2^32 more than a number that fits.
  for (const char* const wrong : {"", "-", "-1", "+1", " 1", "1 ", "1x", "0x1", "1.0", "65536",
                                  "65543", "4294968320", "99999999999999999999"}) {
    EXPECT_EQ(ParseInteger<uint16_t>(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(ParseInteger<int>("2147483648"), std::nullopt);
}

TEST(SignalNameTest, IsTheShellsName) {
  EXPECT_EQ(SignalName(9), "SIGKILL");
  EXPECT_EQ(SignalName(99), "signal 99");
}

TEST(IdSourceTest, ASeedRepeatsItsIds) {
  SeededIdSource a(7);
  SeededIdSource b(7);
  EXPECT_EQ(NewJobId(a, "geoid"), NewJobId(b, "geoid"));
  EXPECT_NE(NewJobId(a, "geoid"), NewJobId(a, "geoid"));
}

}  // namespace
}  // namespace meshrun
