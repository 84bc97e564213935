#include "worker/dumps/traced_process.h"

#include <fmt/format.h>
#include <signal.h>

#include <cstdlib>
#include <string>

#include "core/os/process_stat.h"
#include "worker/dumps/proc_files.h"

namespace meshrun::worker {
namespace {

// 0: it is gone.
uint64_t StartTicks(pid_t pid) {
  const auto stat = os::ReadProcessStat(pid);
  return stat ? stat->start_ticks : 0;
}

// `field`: a mask of signals.
bool HasStop(const std::string& status, const char* field) {
  const std::string mask = StatusField(status, field);
  return ((std::strtoull(mask.c_str(), nullptr, 16) >> (SIGSTOP - 1)) & 1) != 0;
}

// Signals that people send wait for the process, and that of PTRACE_ATTACH for a thread.
bool IsPaused(pid_t pid) {
  for (const std::string& thread : ThreadDirectories(pid)) {
    const std::string status = ReadProcFile(thread + "/status");
    if (StatusField(status, "State").starts_with('T') || HasStop(status, "ShdPnd")) return true;
  }
  return false;
}

// It is stopped, or may be about to: what a debugger's end has woken is running until it stops.
bool MayStop(pid_t pid) {
  for (const std::string& thread : ThreadDirectories(pid)) {
    const std::string status = ReadProcFile(thread + "/status");
    // Another debugger's, which would be told of our signal.
    if (StatusField(status, "TracerPid") != "0") return false;
    const std::string state = StatusField(status, "State");
    if (state.starts_with('T') || state.starts_with('R') || HasStop(status, "SigPnd")) return true;
  }
  return false;
}

}  // namespace

std::string DescribeTracer(pid_t pid) {
  const std::string tracer =
      StatusField(ReadProcFile(fmt::format("/proc/{}/status", pid)), "TracerPid");
  if (tracer == "0" || tracer == "?") return "";
  std::string name = ReadProcFile(fmt::format("/proc/{}/comm", tracer));
  while (name.ends_with('\n')) name.pop_back();
  return fmt::format("{} (process {}) traces it, and a process has one debugger at a time",
                     name.empty() ? "a program" : name, tracer);
}

TracedProcess::TracedProcess(pid_t pid)
    : pid_(pid), start_ticks_(StartTicks(pid)), paused_(IsPaused(pid)) {}

void TracedProcess::LookAgain() { paused_ = paused_ || IsPaused(pid_); }

void TracedProcess::LetGo() const {
  if (paused_ || start_ticks_ == 0 || StartTicks(pid_) != start_ticks_) return;
  // It takes back a SIGSTOP that has not arrived, too.
  if (MayStop(pid_)) ::kill(pid_, SIGCONT);
}

}  // namespace meshrun::worker
