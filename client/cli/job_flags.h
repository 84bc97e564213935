// The flags that say what a job is: the same on `run` and `submit`, with torchrun's spellings.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/flag_set.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

struct JobFlags {
  std::string nodes;
  std::string procs_per_node;
  std::string gpus_per_proc;
  std::string cpus_per_proc;
  std::string memory;
  std::string mesh;
  std::vector<std::string> env;
  // Part of the submitter's environment that goes with the job; a flag of `submit` alone.
  std::string exported;
  std::string role, event_log_handler, handled_signals;
  std::string name;
  std::string shipped_job;
  std::string working_dir;
  std::string max_restarts;
  std::string recovery, replace, grow, hang_timeout;
  std::string kill_grace;
  std::string queue_timeout;
  std::string priority;
  std::string time_limit;
  std::vector<std::string> constraints;
  std::vector<std::string> exclude_nodes;
  bool hold = false;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  // torchrun's; has no effect.
  bool standalone = false;
};

void AddJobFlags(FlagSet& flags, JobFlags* values);

// The surroundings in which flags are read, as a value: a test needs no environment.
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

// Flags and command on top of `spec` (empty, or from job.yaml), with defaults and checks.
// INVALID_ARGUMENT: the flag, what is wrong with it, and what to write.
absl::Status ApplyJobFlags(const JobFlags& flags, const std::vector<std::string>& command,
                           const JobContext& context, v1::JobSpec* spec);

// torchrun's flags that have no meaning here, because the coordinator does that work; they are
// accepted. Their names are added to *used when the user gave them.
void AddIgnoredTorchrunFlags(FlagSet& flags, std::vector<std::string>* used);

}  // namespace meshrun::client
