#include "core/json/read_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/parse_integer.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::util::TimeUtil;
using ReadValue = nlohmann::json;

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

absl::Status CheckNames(const ReadValue& object, const std::vector<std::string>& names) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    return absl::InvalidArgumentError(
        names.empty() ? fmt::format("there is no field '{}': this body has none, write {{}}", name)
                      : fmt::format("there is no field '{}': this body has {}", name,
                                    fmt::join(names, ", ")));
  }
  return absl::OkStatus();
}

absl::Status Wrong(std::string_view name, std::string_view write) {
  return absl::InvalidArgumentError(fmt::format("{}: write {}", name, write));
}

template <typename Int>
bool Fits(const ReadValue& value) {
  constexpr Int kLeast = std::numeric_limits<Int>::min();
  constexpr Int kMost = std::numeric_limits<Int>::max();
  // Beyond it a real number does not say which whole number it is.
  constexpr double kExact = 1LL << 53;
  if (value.is_number_float()) {
    const double real = value.get<double>();
    return std::abs(real) < kExact && real == std::floor(real) &&
           real <= static_cast<double>(kMost) && real >= static_cast<double>(kLeast);
  }
  if (value.is_number_unsigned()) return std::cmp_less_equal(value.get<uint64_t>(), kMost);
  return value.is_number_integer() && std::cmp_greater_equal(value.get<int64_t>(), kLeast);
}

template <typename Int>
absl::Status CheckInteger(std::string_view name, const ReadValue& value) {
  if (Fits<Int>(value)) return absl::OkStatus();
  return Wrong(name, fmt::format("a whole number from {} to {}, without quotes",
                                 std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max()));
}

absl::Status CheckReal(std::string_view name, const ReadValue& value) {
  if (value.is_number() || value == "NaN" || value == "Infinity" || value == "-Infinity") {
    return absl::OkStatus();
  }
  return Wrong(name, R"(a number, or "NaN", "Infinity" or "-Infinity")");
}

absl::Status CheckEnum(std::string_view name, const EnumDescriptor& type, const ReadValue& value) {
  if (value.is_string() && type.FindValueByName(value.get<std::string>()) != nullptr) {
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
  return Wrong(name, fmt::format(R"(one of "{}")", fmt::join(names, R"(", ")")));
}

// "300s" or "0.5s": digits, up to nine more behind a point, and an s.
bool IsDuration(std::string_view text) {
  const auto take_digits = [&text](size_t most) {
    const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
    const bool fits = end > 0 && end <= most;
    text.remove_prefix(end);
    return fits;
  };
  const std::string_view whole = text.substr(0, text.find_first_of(".s"));
  // core/rpc/bounds.h has the same limit.
  if (!take_digits(10)) return false;
  if (ParseInteger<int64_t>(whole).value_or(kMostDurationSeconds + 1) > kMostDurationSeconds) {
    return false;
  }
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!take_digits(9)) return false;
  }
  return text == "s";
}

absl::Status CheckDuration(std::string_view name, const ReadValue& value) {
  if (value.is_string() && IsDuration(value.get_ref<const std::string&>())) return absl::OkStatus();
  return Wrong(name, R"(seconds with an s, a hundred years at most, such as "300s" or "0.5s")");
}

absl::Status CheckTimestamp(std::string_view name, const ReadValue& value) {
  google::protobuf::Timestamp read;
  if (value.is_string() && TimeUtil::FromString(value.get<std::string>(), &read)) {
    return absl::OkStatus();
  }
  return Wrong(name, R"(a time such as "2026-11-23T07:15:00Z")");
}

absl::Status CheckFields(const std::string& at, const Descriptor& type, const ReadValue& object);

// protobuf's parser would take "yes" for true, 1 for text, "1" for a number.
absl::Status CheckOne(const std::string& name, const FieldDescriptor& field,
                      const ReadValue& value) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return value.is_boolean() ? absl::OkStatus() : Wrong(name, "true or false, without quotes");
    case FieldDescriptor::CPPTYPE_STRING:
      return value.is_string() ? absl::OkStatus() : Wrong(name, "text, in quotes");
    case FieldDescriptor::CPPTYPE_INT32:
      return CheckInteger<int32_t>(name, value);
    case FieldDescriptor::CPPTYPE_INT64:
      return CheckInteger<int64_t>(name, value);
    case FieldDescriptor::CPPTYPE_UINT32:
      return CheckInteger<uint32_t>(name, value);
    case FieldDescriptor::CPPTYPE_UINT64:
      return CheckInteger<uint64_t>(name, value);
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return CheckReal(name, value);
    case FieldDescriptor::CPPTYPE_ENUM:
      return CheckEnum(name, *field.enum_type(), value);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  const Descriptor& type = *field.message_type();
  if (type.full_name() == "google.protobuf.Duration") return CheckDuration(name, value);
  if (type.full_name() == "google.protobuf.Timestamp") return CheckTimestamp(name, value);
  if (!value.is_object()) return Wrong(name, "an object: {...}");
  return CheckFields(name + ".", type, value);
}

