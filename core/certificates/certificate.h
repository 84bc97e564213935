// What a certificate says. Threads: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clock.h"

namespace meshrun::certificates {

struct Certificate {
  std::string common_name;
  // Hexadecimal, without leading zeros.
  std::string serial;
  WallNanos not_before{0};
  WallNanos not_after{0};
  std::vector<std::string> uris;
  // Names and addresses.
  std::vector<std::string> hosts;
  bool server = false;
  bool authority = false;
};

// The first certificate of a PEM text. INVALID_ARGUMENT: there is none, or it is damaged. Any bytes
// may be given.
absl::StatusOr<Certificate> ReadCertificate(std::string_view pem);

// How urgently the end of a certificate is told: 30 days, 7 days, 1 day before it, and after it.
enum class Expiry { kFar, kMonth, kWeek, kDay, kOver };
Expiry ExpiryAt(WallNanos now, WallNanos not_after);
// "ends in 6 days (2026-11-28)", "ended 2 hours ago (...)". Times are UTC.
std::string DescribeEnd(WallNanos now, WallNanos not_after);

}  // namespace meshrun::certificates
