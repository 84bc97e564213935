// Removes old logs. Logs of running generations stay, and of the ended ones the newest, within a
// number of directories, an age and a number of bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>

#include "core/mutex.h"

namespace meshrun::worker {

// The directories that a generation writes to, or will: it is held before it is made. Thread-safe.
class LogsInUse {
 public:
  void Hold(const std::string& directory);
  void Release(const std::string& directory);
  bool Contains(const std::string& directory) const;

 private:
  mutable Mutex mu_;
  std::set<std::string> held_ MESHRUN_GUARDED_BY(mu_);
};

struct LogRetention {
  // Holds <job>/<generation>/.
  std::string root;
  // What the files take on the disk, in blocks: a file with holes counts for what it fills.
  uint64_t keep_bytes = uint64_t{1} << 30;
  size_t keep_generations = 10'000;
  // Since the last line. 0: no limit.
  std::chrono::nanoseconds keep_for{0};
  // Directory that stays however large it is: people look at the job that has just ended.
  std::string newest;
};

// Removes what is beyond one of the limits, the oldest first, and empty directories of jobs.
// Returns how many generations went. What cannot be read or removed stays, and is logged. Blocks as
// long as the file system does.
int PruneLogs(const LogRetention& retention, const LogsInUse& in_use);

}  // namespace meshrun::worker