absl::Status CheckField(const std::string& name, const FieldDescriptor& field,
                        const ReadValue& value) {
  if (value.is_null()) return absl::OkStatus();
  if (field.is_map()) {
    if (!value.is_object()) return Wrong(name, "an object: {...}");
    for (const auto& [key, item] : value.items()) {
      MESHRUN_RETURN_IF_ERROR(CheckOne(fmt::format("{}.{}", name, EscapeControls(key)),
                                       *field.message_type()->map_value(), item));
    }
    return absl::OkStatus();
  }
  if (!field.is_repeated()) return CheckOne(name, field, value);
  if (!value.is_array()) return Wrong(name, "a list: [...]");
  for (size_t i = 0; i < value.size(); ++i) {
    MESHRUN_RETURN_IF_ERROR(CheckOne(fmt::format("{}[{}]", name, i), field, value[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckFields(const std::string& at, const Descriptor& type, const ReadValue& object) {
  for (const auto& [name, value] : object.items()) {
    const FieldDescriptor* field = nullptr;
    for (int i = 0; i < type.field_count() && field == nullptr; ++i) {
      if (type.field(i)->json_name() == name) field = type.field(i);
    }
    const std::string whole = at + EscapeControls(name);
    if (field == nullptr) {
      return absl::InvalidArgumentError(fmt::format("there is no field '{}'", whole));
    }
    MESHRUN_RETURN_IF_ERROR(CheckField(whole, *field, value));
  }
  return absl::OkStatus();
}

// Looks at a text while nlohmann reads it: what its tree no longer shows.
class TextCheck {
 public:
  // nlohmann's callback. False: this part is left out of the tree.
  bool OnPart(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& part) {
    using Event = nlohmann::json::parse_event_t;
    depth_ = std::max(depth_, depth);
    if (depth > kMostDepth) return false;
    if (event == Event::object_start) {
      keys_[static_cast<size_t>(depth)].clear();
    } else if (event == Event::key) {
      // The depth of a key is that of the values in its object.
      const auto& key = part.get_ref<const std::string&>();
      if (!keys_[static_cast<size_t>(depth) - 1].insert(key).second && !twice_) twice_ = key;
    }
    return true;
  }
  absl::Status Result() const {
    if (depth_ > kMostDepth) {
      return absl::InvalidArgumentError(
          fmt::format("the body is nested more than {} levels deep", kMostDepth));
    }
    // The tree has the last one's value, and another reader may take the first one's.
    if (twice_) {
      return absl::InvalidArgumentError(fmt::format(
          "an object of the body has '{}' twice: write it once", EscapeControls(*twice_)));
    }
    return absl::OkStatus();
  }

 private:
  int depth_ = 0;
  // Those of the open object of each depth.
  std::array<std::set<std::string>, kMostDepth + 1> keys_;
  std::optional<std::string> twice_;
};

}  // namespace

absl::Status ReadJson(std::string_view text, std::span<const std::string_view> fields,
                      google::protobuf::Message* message) {
  TextCheck check;
  ReadValue value;
  try {
    value = ReadValue::parse(
        text, [&check](int depth, nlohmann::json::parse_event_t event, nlohmann::json& part) {
          return check.OnPart(depth, event, part);
        });
  } catch (const nlohmann::json::parse_error& error) {
    return absl::InvalidArgumentError(
        fmt::format("the body is not JSON: byte {} cannot be read", error.byte));
  } catch (const nlohmann::json::out_of_range&) {
    return absl::InvalidArgumentError(
        "the body has a number that is too large: write at most 1e308");
  }
  MESHRUN_RETURN_IF_ERROR(check.Result());
  if (!value.is_object()) {
    return absl::InvalidArgumentError("the body is not an object in JSON: write {...}");
  }
  MESHRUN_RETURN_IF_ERROR(CheckNames(value, JsonNames(*message->GetDescriptor(), fields)));
  MESHRUN_RETURN_IF_ERROR(CheckFields("", *message->GetDescriptor(), value));
  // It would clear the message first.
  const std::unique_ptr<google::protobuf::Message> read(message->New());
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(text.data(), text.size()), read.get());
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        EscapeControls(std::string_view(status.message().data(), status.message().size())));
  }
  message->MergeFrom(*read);
  return absl::OkStatus();
}

}  // namespace meshrun
