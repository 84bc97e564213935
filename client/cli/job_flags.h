// The flags that say what a job is: the same on `run` and `submit`, with torchrun's spellings.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/flag_set.h"
#include "client/job_context.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

struct JobFlags {
  // What was given for the flags of client/job_fields.h, by their first names: "--nodes". A switch
  // has one value when it was given.
  std::map<std::string, std::vector<std::string>, std::less<>> fields;
  bool Given(std::string_view flag) const;

  // The rest decides how the command and the environment become those of the job.
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::string role;
  // Part of the submitter's environment that goes with the job; a flag of `submit` alone.
  std::string exported;
  // torchrun's; these are checked, or have no effect.
  std::string event_log_handler, handled_signals, shutdown_timeout;
  bool standalone = false;
};

void AddJobFlags(FlagSet& flags, JobFlags* values);

// Flags and command on top of `spec` (empty, or from job.yaml), with defaults and checks.
// INVALID_ARGUMENT: the flag, what is wrong with it, and what to write.
absl::Status ApplyJobFlags(const JobFlags& flags, const std::vector<std::string>& command,
                           const JobContext& context, v1::JobSpec* spec);

// torchrun's flags that have no meaning here, because the coordinator does that work; they are
// accepted. Their names are added to *used when the user gave them.
void AddIgnoredTorchrunFlags(FlagSet& flags, std::vector<std::string>* used);

}  // namespace meshrun::client
