// What of a longer text goes where one short line is asked for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace meshrun::jobs {

// The text before the first line break, cut to at most `limit` bytes between characters of UTF-8.
inline std::string first_line(std::string_view text, size_t limit) {
  text = text.substr(0, text.find_first_of("\r\n"));
  if (text.size() > limit) {
    const auto continues = [&](size_t at) {
      return (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
    };
    while (limit > 0 && continues(limit)) --limit;
    text = text.substr(0, limit);
  }
  return std::string(text);
}

}  // namespace meshrun::jobs
