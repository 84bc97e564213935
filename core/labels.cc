#include "core/labels.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshrun {
namespace {

constexpr size_t kLongestWord = 63;

bool IsWord(std::string_view text) {
  return text.size() <= kLongestWord && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-' || c == '/';
         });
}

bool IsName(std::string_view text) { return !text.empty() && IsWord(text); }

// What a constraint says: a label's name, its value, and whether that must not hold.
struct Parts {
  std::string_view name;
  std::string_view value;
  bool has_value = false;
  bool negated = false;
};

Parts Split(std::string_view text) {
  Parts parts;
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    parts.negated = text.starts_with('!');
    parts.name = text.substr(parts.negated ? 1 : 0);
    return parts;
  }
  parts.has_value = true;
  parts.negated = equals > 0 && text[equals - 1] == '!';
  parts.name = text.substr(0, equals - (parts.negated ? 1 : 0));
  parts.value = text.substr(equals + 1);
  return parts;
}

}  // namespace

absl::StatusOr<std::pair<std::string, std::string>> ParseLabel(std::string_view text) {
  const size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  if (!IsName(name) || !IsWord(value)) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not a label: write NAME=VALUE or NAME with letters, digits, '.', '_', '-' and "
        "'/', for example zone=a",
        text));
  }
  return std::pair(std::string(name), std::string(value));
}

absl::Status CheckConstraint(std::string_view text) {
  const Parts parts = Split(text);
  if (IsName(parts.name) && IsWord(parts.value)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is not a constraint: write zone=a, zone!=a, nvlink (there is such a label) or !spot "
      "(there is none)",
      text));
}

bool Satisfies(const Labels& labels, std::string_view constraint) {
  const Parts parts = Split(constraint);
  const auto found = labels.find(std::string(parts.name));
  const bool holds = found != labels.end() && (!parts.has_value || found->second == parts.value);
  return holds != parts.negated;
}

}  // namespace meshrun
