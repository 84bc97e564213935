// One of meshrun's daemons, started by this process. It writes a line to a pipe when it serves. It
// logs to a file; when it does not start, the error shows the end of that file.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::client {

// Begins each line of a log that an error's text ends with.
inline constexpr std::string_view kLogLine = "\n    | ";

class DaemonProcess {
 public:
  struct Options {
    // "meshrun-coordinator"; found by os::FindOwnProgram.
    std::string program;
    std::vector<std::string> arguments;
    std::string log_path;
    // Read end of a pipe that the daemon watches; -1: it outlives this process.
    int lifeline_fd = -1;
    // Other descriptors that the daemon keeps.
    std::vector<int> keep_fds = {};
  };

  // NOT_FOUND: not installed. Returns before the daemon serves.
  static absl::StatusOr<DaemonProcess> Start(const Options& options);

  // The line that the daemon writes once it serves: one JSON object. UNAVAILABLE: it ended before.
  // DEADLINE_EXCEEDED: it wrote nothing. Both show the end of its log.
  absl::StatusOr<std::string> WaitReady(std::chrono::nanoseconds timeout);

  pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  int ended_fd() const { return pidfd_.get(); }
  // False when it still runs after `timeout`.
  bool WaitEnded(std::chrono::nanoseconds timeout);
  void Signal(int signal);
  // "meshrun-worker ended with SIGKILL; its log ends: ..." for one that has.
  std::string DescribeEnd();

 private:
  DaemonProcess() = default;

  std::string program_;
  std::string log_path_;
  pid_t pid_ = -1;
  os::UniqueFd pidfd_;
  os::UniqueFd ready_;
  // As waitpid gives it; -1 until reaped.
  int status_ = -1;
};

// The last `lines` lines of a log, for an error; empty when there are none.
std::string LogTail(const std::string& path, int lines);

// A pidfd for any process, to wait for the end of one that is not a child.
os::UniqueFd OpenPid(pid_t pid);
// Waits for a descriptor to become readable. False after `timeout`.
bool WaitReadable(int fd, std::chrono::nanoseconds timeout);

}  // namespace meshrun::client
