// Removes old logs. Logs of running generations stay, and the newest of the ended ones, up to a
// number of bytes.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace meshrun::worker {

// The directories <root>/<job>/<generation>/ that are not in use. Removes empty directories of
// jobs. Call it only on the thread that also makes directories: one that is made meanwhile would be
// taken for ended.
std::vector<std::string> EndedLogs(const std::string& root, const std::set<std::string>& in_use);

struct LogRetention {
  // As EndedLogs says.
  std::vector<std::string> ended;
  uint64_t keep_bytes = 0;
  // Directory that stays however large it is: people look at the job that has just ended.
  std::string newest;
};

// Removes the oldest directories beyond keep_bytes. Returns how many were removed. Directories that
// cannot be read or removed stay, and are logged.
int PruneLogs(const LogRetention& retention);

}  // namespace meshrun::worker
