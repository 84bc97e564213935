#include "core/rpc/bounds.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/unknown_field_set.h>

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/mutex.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "meshrun/v1/store_service.pb.h"

namespace meshrun::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::Duration;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// meshrun/v1/bounds.proto. No extension is generated for them (tools/bazel/proto.bzl).
constexpr int kMaxBytes = 50100;
constexpr int kMaxItems = 50101;
constexpr int32_t kNanosOfSecond = 1'000'000'000;

struct Table;

struct FieldCheck {
  const FieldDescriptor* field = nullptr;
  FieldBounds bounds;
  // Table of the messages in it; null: it holds none.
  const Table* within = nullptr;
};

// The fields of one type of message that have something to check.
struct Table {
  std::vector<FieldCheck> fields;
};

// Builds each type's table once. Tables never go away.
class Tables {
 public:
  const Table& Of(const Descriptor* type) {
    MutexLock lock(mu_);
    return Find(type);
  }

 private:
  const Table& Find(const Descriptor* type) MESHRUN_REQUIRES(mu_) {
    const auto [found, is_new] = by_type_.try_emplace(type, nullptr);
    if (!is_new) return *found->second;
    // Known before its fields are: a type may contain itself.
    Table& table = tables_.emplace_back();
    found->second = &table;
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* const field = type->field(i);
      FieldCheck check{.field = field, .bounds = BoundsOf(*field)};
      // Entries of a map are messages with the fields `key` and `value`, which have no options.
      if (field->message_type() != nullptr && !field->is_map()) {
        check.within = &Find(field->message_type());
      } else if (field->is_map() && field->message_type()->map_value()->message_type() != nullptr) {
        check.within = &Find(field->message_type()->map_value()->message_type());
      }
      if (check.bounds.max_bytes > 0 || check.bounds.max_items > 0 || check.within != nullptr) {
        table.fields.push_back(check);
      }
    }
    return table;
  }

  Mutex mu_;
  std::unordered_map<const Descriptor*, const Table*> by_type_ MESHRUN_GUARDED_BY(mu_);
  std::deque<Table> tables_ MESHRUN_GUARDED_BY(mu_);
};

const Table& TableOf(const Descriptor* type) {
  static auto* const tables = new Tables();
  return tables->Of(type);
}

absl::Status TooMany(const FieldDescriptor* field, size_t has, std::string_view what, size_t most) {
  return absl::InvalidArgumentError(
      fmt::format("{} has {} {}, and at most {} are taken", field->name(), has, what, most));
}

absl::Status CheckString(const FieldCheck& check, const std::string& value) {
  if (check.bounds.max_bytes == 0 || value.size() <= check.bounds.max_bytes)
    return absl::OkStatus();
  return TooMany(check.field, value.size(), "bytes", check.bounds.max_bytes);
}

absl::Status CheckDuration(const FieldDescriptor& field, const Duration& value) {
  if (value.seconds() >= 0 && value.seconds() <= kMostDurationSeconds && value.nanos() >= 0 &&
      value.nanos() < kNanosOfSecond) {
    return absl::OkStatus();
  }
  const std::string nanos = value.nanos() == 0 ? "" : fmt::format(" and {} ns", value.nanos());
  return absl::InvalidArgumentError(
      fmt::format("{} is {} s{}, and only durations from 0 to {} s "
                  "are taken",
                  field.name(), value.seconds(), nanos, kMostDurationSeconds));
}

absl::Status Check(const Message& message, const Table& table, size_t* items);

// A message within a message.
absl::Status CheckWithin(const FieldCheck& check, const Message& value, size_t* items) {
  if (value.GetDescriptor() == Duration::descriptor()) {
    return CheckDuration(*check.field, static_cast<const Duration&>(value));
  }
  return Check(value, *check.within, items);
}

