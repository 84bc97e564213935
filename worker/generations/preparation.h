// What a file system may hold up when a generation is prepared: its directories and files, its
// sockets, its supervisor's program. Runs on a thread of FileTasks; the daemon's loop takes the
// result.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/mutex.h"
#include "core/os/fd.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/cgroups/cgroups.h"
#include "worker/launch/launch_plan.h"
#include "worker/supervisor/terminal.h"

namespace meshrun::worker {

// How supervisors are started on this host.
struct SupervisorProgram {
  // Path of the running program: supervisors are the same program.
  std::string path;
  // Read end of the daemon's own lifeline, -1 when it has none: handed down.
  int lifeline_fd = -1;
  bool end_with_daemon = false;
  // What one rank reads from, or where each rank's FIFO is; -1 and empty: /dev/null.
  int stdin_fd = -1;
  int stdin_rank = 0;
  std::string stdin_directory = "";
  // Ranks write to pseudo-terminals of this size; absent: to pipes.
  std::optional<TerminalSize> terminal = std::nullopt;
};

// One preparation. Run is called once; Doing and GiveUp from any thread; the rest is read when Run
// has returned.
class Preparation {
 public:
  struct Plan {
    v1::ProcessesRecord record;
    v1::SupervisorLaunch launch;
    GenerationPaths paths;
    SupervisorProgram program;
    // Makes the one that the ranks run in. A copy: a file system may hold a preparation beyond the
    // daemon's end.
    Cgroups cgroups;
    std::string node_id;
    v1::ResourceLimits limits;
    // Where the job's ranks reach the daemon. Empty: that socket is open already.
    std::string agent_socket;
  };

  explicit Preparation(Plan plan) : plan_(std::move(plan)) {}
  // Removes the files again when it fails.
  void Run();
  // The path, or the program, that is being waited for.
  std::string Doing() const;
  // No supervisor is started from now on.
  void GiveUp() { given_up_ = true; }

  const Plan& plan() const { return plan_; }
  // The one that is prepared.
  const v1::GenerationRecord& generation() const { return plan_.record.generations(0); }
  // Errors: from the file system and from the start of the supervisor; CANCELLED after GiveUp.
  absl::Status status;
  // To the supervisor, which is pid.
  os::UniqueFd connection;
  pid_t pid = -1;
  v1::ControlGroup cgroup;
  // Listens at agent_socket.
  os::UniqueFd agent_listener;

 private:
  std::string CgroupName() const;
  absl::Status Write();
  void Begin(const std::string& what);

  const Plan plan_;
  std::atomic<bool> given_up_{false};
  mutable Mutex mu_;
  std::string doing_ MESHRUN_GUARDED_BY(mu_);
};

// Writes the record of rank processes, for a daemon that is started again. Blocks.
absl::Status WriteRecord(const std::string& directory, const v1::ProcessesRecord& record);

}  // namespace meshrun::worker
