// Starts one rank: its own session, output appended to its files, killed with the supervisor.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "core/env_entries.h"
#include "core/os/fd.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

// A file of a rank's output, for whoever copies to it. `user`: who then owns it; null: this
// process's.
absl::StatusOr<os::UniqueFd> OpenOutput(const std::string& path, const v1::RankUser* user);

// A rank's ends of its standard streams. Without `in`: this process's standard input.
struct RankStreams {
  os::UniqueFd in, out, err;
};

// Forks and executes. `environment` is added to the launch's own. A program that cannot be executed
// says so on the rank's stderr and exits 127 (not found) or 126, as a shell would.
//
// Only from the first thread, with no other that takes locks: the child runs ordinary code before
// exec, and PDEATHSIG is bound to the thread that forks. Errors: those of files and of fork().
// `user`: the rank runs as that one; null: as this process. `cgroup`: that it runs in.
absl::StatusOr<pid_t> StartRank(const v1::RankLaunch& launch, const EnvEntries& environment,
                                const RankStreams& streams, const v1::RankUser* user = nullptr,
                                const v1::ControlGroup& cgroup = {});

// The environment entry that marks this rank: only its process and what that starts have it.
inline std::string EntryOf(const v1::RankLaunch& launch) {
  return "MESHRUN_REPORT=" + launch.report_socket();
}

}  // namespace meshrun::worker
