// Whole numbers in text that comes from a user, a file or the kernel.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace meshrun {

// The decimal integer that all of `text` is; absent if the text is anything else (a sign '+', a
// space, nothing), or if the number does not fit into an Int. Unlike scanf and atoi it never wraps.
template <typename Int>
std::optional<Int> ParseInteger(std::string_view text) {
  Int number{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc{} || end != last) return std::nullopt;
  return number;
}

}  // namespace meshrun
