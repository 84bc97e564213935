#include "core/proto_time.h"

#include <gtest/gtest.h>

#include <limits>

namespace meshrun {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

// Nanoseconds of 64 bits reach from 1677 to 2262.
constexpr int64_t kLastSecond = std::numeric_limits<int64_t>::max() / 1'000'000'000;

google::protobuf::Timestamp TimeAt(int64_t seconds, int32_t nanos) {
  google::protobuf::Timestamp time;
  time.set_seconds(seconds);
  time.set_nanos(nanos);
  return time;
}

google::protobuf::Duration DurationOf(int64_t seconds, int32_t nanos) {
  google::protobuf::Duration duration;
  duration.set_seconds(seconds);
  duration.set_nanos(nanos);
  return duration;
}

TEST(ProtoTimeTest, WhatNanosecondsReachIsExact) {
  for (const nanoseconds time :
       {nanoseconds(0), nanoseconds(1), nanoseconds(-1), nanoseconds(1'700'000'000'123'456'789),
        nanoseconds(seconds(kLastSecond - 3)) + nanoseconds(999'999'999),
        -nanoseconds(seconds(kLastSecond - 3)) - nanoseconds(999'999'999)}) {
    EXPECT_EQ(FromProto(ToProtoTimestamp(time)), time);
    EXPECT_EQ(FromProto(ToProtoDuration(time)), time);
  }
}

TEST(ProtoTimeTest, WhatNanosecondsDoNotReachIsTheFirstOrLastSecondThatTheyDo) {
  // 9999-12-31T23:59:59Z and 0001-01-01T00:00:00Z; the longest Duration; then what no rule allows.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t far :
       {int64_t{253'402'300'799}, int64_t{315'576'000'000}, kLastSecond, kMost}) {
    for (const int32_t nanos : {0, 999'999'999, std::numeric_limits<int32_t>::max()}) {
      EXPECT_GE(FromProto(TimeAt(far, nanos)), seconds(kLastSecond - 3)) << far;
      EXPECT_GE(FromProto(DurationOf(far, nanos)), seconds(kLastSecond - 3)) << far;
    }
  }
  for (const int64_t far : {int64_t{-62'135'596'800}, int64_t{-315'576'000'000}, -kLastSecond,
                            std::numeric_limits<int64_t>::min()}) {
    for (const int32_t nanos : {0, -999'999'999, std::numeric_limits<int32_t>::min()}) {
      EXPECT_LE(FromProto(TimeAt(far, nanos)), seconds(3 - kLastSecond)) << far;
      EXPECT_LE(FromProto(DurationOf(far, nanos)), seconds(3 - kLastSecond)) << far;
    }
  }
}

}  // namespace
}  // namespace meshrun
