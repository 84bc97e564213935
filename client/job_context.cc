#include "client/job_context.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "core/env_entries.h"
#include "core/job_spec.h"
#include "core/os/process.h"
#include "core/status.h"

namespace meshrun::client {

JobContext RealJobContext() {
  JobContext context;
  std::error_code error;
  context.working_dir = std::filesystem::current_path(error).string();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    context.variables[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  context.has_gpu = ::access("/dev/nvidia0", F_OK) == 0;
  // As they were when the program began: 'meshrun run' takes its secret out of the environment.
  context.variable = [all = context.variables](const std::string& name) {
    const auto found = all.find(name);
    return found == all.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  context.find_program = [directory = context.working_dir](const std::string& program) {
    const char* path = std::getenv("PATH");
    return os::FindCommand(program, directory, path == nullptr ? "/usr/bin:/bin" : path).status();
  };
  return context;
}

absl::Status SetVariable(std::string_view flag, const std::string& text, const JobContext& context,
                         v1::JobSpec* spec) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: write NAME=VALUE, or NAME to pass yours on", flag, text));
  }
  if (IsSetForRanks(name)) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: {} is set by meshrun for each rank: leave it out, or take another name",
                    flag, text, name));
  }
  if (equals != std::string::npos) {
    SetEnv(*spec->mutable_env(), name, text.substr(equals + 1));
    return absl::OkStatus();
  }
  const auto value = context.variable(name);
  if (!value) {
    return absl::InvalidArgumentError(
        fmt::format("{} {}: {} is not set here: write {} {}=VALUE, or export it first", flag, name,
                    name, flag, name));
  }
  SetEnv(*spec->mutable_env(), name, *value);
  return absl::OkStatus();
}

absl::Status SetExported(const std::string& text, const JobContext& context, v1::JobSpec* spec) {
  if (text.empty() || text == "NONE") return absl::OkStatus();
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string word(rest.substr(0, comma));
    rest.remove_prefix(more ? comma + 1 : rest.size());
    if (word.empty()) {
      return absl::InvalidArgumentError(fmt::format(
          "--export {}: a name is empty: write ALL, NONE, or names with one comma between", text));
    }
    if (word == "NONE") {
      return absl::InvalidArgumentError(fmt::format("--export {}: NONE stands alone", text));
    }
    if (word != "ALL") {
      MESHRUN_RETURN_IF_ERROR(SetVariable("--export", word, context, spec));
      continue;
    }
    for (const auto& [name, value] : context.variables) {
      // Those of the submitter's own job, shell and launcher say nothing of this job.
      const bool own = IsSetForRanks(name) || name.starts_with("MESHRUN_") ||
                       name.starts_with("PET_") || name == "_" || name == "PWD" ||
                       name == "OLDPWD" || name == "SHLVL";
      if (!own) SetEnv(*spec->mutable_env(), name, value);
    }
  }
  return absl::OkStatus();
}

void PassVirtualEnv(const JobContext& context, v1::JobSpec* spec) {
  constexpr char kVariable[] = "VIRTUAL_ENV";
  if (FindEnv(spec->env(), kVariable) != nullptr || FindEnv(spec->env(), "PATH") != nullptr) return;
  const auto value = context.variable(kVariable);
  if (value && value->starts_with('/')) SetEnv(*spec->mutable_env(), kVariable, *value);
}

}  // namespace meshrun::client
