// Removes old logs, and remembers which. Logs of running generations stay. Of the ended ones the
// newest stay, within an age, a number of directories and a number of bytes.
//
// Users share the bytes and the directories: while there are too many, the user with the most gives
// the oldest generation; for bytes, before it those of a job that has more than a quarter of all.
// So nobody's output removes that of a user who has less, and one flood no other job's.
//
//   <root>/<job>/<generation>/           the files
//   <root>/<job>/<generation>.removed    when they went and why, for kRememberRemoved; the newest
//                                        kMostRemembered
//   <root>/<job>/owner                   the job's submitter
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
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
  std::string root;
  // What the files take on the disk, in blocks: a file with holes counts for what it fills.
  uint64_t keep_bytes = uint64_t{1} << 30;
  size_t keep_generations = 10'000;
  // Since the last line. 0: no limit.
  std::chrono::nanoseconds keep_for{0};
  // Directory that stays however large it is: people look at the job that has just ended.
  std::string newest;
};

// What one user lost because there were too many bytes.
struct RemovedLogs {
  std::string user;
  // Job of the largest generation among them, and what that took.
  std::string job_id;
  uint64_t largest_bytes = 0;
  uint32_t generations = 0;
  uint64_t bytes = 0;

  // Adds another loss of the same user.
  void Add(const RemovedLogs& more);
};

inline constexpr std::chrono::hours kRememberRemoved{30 * 24};
inline constexpr size_t kMostRemembered = 1000;

// Removes what is beyond one of the limits, and empty directories of jobs. Returns what went for
// its bytes, by user. What cannot be read or removed stays, and is logged. Blocks as long as the
// file system does.
std::vector<RemovedLogs> PruneLogs(const LogRetention& retention, const LogsInUse& in_use);

// Writes whose job it is that has the generation's directory. Blocks.
absl::Status WriteLogsOwner(const std::string& directory, const std::string& user);

// Why the directory of a generation is not there, as a sentence for people.
std::string WhyNoLogs(const std::string& directory);

// Limit for each of the two output files of a rank, on a host where as many ranks as there are
// slots may run: what a rank may have, and its share of what all may have. 0: no limit.
uint64_t LimitOfStream(uint64_t of_stream, uint64_t of_host, uint32_t slots);

}  // namespace meshrun::worker
