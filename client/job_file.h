// job.yaml: a JobSpec in a file. Same field names as the message, with friendly forms of the
// values (client/job_fields.h has all of them):
//
//   name: geoid                      # default: from the command
//   command: ./train --steps 100     # or a list: [./train, --steps, 100]
//   job: geoid                       # or a shipped job; then `args` are its arguments
//   args: [--steps, 3000]
//   nodes: "1:4"                     # or min_nodes and max_nodes
//   procs_per_node: 2                # or gpu, cpu
//   gpus_per_proc: 1
//   cpus_per_proc: 1
//   memory: 4G                       # per rank
//   mesh: {dp: -1, spatial: 2}       # or "dp=-1,spatial=2"
//   env: {OMP_NUM_THREADS: 2}
//   working_dir: /data/run1
//   max_restarts: 3
//   kill_grace: 10s
//   queue_timeout: 1h
//   priority: 5
//
// Errors are INVALID_ARGUMENT, one sentence "job.yaml:3:17: procs_per_node: ...: what to write"; an
// unknown field names the nearest one. NOT_FOUND and PERMISSION_DENIED where the file cannot be
// read.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

// `name` names the file in errors. Fields that the file does not set stay unset.
absl::StatusOr<v1::JobSpec> ParseJobText(const std::string& text, std::string_view name);

// "-" reads standard input.
absl::StatusOr<v1::JobSpec> ReadJobFile(const std::string& path);

}  // namespace meshrun::client
