// How urgently the end of a certificate is told. Pure: no clock, no file.
#pragma once

#include <string>

#include "core/clock.h"

namespace meshrun::certificates {

// When a certificate holds, in Unix time.
struct Validity {
  WallNanos not_before{0};
  WallNanos not_after{0};
};

// 30 days, 7 days, 1 day before its end, and after it. Those come first that are less than a third
// of its whole time: one for 30 days is kWeek in its last week, and one for a day is never urgent.
enum class Expiry { kFar, kMonth, kWeek, kDay, kOver };
Expiry ExpiryAt(WallNanos now, const Validity& validity);
// "ends in 6 days (2026-11-28)", "ended 2 hours ago (...)". Times are UTC.
std::string DescribeEnd(WallNanos now, WallNanos not_after);

// What was told of one certificate: each stage is told once, and those of its successor anew.
struct ToldExpiry {
  WallNanos not_after{0};
  Expiry stage = Expiry::kFar;

  // True where this certificate has come to a stage that was not told: now it is. A clock that was
  // ahead is forgotten.
  bool Advance(WallNanos now, const Validity& validity);
};

}  // namespace meshrun::certificates
