#include "core/certificates/expiry.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

namespace meshrun::certificates {

Expiry ExpiryAt(WallNanos now, WallNanos not_after) {
  constexpr std::chrono::hours kDay(24);
  const WallNanos left = not_after - now;
  if (left <= WallNanos(0)) return Expiry::kOver;
  if (left <= kDay) return Expiry::kDay;
  if (left <= 7 * kDay) return Expiry::kWeek;
  return left <= 30 * kDay ? Expiry::kMonth : Expiry::kFar;
}

std::string DescribeEnd(WallNanos now, WallNanos not_after) {
  const std::time_t end = std::chrono::duration_cast<std::chrono::seconds>(not_after).count();
  const auto left = std::chrono::duration_cast<std::chrono::hours>(not_after - now).count();
  const auto away = left < 0 ? -left : left;
  const auto count = away < 48 ? away : away / 24;
  const std::string time =
      fmt::format("{} {}{}", count, away < 48 ? "hour" : "day", count == 1 ? "" : "s");
  const std::string date = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(end));
  return not_after <= now ? fmt::format("ended {} ago ({})", time, date)
                          : fmt::format("ends in {} ({})", time, date);
}

bool ToldExpiry::Advance(WallNanos now, WallNanos end) {
  if (end != not_after) *this = {.not_after = end};
  const Expiry next = ExpiryAt(now, end);
  if (next <= stage) return false;
  stage = next;
  return true;
}

}  // namespace meshrun::certificates
