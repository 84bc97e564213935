#include "core/certificates/expiry.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <string_view>
#include <utility>

namespace meshrun::certificates {
namespace {

std::string Count(int64_t number, std::string_view unit) {
  return fmt::format("{} {}{}", number, unit, number == 1 ? "" : "s");
}

}  // namespace

Expiry ExpiryAt(WallNanos now, const Validity& validity) {
  constexpr std::chrono::hours kDay(24);
  const WallNanos left = validity.not_after - now;
  const WallNanos whole = validity.not_after - validity.not_before;
  if (left <= WallNanos(0)) return Expiry::kOver;
  if (left <= kDay && whole > 3 * kDay) return Expiry::kDay;
  if (left <= 7 * kDay && whole > 21 * kDay) return Expiry::kWeek;
  return left <= 30 * kDay && whole > 90 * kDay ? Expiry::kMonth : Expiry::kFar;
}

std::string DescribeEnd(WallNanos now, WallNanos not_after) {
  const std::time_t end = std::chrono::duration_cast<std::chrono::seconds>(not_after).count();
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(not_after - now).count();
  const auto away = minutes < 0 ? -minutes : minutes;
  const std::string time = away < 60        ? Count(away, "minute")
                           : away < 48 * 60 ? Count(away / 60, "hour")
                                            : Count(away / (24 * 60), "day");
  const std::string date = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(end));
  return not_after <= now ? fmt::format("ended {} ago ({})", time, date)
                          : fmt::format("ends in {} ({})", time, date);
}

bool ToldExpiry::Advance(WallNanos now, const Validity& validity) {
  if (validity.not_after != not_after) *this = {.not_after = validity.not_after};
  const Expiry reached = ExpiryAt(now, validity);
  return reached > std::exchange(stage, reached);
}

}  // namespace meshrun::certificates
