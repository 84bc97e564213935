// Starts one rank: its own session, output appended to its files, killed with the supervisor.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

// Forks and executes. `environment` is added to the launch's own. A program that cannot be executed
// says so on the rank's stderr and exits 127 (not found) or 126, as a shell would.
//
// Only for a process with one thread: the child runs ordinary code before exec, and PDEATHSIG is
// bound to the thread that forks. Errors: those of the output files and of fork().
// `user`: the rank runs as that one, who then owns its files; null: as this process.
absl::StatusOr<pid_t> StartRank(const v1::RankLaunch& launch,
                                const google::protobuf::Map<std::string, std::string>& environment,
                                const v1::RankUser* user = nullptr);

// An entry of the environment that this process has, and what it starts inherits, and no other.
inline std::string EntryOf(const v1::RankLaunch& launch) {
  return "MESHRUN_REPORT=" + launch.report_socket();
}

}  // namespace meshrun::worker
