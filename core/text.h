// Small conversions between text and values. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun {

// "5s", "250ms", "2m", "1h30m", "12" (seconds). INVALID_ARGUMENT shows the right form.
absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text);
// The shortest of the forms above, for people: "5s", "1h30m", "250ms".
std::string FormatDuration(std::chrono::nanoseconds duration);

// "512M", "4G", "4GiB", "1048576". Powers of 1024. INVALID_ARGUMENT shows the right form.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);
std::string FormatBytes(uint64_t bytes);

// "0,2-5" -> {0, 2, 3, 4, 5}, sorted, without repeats. INVALID_ARGUMENT names the wrong part.
absl::StatusOr<std::vector<int>> ParseRanks(std::string_view text);
// {0, 2, 3, 4} -> "0,2-4".
std::string FormatRanks(const std::vector<int>& ranks);

// "1,3,5" or UUIDs -> each of them, in this order. INVALID_ARGUMENT: nothing stands between two
// commas.
absl::StatusOr<std::vector<std::string>> ParseGpuIds(std::string_view text);

// True when a sorts before b with runs of digits compared as numbers: "node9" before "node10".
bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace meshrun
