// Which logs stay: those of generations that run, and of those that have ended the newest, up to a
// number of bytes.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace meshrun::worker {

// The directories <root>/<job>/<generation>/ that are not in use. Removes those of jobs that are
// empty. Only where directories are made too may it be called: one made meanwhile would be taken
// for ended.
std::vector<std::string> EndedLogs(const std::string& root, const std::set<std::string>& in_use);

struct LogRetention {
  // As EndedLogs says.
  std::vector<std::string> ended;
  uint64_t keep_bytes = 0;
  // Directory that stays however large it is: what has just ended is what people look at.
  std::string newest;
};

// Removes the oldest directories beyond keep_bytes. Returns how many were removed. What cannot be
// read or removed stays, and is logged.
int PruneLogs(const LogRetention& retention);

}  // namespace meshrun::worker
