// Which logs stay: those of generations that run, and of those that have ended the newest, up to a
// number of bytes.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace meshrun::worker {

struct LogRetention {
  // <root>/<job>/<generation>/ holds the files of one generation.
  std::string root;
  uint64_t keep_bytes = 0;
  // Directory that stays however large it is: what has just ended is what people look at.
  std::string newest;
  // Directories that are being written: neither removed nor counted.
  std::set<std::string> in_use;
};

// Removes the oldest directories beyond keep_bytes, and jobs' directories left empty. Returns how
// many generations' logs were removed. What cannot be read or removed stays, and is logged.
int PruneLogs(const LogRetention& retention);

}  // namespace meshrun::worker
