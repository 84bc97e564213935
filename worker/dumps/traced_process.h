// A process while a debugger looks at it. One that the debugger leaves stopped goes on; one that
// somebody has paused stays so.
//
// PTRACE_ATTACH sends a SIGSTOP. It stops the process for ever if the debugger ends before it has
// waited for that stop: in the moment in which it attaches to many threads, or much later where a
// thread is in a call of the kernel that no signal ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace meshrun::worker {

// Says who traces the process, so that no debugger can: "gdb (process 12) traces it, ...". Empty
// where nobody does.
std::string DescribeTracer(pid_t pid);

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
