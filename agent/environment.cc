#include "agent/environment.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "core/status.h"

namespace meshrun::agent {
namespace {

absl::StatusOr<std::string> Text(const GetVariable& get, const char* name) {
  const char* const value = get(name);
  if (value != nullptr && *value != '\0') return std::string(value);
  return absl::InvalidArgumentError(fmt::format(
      "{} is not set, though MESHRUN_AGENT is: a rank's environment was passed on in part", name));
}

template <typename Number>
absl::StatusOr<Number> Parse(const GetVariable& get, const char* name) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string text, Text(get, name));
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && !text.starts_with('-'))
    return number;
  return absl::InvalidArgumentError(
      fmt::format("{} is '{}': it must be a number, 0 or more", name, text));
}

}  // namespace

absl::StatusOr<AgentEnvironment> ReadAgentEnvironment(const GetVariable& get) {
  AgentEnvironment out;
  MESHRUN_ASSIGN_OR_RETURN(out.address, Text(get, "MESHRUN_AGENT"));
  if (!out.address.starts_with("unix:")) {
    return absl::InvalidArgumentError(
        fmt::format("MESHRUN_AGENT is '{}': it must be unix:PATH", out.address));
  }
  MESHRUN_ASSIGN_OR_RETURN(out.job_id, Text(get, "MESHRUN_JOB_ID"));
  MESHRUN_ASSIGN_OR_RETURN(out.generation, Parse<uint64_t>(get, "MESHRUN_GENERATION"));
  MESHRUN_ASSIGN_OR_RETURN(out.rank, Parse<int>(get, "RANK"));
  MESHRUN_ASSIGN_OR_RETURN(out.token, Text(get, "MESHRUN_TOKEN"));
  if (const char* const path = get("MESHRUN_REPORT")) out.report_socket = path;
  return out;
}

}  // namespace meshrun::agent
