// A process while a debugger looks at it. One that the debugger leaves stopped goes on; one that
// somebody has paused stays so.
//
// PTRACE_ATTACH sends a SIGSTOP. It stops the process for ever if the debugger ends before it has
// waited for that stop: in the moment in which it attaches to many threads, or much later where a
// thread is in a call of the kernel that no signal ends.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace meshrun::worker {

class TracedProcess {
 public:
  // Before the debugger starts.
  explicit TracedProcess(pid_t pid);
  // While it still runs: has somebody paused the process meanwhile?
  void LookAgain();
  // After it has ended without success.
  void LetGo() const;

 private:
  const pid_t pid_;
  const uint64_t start_ticks_;
  bool paused_;
};

}  // namespace meshrun::worker
