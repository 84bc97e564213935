#include "core/checkpoint/json_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

using nlohmann::json;

// Bytes of a value from the file in a sentence.
constexpr size_t kMostShown = 200;

absl::Status Problem(std::string text) { return absl::DataLossError(std::move(text)); }

const char* NameOf(JsonKind kind) {
  if (kind == JsonKind::kText) return "a text";
  return kind == JsonKind::kList ? "a list" : "an object";
}

bool IsOf(const json& value, JsonKind kind) {
  if (kind == JsonKind::kText) return value.is_string();
  return kind == JsonKind::kList ? value.is_array() : value.is_object();
}

// Lists and objects may be large.
std::string Shown(const json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return std::string(Utf8Prefix(value.dump(), kMostShown));
}

}  // namespace

std::string JsonProblem(std::string_view text, size_t read, uint64_t begin) {
  if (text.empty()) return "it is empty";
  const std::string_view before = text.substr(0, read == 0 ? 0 : read - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::string in_line = line > 1 ? fmt::format(", line {}", line) : "";
  if (read > text.size()) {
    return fmt::format("it ends in the middle, after byte {}{}", begin + text.size() - 1, in_line);
  }
  const bool is_zero = read > 0 && text[read - 1] == '\0';
  return fmt::format("it is not JSON at byte {}{}{}", begin + before.size(), in_line,
                     is_zero ? ", which is 0" : "");
}

absl::StatusOr<json> ParseJson(std::string_view text) {
  try {
    return json::parse(text.begin(), text.end());
  } catch (const json::parse_error& error) {
    return Problem(JsonProblem(text, error.byte));
  } catch (const json::exception&) {
    return Problem("it has a number that is too large");
  }
}

absl::Status CheckJson(std::string_view name, const json& value, JsonKind kind) {
  if (IsOf(value, kind)) return absl::OkStatus();
  return Problem(
      fmt::format("{} is {}, not {}", Utf8Prefix(name, kMostShown), Shown(value), NameOf(kind)));
}

absl::StatusOr<const json*> JsonField(const json& object, const std::string& name) {
  const auto found = object.find(name);
  if (found == object.end()) return Problem("it has no " + name);
  return &*found;
}

absl::StatusOr<const json*> JsonField(const json& object, const std::string& name, JsonKind kind) {
  MESHRUN_ASSIGN_OR_RETURN(const json* value, JsonField(object, name));
  MESHRUN_RETURN_IF_ERROR(CheckJson(name, *value, kind));
  return value;
}

absl::StatusOr<const json*> OptionalJsonField(const json& object, const std::string& name,
                                              JsonKind kind) {
  static const auto* const kNoList = new json(json::array());
  static const auto* const kNoObject = new json(json::object());
  if (object.contains(name)) return JsonField(object, name, kind);
  return kind == JsonKind::kList ? kNoList : kNoObject;
}

}  // namespace meshrun
