// A job on this host, or on this and others, with a cluster of its own that ends with it: what
// `meshrun run` does, for the commands that run a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/job_flags.h"
#include "client/cli/rendezvous.h"
#include "client/cli/run_output.h"

namespace meshrun::client {

struct RunFlags {
  JobFlags job;
  RunOutputFlags output;
  uint32_t slots = 0;
  // GPUs of this host that ranks may have, by number or UUID. Empty: all.
  std::string gpu_ids;
  bool trace = false;
  bool leave_on_signal = false;
  std::vector<std::string> ignored;
  RendezvousFlags rendezvous;
  std::string format;
  std::vector<std::string> command;
};

// Before the process has threads. Returns the exit code.
int RunJob(const RunFlags& flags);

}  // namespace meshrun::client
