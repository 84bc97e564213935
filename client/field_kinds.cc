#include "client/field_kinds.h"

#include <fmt/format.h>

#include <charconv>

#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"
#include "core/yaml/file_value.h"

namespace meshrun::client {
namespace {

// False: the text is not a whole number from `least` up.
template <typename Int>
bool ParseNumber(const std::string& text, Int least, Int* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc{} && end == text.data() + text.size() && *value >= least;
}

template <typename Int>
FieldSetter NumberOf(void (v1::JobSpec::*set)(Int), Int least, const std::string& example) {
  return {.from_flag = [=](std::string_view flag, const std::string& text, const JobContext&,
                           v1::JobSpec* spec) -> absl::Status {
            Int number{};
            if (!ParseNumber(text, least, &number)) {
              return absl::InvalidArgumentError(
                  fmt::format("{} {}: write a whole number{}", flag, text,
                              least < 0 ? "" : fmt::format(" from {} up", least)));
            }
            (spec->*set)(number);
            return absl::OkStatus();
          },
          .from_file = [=](const FileValue& value, v1::JobSpec* spec) -> absl::Status {
            Int number{};
            if (!value.node.IsScalar() || !ParseNumber(value.node.Scalar(), least, &number)) {
              return value.Wrong(
                  fmt::format("{} is not a whole number from {} up: write for example {}: {}",
                              value.node.IsScalar() ? "'" + value.node.Scalar() + "'" : "this",
                              least, value.key, example));
            }
            (spec->*set)(number);
            return absl::OkStatus();
          }};
}

}  // namespace

FieldSetter TextField(std::string* (v1::JobSpec::*field)(), const std::string& what_to_write) {
  return {.from_flag = [=](std::string_view, const std::string& text, const JobContext&,
                           v1::JobSpec* spec) -> absl::Status {
            *(spec->*field)() = text;
            return absl::OkStatus();
          },
          .from_file = [=](const FileValue& value, v1::JobSpec* spec) -> absl::Status {
            MESHRUN_ASSIGN_OR_RETURN(*(spec->*field)(), value.Text(what_to_write));
            return absl::OkStatus();
          }};
}

FieldSetter WordField(absl::Status (*parse)(std::string_view text, v1::JobSpec* spec),
                      const std::string& what_to_write) {
  return {.from_flag = [=](std::string_view flag, const std::string& text, const JobContext&,
                           v1::JobSpec* spec) { return Annotate(parse(text, spec), flag); },
          .from_file = [=](const FileValue& value, v1::JobSpec* spec) -> absl::Status {
            MESHRUN_ASSIGN_OR_RETURN(const std::string text, value.Text(what_to_write));
            const absl::Status status = parse(text, spec);
            return status.ok() ? status : value.Wrong(status);
          }};
}

FieldSetter NumberField(void (v1::JobSpec::*set)(uint32_t), uint32_t least,
                        const std::string& example) {
  return NumberOf(set, least, example);
}

FieldSetter NumberField(void (v1::JobSpec::*set)(int32_t), int32_t least,
                        const std::string& example) {
  return NumberOf(set, least, example);
}

FieldSetter DurationField(google::protobuf::Duration* (v1::JobSpec::*field)(),
                          const std::string& if_zero) {
  return {.from_flag = [=](std::string_view flag, const std::string& text, const JobContext&,
                           v1::JobSpec* spec) -> absl::Status {
            const auto duration = ParseDuration(text);
            if (!duration.ok()) return Annotate(duration.status(), flag);
            *(spec->*field)() = ToProtoDuration(*duration);
            return absl::OkStatus();
          },
          .from_file = [=](const FileValue& value, v1::JobSpec* spec) -> absl::Status {
            MESHRUN_ASSIGN_OR_RETURN(const std::string text,
                                     value.Text("write for example 10s, 2m or 1h30m"));
            const auto duration = ParseDuration(text);
            if (!duration.ok()) return value.Wrong(duration.status());
            if (duration->count() == 0 && !if_zero.empty()) return value.Wrong(if_zero);
            *(spec->*field)() = ToProtoDuration(*duration);
            return absl::OkStatus();
          }};
}

FieldSetter SwitchField(void (v1::JobSpec::*set)(bool)) {
  return {.from_flag = [=](std::string_view, const std::string&, const JobContext&,
                           v1::JobSpec* spec) -> absl::Status {
            (spec->*set)(true);
            return absl::OkStatus();
          },
          .from_file = [=](const FileValue& value, v1::JobSpec* spec) -> absl::Status {
            bool on = false;
            if (!value.node.IsScalar() || !YAML::convert<bool>::decode(value.node, on)) {
              return value.Wrong(fmt::format("write {0}: true or {0}: false", value.key));
            }
            (spec->*set)(on);
            return absl::OkStatus();
          }};
}

FieldSetter ListField(google::protobuf::RepeatedPtrField<std::string>* (v1::JobSpec::*field)(),
                      absl::Status (*check)(std::string_view text),
                      const std::string& what_to_write) {
  return {.from_flag = [=](std::string_view flag, const std::string& text, const JobContext&,
                           v1::JobSpec* spec) -> absl::Status {
            if (check != nullptr) MESHRUN_RETURN_IF_ERROR(Annotate(check(text), flag));
            *(spec->*field)()->Add() = text;
            return absl::OkStatus();
          },
          .from_file = [=](const FileValue& value, v1::JobSpec* spec) -> absl::Status {
            if (!value.node.IsSequence()) return value.Wrong(what_to_write);
            for (const YAML::Node& item : value.node) {
              if (!item.IsScalar() || item.Scalar().empty()) {
                return value.WrongAt(item, what_to_write);
              }
              const absl::Status status =
                  check == nullptr ? absl::OkStatus() : check(item.Scalar());
              if (!status.ok()) return value.WrongAt(item, std::string(status.message()));
              *(spec->*field)()->Add() = item.Scalar();
            }
            return absl::OkStatus();
          },
          .repeats = true};
}

}  // namespace meshrun::client
