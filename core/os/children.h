// The children of this process: those that Spawn has started, and those that came to it as a
// subreaper (prctl(2)) when a descendant ended. Threads: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace meshrun::os {

struct AdoptedChild {
  pid_t pid = 0;
  // As of ProcessStat: with the pid it names one process for ever.
  uint64_t start_ticks = 0;
};

// Children that Spawn has not started, nor what it started left in its own session: those that run,
// and those that have ended and are not waited for. A child that is younger than a call of Spawn
// under way may be Spawn's, and is left out. Reads all of /proc.
std::vector<AdoptedChild> AdoptedChildren();

// Waits for adopted children that have ended. Cheap: for calls at intervals. Never waits for a
// child of Spawn's, which its caller does.
void CollectAdopted();

// For Spawn: from the construction to Started, or to the destruction.
class SpawnUnderWay {
 public:
  SpawnUnderWay();
  ~SpawnUnderWay();
  SpawnUnderWay(const SpawnUnderWay&) = delete;
  SpawnUnderWay& operator=(const SpawnUnderWay&) = delete;
  // `owns_session`: what the child leaves in its session is not adopted, but its own affair.
  void Started(pid_t pid, bool owns_session);

 private:
  const uint64_t since_ticks_;
};

}  // namespace meshrun::os