// An entry of a map: its key and its value.
absl::Status CheckEntry(const FieldCheck& check, const Message& entry, size_t* items) {
  const Reflection* const reflection = entry.GetReflection();
  for (int i = 0; i < entry.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const part = entry.GetDescriptor()->field(i);
    std::string scratch;
    if (part->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      MESHRUN_RETURN_IF_ERROR(
          CheckString(check, reflection->GetStringReference(entry, part, &scratch)));
    } else if (part->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && check.within != nullptr) {
      MESHRUN_RETURN_IF_ERROR(CheckWithin(check, reflection->GetMessage(entry, part), items));
    }
  }
  return absl::OkStatus();
}

// Typed, since reflection would copy the values, which can be large.
absl::Status CheckValues(const FieldCheck& check, const v1::SetValuesRequest& request) {
  for (const auto& [key, value] : request.values()) {
    MESHRUN_RETURN_IF_ERROR(CheckString(check, key));
    MESHRUN_RETURN_IF_ERROR(CheckString(check, value));
  }
  return absl::OkStatus();
}

absl::Status CheckRepeated(const FieldCheck& check, const Message& message, size_t* items) {
  const FieldDescriptor* const field = check.field;
  const Reflection* const reflection = message.GetReflection();
  const int count = reflection->FieldSize(message, field);
  *items += static_cast<size_t>(count);
  if (check.bounds.max_items > 0 && static_cast<uint32_t>(count) > check.bounds.max_items) {
    return TooMany(field, count, "items", check.bounds.max_items);
  }
  if (field->containing_type() == v1::SetValuesRequest::descriptor()) {
    return CheckValues(check, static_cast<const v1::SetValuesRequest&>(message));
  }
  if (field->is_map()) {
    const bool has_strings =
        field->message_type()->map_key()->cpp_type() == FieldDescriptor::CPPTYPE_STRING ||
        field->message_type()->map_value()->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    if (!has_strings && check.within == nullptr) return absl::OkStatus();
    for (int i = 0; i < count; ++i) {
      MESHRUN_RETURN_IF_ERROR(
          CheckEntry(check, reflection->GetRepeatedMessage(message, field, i), items));
    }
    return absl::OkStatus();
  }
  std::string scratch;
  for (int i = 0; check.bounds.max_bytes > 0 && i < count; ++i) {
    MESHRUN_RETURN_IF_ERROR(
        CheckString(check, reflection->GetRepeatedStringReference(message, field, i, &scratch)));
  }
  for (int i = 0; check.within != nullptr && i < count; ++i) {
    MESHRUN_RETURN_IF_ERROR(
        CheckWithin(check, reflection->GetRepeatedMessage(message, field, i), items));
  }
  return absl::OkStatus();
}

absl::Status Check(const Message& message, const Table& table, size_t* items) {
  const Reflection* const reflection = message.GetReflection();
  std::string scratch;
  for (const FieldCheck& check : table.fields) {
    const FieldDescriptor* const field = check.field;
    if (field->is_repeated()) {
      MESHRUN_RETURN_IF_ERROR(CheckRepeated(check, message, items));
    } else if (check.within != nullptr) {
      if (!reflection->HasField(message, field)) continue;
      MESHRUN_RETURN_IF_ERROR(CheckWithin(check, reflection->GetMessage(message, field), items));
    } else {
      MESHRUN_RETURN_IF_ERROR(
          CheckString(check, reflection->GetStringReference(message, field, &scratch)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

FieldBounds BoundsOf(const FieldDescriptor& field) {
  FieldBounds bounds;
  const google::protobuf::FieldOptions& options = field.options();
  const UnknownFieldSet& unknown = options.GetReflection()->GetUnknownFields(options);
  for (int i = 0; i < unknown.field_count(); ++i) {
    const UnknownField& option = unknown.field(i);
    if (option.type() != UnknownField::TYPE_VARINT) continue;
    if (option.number() == kMaxBytes) bounds.max_bytes = static_cast<uint32_t>(option.varint());
    if (option.number() == kMaxItems) bounds.max_items = static_cast<uint32_t>(option.varint());
  }
  return bounds;
}

absl::Status CheckBounds(const Message& message, size_t* items) {
  size_t counted = 0;
  return Check(message, TableOf(message.GetDescriptor()), items == nullptr ? &counted : items);
}

}  // namespace meshrun::rpc
