// Finding programs, starting children, and waiting for the signal to stop.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::os {

// Absolute path of the running program.
std::string SelfPath();

// Finds a program of meshrun's own ("meshrun-worker"): beside the running one, in Bazel's output
// (../worker/), in ../libexec/meshrun, or in $PATH. NOT_FOUND lists the places that were tried.
absl::StatusOr<std::string> FindOwnProgram(std::string_view name);

// What execvp would run: with a slash relative to `working_dir`, else along `path_variable`.
// NOT_FOUND ("no such file"), PERMISSION_DENIED ("not executable: chmod +x ..."), INVALID_ARGUMENT
// (a directory, or empty).
absl::StatusOr<std::string> FindCommand(std::string_view command, const std::string& working_dir,
                                        std::string_view path_variable);

// As many descriptors as the system lets this process have, 1,048,576 at most. For processes that
// start no programs: some cannot do with descriptors above 1,023, and would inherit the limit.
void RaiseDescriptorLimit();

struct SpawnOptions {
  std::vector<std::string> argv;
  // Added to this process's environment.
  std::map<std::string, std::string> env;
  // Descriptors that the child keeps, at the same numbers; all others are closed on exec.
  std::vector<int> keep_fds;
  // -1: inherit. Both may be the same descriptor.
  int stdout_fd = -1;
  int stderr_fd = -1;
  // stdin is /dev/null always.
  // setsid(): terminal signals (Ctrl-C) do not reach the child.
  bool new_session = true;
  // With new_session: what the child leaves running there is its own affair. False: it is adopted
  // (children.h), and may be killed.
  bool owns_session = true;
};

// Safe in a process with threads. argv[0] is a path.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// Calls `on_end` once, on a thread of its own, when the other end of a pipe closes: by it a child
// learns that the process it works for is gone, however that process ended.
class Lifeline {
 public:
  Lifeline(UniqueFd read_end, std::function<void()> on_end);
  ~Lifeline();

 private:
  UniqueFd read_end_;
  UniqueFd stop_;
  std::thread thread_;
};

// Opens /dev/null for each of the descriptors 0, 1 and 2 that this process was started without.
// Otherwise the next file or socket would get that number and be used as a standard stream. With
// kRefuseWrites, writes to 1 or 2 then fail with EBADF, as they do on a closed descriptor.
// Descriptors above 2 stay as they are. If a library took one of the three numbers before main, the
// program is executed again with `argv` (null: it is not). Call first in main.
enum class MissingOutput { kDiscardWrites, kRefuseWrites };
void OpenMissingStandardStreams(MissingOutput output, char** argv);

// SIGTERM, SIGINT, SIGHUP and SIGQUIT, as torchrun's default has them, except those that are
// ignored: whoever started this process (nohup, a script's background job) wants it to survive
// them.
sigset_t TerminationSignals();
// Whether this process ignores the signal.
bool IsIgnored(int signal);
// Blocks them in this thread and those started after, and ignores SIGPIPE. `user_signals`: SIGUSR1
// and SIGUSR2 too. Call first in main.
void BlockTerminationSignals(bool user_signals = false);
void BlockSignals(const sigset_t& signals);
// Waits for one of them; returns its number. For the main thread of a daemon.
int WaitForTerminationSignal();

// "USR1", "SIGUSR1", "10". INVALID_ARGUMENT shows the right form.
absl::StatusOr<int> ParseSignal(std::string_view text);

}  // namespace meshrun::os
