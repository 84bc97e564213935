#include "parallel/manager/variable_reader.h"

#include <charconv>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "fmt/format.h"

namespace meshrun {

VariableReader::VariableReader(const EnvironmentLookup& lookup, LaunchMethod method,
                               std::string advice)
    : lookup_(lookup), method_(method), advice_(std::move(advice)) {}

std::string VariableReader::required_text(const std::string& name) {
  std::optional<std::string> value = lookup_(name);
  if (!value) missing(name);
  return value.value_or("");
}

std::optional<int> VariableReader::integer(const std::string& name, int minimum) {
  const std::optional<std::string> value = lookup_(name);
  if (!value) return std::nullopt;
  int parsed = 0;
  const char* end = value->data() + value->size();
  const auto [stop, error] = std::from_chars(value->data(), end, parsed);
  if (error != std::errc() || stop != end || parsed < minimum) {
    fail(fmt::format("{}=\"{}\" is not an integer of at least {}", name, *value, minimum));
    return std::nullopt;
  }
  return parsed;
}

std::optional<int> VariableReader::first_integer(std::initializer_list<const char*> names,
                                                 int minimum) {
  for (const char* name : names) {
    if (lookup_(name)) return integer(name, minimum);
  }
  return std::nullopt;
}

int VariableReader::required_integer(const std::string& name, int minimum) {
  if (!lookup_(name)) missing(name);
  return integer(name, minimum).value_or(minimum);
}

void VariableReader::port(const std::string& name, int& port) {
  const std::optional<std::string> value = lookup_(name);
  if (!value) return;
  absl::StatusOr<int> parsed = parse_port(name, *value);
  if (parsed.ok()) {
    port = *parsed;
  } else {
    fail(std::string(parsed.status().message()));
  }
}

void VariableReader::missing(const std::string& name) {
  fail(fmt::format("{} is not set, though {} launch was found or asked for: {}", name,
                   method_ == LaunchMethod::kEnv || method_ == LaunchMethod::kOpenMpi ||
                           method_ == LaunchMethod::kMpich
                       ? fmt::format("an {}", to_string(method_))
                       : fmt::format("a {}", to_string(method_)),
                   advice_));
}

void VariableReader::fail(std::string message) {
  if (error_.empty()) error_ = std::move(message);
}

absl::Status VariableReader::status() const {
  return error_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(error_);
}

}  // namespace meshrun
