// The private directory of a `meshrun run`. It is locked as long as its process lives. An unlocked
// one was left by a run that was killed, and the next run removes it.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "client/held_file.h"
#include "core/os/fd.h"

namespace meshrun::client {

class RunDirectory {
 public:
  // Below $TMPDIR where socket paths still fit, else below /tmp.
  static std::string DefaultParent();
  // UNAVAILABLE when others went on removing it before it was locked; else as the system says.
  static absl::StatusOr<RunDirectory> Create(const std::string& parent);
  // Removes the directories of killed runs of this user; `young`: which are left alone.
  static void RemoveAbandoned(const std::string& parent,
                              std::chrono::nanoseconds young = kYoungFile);

  RunDirectory() = default;
  RunDirectory(RunDirectory&& other) noexcept;
  RunDirectory& operator=(RunDirectory&& other) noexcept;
  // Removes it with all that is below.
  ~RunDirectory() { Remove(); }

  const std::string& path() const { return path_; }
  void Remove();

 private:
  std::string path_;
  // Free once this process is gone, however it went.
  os::UniqueFd lock_;
};

}  // namespace meshrun::client
