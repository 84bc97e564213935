// The cluster of `meshrun dev`: a coordinator and workers on this host that stay when the command
// ends. Its state, logs, the coordinator's socket and endpoints.json are in one directory that only
// this user can enter, so that every later command of this user finds it, and nobody else's.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun::client {

class DevCluster {
 public:
  struct Process {
    std::string name;
    pid_t pid = 0;
    // Start time of the process in clock ticks: a pid alone may come to mean another process.
    uint64_t start_ticks = 0;
    std::string log_path;
    bool running = false;
  };
  struct State {
    // Empty: never started, or down.
    std::string address;
    std::optional<Process> coordinator;
    std::vector<Process> workers;
    // As Up was told; 0: the workers' own choice.
    uint32_t slots = 0;
    bool running() const { return coordinator && coordinator->running; }
    // Some process of it lives, the coordinator or a worker.
    bool alive() const;
  };
  // As many workers as there were, or 1.
  static constexpr uint32_t kAsBefore = UINT32_MAX;
  struct UpOptions {
    uint32_t workers = kAsBefore;
    // 0: as before, or the workers' own choice.
    uint32_t slots = 0;
  };

  // $XDG_STATE_HOME/meshrun/dev, or ~/.local/state/meshrun/dev.
  static absl::StatusOr<std::string> DefaultDirectory();

  explicit DevCluster(std::string directory) : directory_(std::move(directory)) {}
  const std::string& directory() const { return directory_; }

  State Read() const;
  // Starts what is missing, on the state that it left; what lives is not touched, and jobs that run
  // go on. FAILED_PRECONDITION: more workers run than asked for, or they run with other slots.
  absl::StatusOr<State> Up(const UpOptions& options);
  // Workers first, each with time to stop its ranks. `purge` removes jobs and logs too. Returns the
  // processes that it has stopped.
  absl::StatusOr<State> Down(bool purge);

 private:
  absl::Status Write(const State& state) const;
  absl::StatusOr<Process> StartProcess(const std::string& program, const std::string& name,
                                       std::vector<std::string> arguments, std::string* ready);

  const std::string directory_;
};

}  // namespace meshrun::client
