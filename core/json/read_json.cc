#include "core/json/read_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/utf8.h"

namespace meshrun {
namespace {

using google::protobuf::Descriptor;

// Depth of a text that is read; messages that people send have two.
constexpr int kMostDepth = 32;

std::vector<std::string> JsonNames(const Descriptor& type,
                                   std::span<const std::string_view> fields) {
  std::vector<std::string> out;
  for (const std::string_view field : fields) {
    const auto* const found = type.FindFieldByName(std::string(field));
    if (found != nullptr) out.push_back(found->json_name());
  }
  return out;
}

absl::Status CheckNames(const nlohmann::json& object, const std::vector<std::string>& names) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    return absl::InvalidArgumentError(
        names.empty() ? fmt::format("there is no field '{}': this body has none, write {{}}", name)
                      : fmt::format("there is no field '{}': this body has {}", name,
                                    fmt::join(names, ", ")));
  }
  return absl::OkStatus();
}

// protobuf says '(first_signal): invalid value "x" for type TYPE_INT32'.
std::string InJsonNames(std::string_view text) {
  const size_t end = text.find("): ");
  if (!text.starts_with('(') || end == std::string_view::npos) return EscapeControls(text);
  std::string out;
  for (const char c : text.substr(1, end - 1)) {
    if (!out.empty() && out.back() == '_') {
      out.back() = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    } else {
      out += c;
    }
  }
  return EscapeControls(out + std::string(text.substr(end + 1)));
}

}  // namespace

absl::Status ReadJson(std::string_view text, std::span<const std::string_view> fields,
                      google::protobuf::Message* message) {
  int most = 0;
  const auto depth = [&most](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    most = std::max(most, depth);
    return depth <= kMostDepth;
  };
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(text, depth);
  } catch (const nlohmann::json::parse_error& error) {
    return absl::InvalidArgumentError(
        fmt::format("the body is not JSON: byte {} cannot be read", error.byte));
  }
  if (most > kMostDepth) {
    return absl::InvalidArgumentError(
        fmt::format("the body is nested more than {} levels deep", kMostDepth));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError("the body is not an object in JSON: write {...}");
  }
  if (absl::Status status = CheckNames(value, JsonNames(*message->GetDescriptor(), fields));
      !status.ok()) {
    return status;
  }
  // It would clear the message first.
  const std::unique_ptr<google::protobuf::Message> read(message->New());
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(text.data(), text.size()), read.get());
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        InJsonNames(std::string_view(status.message().data(), status.message().size())));
  }
  message->MergeFrom(*read);
  return absl::OkStatus();
}

}  // namespace meshrun
