#include "coordinator/api/log_cursor.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/parse_integer.h"

namespace meshrun::coordinator {
namespace {

// "1e12": rank 1, stderr, 12.
std::optional<v1::LogPosition> ParsePosition(std::string_view text) {
  const size_t kind = text.find_first_of("oe");
  if (kind == std::string_view::npos) return std::nullopt;
  const auto rank = ParseInteger<int32_t>(text.substr(0, kind));
  const auto offset = ParseInteger<uint64_t>(text.substr(kind + 1));
  if (!rank || *rank < 0 || !offset) return std::nullopt;
  v1::LogPosition out;
  out.set_rank(*rank);
  out.set_stream(text[kind] == 'e' ? v1::LOG_STREAM_STDERR : v1::LOG_STREAM_STDOUT);
  out.set_offset(*offset);
  return out;
}

}  // namespace

std::optional<std::string> WriteLogCursor(uint64_t generation,
                                          const std::vector<v1::LogPosition>& positions) {
  std::string out = fmt::format("{}", generation);
  for (const v1::LogPosition& position : positions) {
    out += fmt::format(".{}{}{}", position.rank(),
                       position.stream() == v1::LOG_STREAM_STDERR ? 'e' : 'o', position.offset());
    if (out.size() > kMostCursorBytes) return std::nullopt;
  }
  return out;
}

absl::Status ReadLogCursor(std::string_view cursor, v1::ReadLogsRequest* request) {
  const size_t end = std::min(cursor.find('.'), cursor.size());
  const auto generation = ParseInteger<uint64_t>(cursor.substr(0, end));
  bool is_one = generation && *generation > 0;
  std::string_view rest = cursor.substr(end);
  while (is_one && !rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('.'));
    const auto position = ParsePosition(part);
    is_one = position.has_value();
    if (is_one) *request->add_positions() = *position;
    rest.remove_prefix(part.size());
  }
  if (!is_one) {
    return absl::InvalidArgumentError("after: write `next` of the last answer, unchanged");
  }
  if (request->generation() != 0 && request->generation() != *generation) {
    return absl::InvalidArgumentError(
        fmt::format("after is a place in generation {}, and generation={} is another one: leave "
                    "one of the two away",
                    *generation, request->generation()));
  }
  request->set_generation(*generation);
  return absl::OkStatus();
}

}  // namespace meshrun::coordinator
