// How urgently the end of a certificate is told. Pure: no clock, no file.
#pragma once

#include <string>

#include "core/clock.h"

namespace meshrun::certificates {

// 30 days, 7 days, 1 day before its end, and after it.
enum class Expiry { kFar, kMonth, kWeek, kDay, kOver };
Expiry ExpiryAt(WallNanos now, WallNanos not_after);
// "ends in 6 days (2026-11-28)", "ended 2 hours ago (...)". Times are UTC.
std::string DescribeEnd(WallNanos now, WallNanos not_after);

// What was told of one certificate: each stage is told once, and those of its successor anew.
struct ToldExpiry {
  WallNanos not_after{0};
  Expiry stage = Expiry::kFar;

  // True where the certificate that ends at `end` has come to a stage that was not told: it is now.
  bool Advance(WallNanos now, WallNanos end);
};

}  // namespace meshrun::certificates
