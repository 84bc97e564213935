// Times as people write them.
#pragma once

#include <chrono>
#include <string_view>

#include "absl/status/statusor.h"

namespace meshrun::client {

// Since the epoch: "7d" is so long before `now`; "2026-11-01" and "2026-11-01 08:30" are of UTC, as
// all times that are shown. INVALID_ARGUMENT says what to write.
absl::StatusOr<std::chrono::nanoseconds> ParseTime(std::string_view text,
                                                   std::chrono::nanoseconds now);

}  // namespace meshrun::client
