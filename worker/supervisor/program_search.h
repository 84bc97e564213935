// Looks for a program in a child process, so that a file system which hangs holds up nobody else.
//
// Linux; for a process of one thread, which collects its children itself.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

class ProgramSearch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `user`: who looks, since root may not enter the homes of a file server; null: this process's.
  // Errors: from fork and pipe.
  static absl::StatusOr<ProgramSearch> Begin(const v1::ProgramSearch& search,
                                             const v1::RankUser* user);

  // Readable when Read has something to do.
  int fd() const { return answer_.get(); }
  Time deadline() const { return deadline_; }
  // Absent while the search is under way. Never blocks.
  std::optional<v1::ProgramFound> Read();
  // At the deadline: kills the search, and says which path does not answer. The child may stay for
  // as long as the file system holds it.
  v1::ProgramFound GiveUp();

 private:
  ProgramSearch(const v1::ProgramSearch& search, os::UniqueFd answer, pid_t child);

  v1::ProgramSearch search_;
  os::UniqueFd answer_;
  pid_t child_;
  Time deadline_;
  std::string bytes_;
};

}  // namespace meshrun::worker
