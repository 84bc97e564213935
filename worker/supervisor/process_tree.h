// The processes below a process, as /proc shows them: what a rank started, and what that started.
//
// Linux. Nothing here blocks. Processes that end while /proc is read are left out. A pid that was
// reused since the reading is not signalled: its start time differs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun::worker {

struct Process {
  pid_t pid = 0;
  pid_t parent = 0;
  // Clock ticks since boot: with the pid it names one process for ever.
  uint64_t start = 0;
  pid_t session = 0;
};

// What the operating system offers; a test puts its own processes here.
class ProcessTable {
 public:
  virtual ~ProcessTable() = default;
  // All pids, zombies included.
  virtual std::vector<pid_t> Pids() = 0;
  // Absent when the process is gone or a zombie.
  virtual std::optional<Process> Read(pid_t pid) = 0;
  // "NAME=value" entries, each ended by a NUL, as they were when the program started; empty when
  // the process is gone or is another user's.
  virtual std::string Environment(pid_t pid) = 0;
  // False when there is no such process, or it is another user's.
  virtual bool Signal(pid_t pid, int signal) = 0;

  // /proc and kill(2).
  static ProcessTable& Real();
};

// Every live descendant of `root` (zombies left out), parents before children. A descendant whose
// parent has ended is found through the nearest subreaper above it: call it for a subreaper.
std::vector<pid_t> Descendants(pid_t root, ProcessTable& table = ProcessTable::Real());

// Kills every descendant of `root`: all of them are stopped first, until no new one appears, so
// that none can fork away from its kill. Returns how many were sent SIGKILL. Collect them with
// waitpid and call again while any is left: the kernel may take its time.
int KillDescendants(pid_t root, ProcessTable& table = ProcessTable::Real());

// Kills, in the same way, the descendants of `root` that are of `session` or have `entry` in their
// environment: what one rank has started, and the rank itself, whose session it is. Returns how
// many there are.
int KillSession(pid_t root, pid_t session, std::string_view entry,
                ProcessTable& table = ProcessTable::Real());

// Kills, in the same way, the adopted children of this process (core/os/children.h) that are not
// older than `since_ticks`, and their descendants, and collects those that have ended: what a
// supervisor that was started then and was killed has left to its daemon, a subreaper too. Returns
// how many children were still there. Call again while any is.
int KillAdopted(uint64_t since_ticks, ProcessTable& table = ProcessTable::Real());

// Kills, in the same way, every process of this user whose environment holds `entry` ("NAME=value")
// since its start; never the caller. For what is left when the subreaper itself is gone. Returns
// how many. Call again after a moment: a process that becomes another program shows no environment.
int KillByEnvironment(std::string_view entry, ProcessTable& table = ProcessTable::Real());

}  // namespace meshrun::worker
