#include "core/stream_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace meshrun {
namespace {

constexpr int kStdout = 1;
constexpr int kStderr = 2;

std::optional<int> ParseUpTo(std::string_view text, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc{} && end == text.data() + text.size();
  return good && value >= 0 && value <= most ? std::optional(value) : std::nullopt;
}

}  // namespace

absl::StatusOr<StreamChoice> StreamChoice::Parse(std::string_view text) {
  constexpr int kLargestRank = (1 << 20) - 1;
  const auto wrong = absl::InvalidArgumentError(
      fmt::format("'{}': write 1 for stdout, 2 for stderr, 3 for both or 0 for none, of all ranks, "
                  "or by local rank, for example 0:3,1:2",
                  text));
  StreamChoice out;
  if (const auto all = ParseUpTo(text, kStdout | kStderr)) {
    out.of_all_ = *all;
    return out;
  }
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    const size_t colon = part.find(':');
    if (colon == std::string_view::npos) return wrong;
    const auto rank = ParseUpTo(part.substr(0, colon), kLargestRank);
    const auto streams = ParseUpTo(part.substr(colon + 1), kStdout | kStderr);
    if (!rank || !streams) return wrong;
    out.of_rank_[*rank] = *streams;
    if (comma == std::string_view::npos) return out;
    rest.remove_prefix(comma + 1);
  }
}

StreamChoice StreamChoice::All() {
  StreamChoice out;
  out.of_all_ = kStdout | kStderr;
  return out;
}

bool StreamChoice::Has(int local_rank, bool is_stderr) const {
  const auto own = of_rank_.find(local_rank);
  const int streams = own == of_rank_.end() ? of_all_ : own->second;
  return (streams & (is_stderr ? kStderr : kStdout)) != 0;
}

bool StreamChoice::empty() const {
  return of_all_ == 0 && std::all_of(of_rank_.begin(), of_rank_.end(),
                                     [](const auto& rank) { return rank.second == 0; });
}

}  // namespace meshrun
