// The surroundings in which the flags of a job are read, as a value: a test needs no environment.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

struct JobContext {
  // Empty: it has been deleted.
  std::string working_dir;
  bool has_gpu = false;
  std::function<std::optional<std::string>(const std::string&)> variable;
  // All of them, for --export ALL.
  std::map<std::string, std::string> variables;
  // OK when a rank could start this program, as far as this host can tell.
  std::function<absl::Status(const std::string& program)> find_program;
};
JobContext RealJobContext();

// --env: "NAME=VALUE", or "NAME" for the submitter's own value.
// INVALID_ARGUMENT: `flag`, what is wrong with `text`, and what to write.
absl::Status SetVariable(std::string_view flag, const std::string& text, const JobContext& context,
                         v1::JobSpec* spec);
// --export as Slurm has it: ALL, NONE, or names with or without values; ALL may stand among them.
// INVALID_ARGUMENT as above.
absl::Status SetExported(const std::string& text, const JobContext& context, v1::JobSpec* spec);

// Sends the submitter's VIRTUAL_ENV along, unless the job says itself what that or PATH is. Workers
// of the same user look for programs there first.
void PassVirtualEnv(const JobContext& context, v1::JobSpec* spec);

}  // namespace meshrun::client
