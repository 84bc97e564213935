#include "client/render/progress_line.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/render/progress.h"
#include "core/text.h"

namespace meshrun::client {

std::optional<std::string> ProgressLine::Next(uint64_t done, uint64_t all, Time now) {
  constexpr std::chrono::seconds kQuiet(2);
  constexpr std::chrono::milliseconds kBetween(200);
  if (now - begin_ < kQuiet || (last_ && now - *last_ < kBetween)) return std::nullopt;
  last_ = now;
  const std::chrono::duration<double> passed = now - begin_;
  const double rate = static_cast<double>(done) / passed.count();
  const double part = done >= all ? 1 : static_cast<double>(done) / static_cast<double>(all);
  std::string text = fmt::format("{} {} of {} ({}%)", what_, FormatBytes(done), FormatBytes(all),
                                 WholePercent(part));
  if (rate <= 0) return text;
  const auto left = static_cast<int64_t>(static_cast<double>(all - std::min(done, all)) / rate);
  return text + fmt::format(", {}/s, {} left", FormatBytes(static_cast<uint64_t>(rate)),
                            FormatDuration(std::chrono::seconds(left)));
}

}  // namespace meshrun::client
