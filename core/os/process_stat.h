// What /proc says of a process. Nothing here blocks. Threads: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace meshrun::os {

struct ProcessStat {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t session = 0;
  char state = '?';
  int64_t threads = 0;
  // Clock ticks since boot: with the pid it names one process for ever.
  uint64_t start_ticks = 0;

  // The process has ended, and its parent has not collected it yet. True also if only its first
  // thread has ended and other threads still run.
  bool IsZombie() const { return state == 'Z' || state == 'X'; }
};

// A line of /proc/PID/stat; absent: it is not one.
std::optional<ProcessStat> ParseProcessStat(std::string_view line);
// All processes, those that have ended and are not waited for included; none if /proc cannot be
// read.
std::vector<pid_t> AllPids();
// Absent if no process has this id, or if /proc cannot be read.
std::optional<ProcessStat> ReadProcessStat(pid_t pid);

}  // namespace meshrun::os
