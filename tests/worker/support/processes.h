// For tests with real processes: a short-lived directory, and waits on what processes do.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

namespace meshrun::testing {

// Long enough for a loaded machine under a sanitizer; nothing waits so long when all is well.
inline constexpr std::chrono::seconds kPatience{60};

// A directory in /tmp with a path short enough for sockets; removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// meshrun-worker as built for this test.
std::string WorkerProgram();

// True as soon as `condition` holds; false when it did not within kPatience.
bool Eventually(const std::function<bool()>& condition);

// Returns when `pid`, anybody's child, has ended. False after kPatience.
bool AwaitGone(pid_t pid);

// Waits for a child's end: its wait status, -1 after kPatience (it is killed then).
int AwaitExit(pid_t pid);

// The number that stands in a file, once a whole line does.
pid_t AwaitPid(const std::string& path);

}  // namespace meshrun::testing
