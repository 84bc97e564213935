#include "client/cli/times.h"

#include <fmt/format.h>

#include <string>

#include "absl/time/time.h"
#include "core/text.h"

namespace meshrun::client {

absl::StatusOr<std::chrono::nanoseconds> ParseTime(std::string_view text,
                                                   std::chrono::nanoseconds now) {
  if (const auto ago = ParseDuration(text); ago.ok()) return now - *ago;
  for (const char* const format :
       {"%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"}) {
    absl::Time time;
    std::string error;
    const bool is_read =
        absl::ParseTime(format, std::string(text), absl::UTCTimeZone(), &time, &error);
    // "26-11-01" would be the year 26.
    if (is_read && time >= absl::UnixEpoch())
      return std::chrono::nanoseconds(absl::ToUnixNanos(time));
  }
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is not a time: write how long ago, for example 7d or 12h, or a date, for example "
      "2026-11-01 or \"2026-11-01 08:30\"",
      text));
}

}  // namespace meshrun::client
