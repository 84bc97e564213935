// Keeps what a rank's output takes on the disk within a limit: its oldest bytes become a hole. The
// rank goes on writing to the same file, and every kept byte stays at its offset, for readers too.
//
// Where the file system knows no holes the file grows; the first attempt says so.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/os/fd.h"

namespace meshrun::worker {

class BoundedLog {
 public:
  // limit 0, or a file that cannot be opened: no bound.
  BoundedLog(const std::string& path, uint64_t limit);

  // Beyond the limit, half of it is kept. An error is returned once.
  absl::Status Check();
  bool bounded() const { return static_cast<bool>(file_); }

 private:
  uint64_t limit_;
  os::UniqueFd file_;
};

}  // namespace meshrun::worker
