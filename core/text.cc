#include "core/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace meshrun {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Takes a decimal number off the front; false when there is none or it overflows.
bool TakeNumber(std::string_view& text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error != std::errc{}) return false;
  text.remove_prefix(end - text.data());
  return true;
}

}  // namespace

absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      fmt::format("'{}' is not a duration: write for example 5s, 250ms, 2m or 1h30m", text));
  static constexpr uint64_t kMaxMillis = uint64_t{1000} * 3600 * 24 * 3650;
  uint64_t total = 0;
  if (text.empty()) return wrong;
  while (!text.empty()) {
    uint64_t value = 0;
    if (!TakeNumber(text, &value)) return wrong;
    uint64_t unit = 1000;
    if (text.starts_with("ms")) {
      unit = 1;
      text.remove_prefix(2);
    } else if (!text.empty()) {
      switch (text[0]) {
        case 's':
          unit = 1000;
          break;
        case 'm':
          unit = 60 * 1000;
          break;
        case 'h':
          unit = 3600 * 1000;
          break;
        case 'd':
          unit = 24 * 3600 * 1000;
          break;
        default:
          return wrong;
      }
      text.remove_prefix(1);
    }
    if (value > kMaxMillis / unit) return wrong;
    total += value * unit;
  }
  return std::chrono::milliseconds(std::min(total, kMaxMillis));
}

std::string FormatDuration(std::chrono::nanoseconds duration) {
  const int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  if (ms < 1000) return fmt::format("{}ms", ms);
  if (ms < 60'000) {
    return ms % 1000 == 0 ? fmt::format("{}s", ms / 1000) : fmt::format("{:.1f}s", ms / 1000.0);
  }
  const int64_t s = ms / 1000;
  if (s < 3600)
    return s % 60 == 0 ? fmt::format("{}m", s / 60) : fmt::format("{}m{}s", s / 60, s % 60);
  if (s < 86400) {
    const int64_t m = s / 60 % 60;
    return m == 0 ? fmt::format("{}h", s / 3600) : fmt::format("{}h{}m", s / 3600, m);
  }
  return fmt::format("{}d{}h", s / 86400, s / 3600 % 24);
}

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      fmt::format("'{}' is not an amount of memory: write for example 512M, 4G or 1048576", text));
  uint64_t value = 0;
  if (!TakeNumber(text, &value)) return wrong;
  int shift = 0;
  if (!text.empty() && text != "B") {
    const size_t at = std::string_view("KMGT").find(text[0]);
    if (at == std::string_view::npos) return wrong;
    text.remove_prefix(1);
    if (!text.empty() && text != "B" && text != "i" && text != "iB") return wrong;
    shift = 10 * (static_cast<int>(at) + 1);
  }
  if (value > (UINT64_MAX >> shift)) return wrong;
  return value << shift;
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

absl::StatusOr<std::vector<int>> ParseRanks(std::string_view text) {
  std::set<int> ranks;
  while (true) {
    const size_t comma = text.find(',');
    std::string_view part = text.substr(0, comma);
    const absl::Status wrong = absl::InvalidArgumentError(
        fmt::format("'{}' is not a rank or a range of ranks: write for example 0,4-7", part));
    uint64_t first = 0;
    if (!TakeNumber(part, &first)) return wrong;
    uint64_t last = first;
    if (part.starts_with('-')) {
      part.remove_prefix(1);
      if (!TakeNumber(part, &last)) return wrong;
    }
    if (!part.empty() || last < first || last > 1'000'000) return wrong;
    for (uint64_t r = first; r <= last; ++r) ranks.insert(static_cast<int>(r));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return std::vector<int>(ranks.begin(), ranks.end());
}

std::string FormatRanks(const std::vector<int>& ranks) {
  std::string out;
  for (size_t i = 0; i < ranks.size();) {
    size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    if (!out.empty()) out += ',';
    out += i == j ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[j]);
    i = j + 1;
  }
  return out;
}

absl::StatusOr<std::vector<std::string>> ParseGpuIds(std::string_view text) {
  std::vector<std::string> ids;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view id = rest.substr(0, comma);
    if (id.empty() || id.find_first_of(" \t") != std::string_view::npos) {
      return absl::InvalidArgumentError(
          fmt::format("'{}': write numbers or UUIDs of GPUs, for example 1,3,5", text));
    }
    ids.emplace_back(id);
    if (comma == std::string_view::npos) return ids;
    rest.remove_prefix(comma + 1);
  }
}

bool NaturalLess(std::string_view a, std::string_view b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (IsDigit(a[i]) && IsDigit(b[j])) {
      size_t i_end = i;
      size_t j_end = j;
      while (i < a.size() && a[i] == '0') ++i;
      while (j < b.size() && b[j] == '0') ++j;
      for (i_end = i; i_end < a.size() && IsDigit(a[i_end]);) ++i_end;
      for (j_end = j; j_end < b.size() && IsDigit(b[j_end]);) ++j_end;
      if (i_end - i != j_end - j) return i_end - i < j_end - j;
      const int order = a.substr(i, i_end - i).compare(b.substr(j, j_end - j));
      if (order != 0) return order < 0;
      i = i_end;
      j = j_end;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;
}

}  // namespace meshrun
