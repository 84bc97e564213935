// What this process has done since it began, in totals. A process that lives on from one generation
// into the next has another agent there, and the same totals: they never fall.
//
// A wait is time that the training spends waiting for other ranks. Waits may be nested and may
// overlap, on one thread or on several: time in which several are under way counts once, so a
// second holds at most one second of waiting. A wait that is under way counts up to now.
//
// Threads: any. Never blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/clock.h"
#include "core/mutex.h"

namespace meshrun::agent {

class Totals {
 public:
  // One for all agents of the process.
  static const std::shared_ptr<Totals>& OfProcess();

  // Times of the host's steady clock. A time that is older than one that was counted before is
  // taken for that one.
  void BeginWait(SteadyNanos at) MESHRUN_EXCLUDES(mu_);
  void EndWait(SteadyNanos at) MESHRUN_EXCLUDES(mu_);
  // The collectives of this process tell when they wait. Until then its waits are not all known.
  void SetCollectivesKnown() MESHRUN_EXCLUDES(mu_);
  // Absent where not all waits are known.
  std::optional<SteadyNanos> Waited(SteadyNanos now) MESHRUN_EXCLUDES(mu_);

  // Bytes that collectives have sent to other ranks.
  void AddSent(uint64_t bytes) MESHRUN_EXCLUDES(mu_);
  uint64_t Sent() MESHRUN_EXCLUDES(mu_);

 private:
  void CountUntil(SteadyNanos at) MESHRUN_REQUIRES(mu_);

  Mutex mu_;
  bool knows_collectives_ MESHRUN_GUARDED_BY(mu_) = false;
  int under_way_ MESHRUN_GUARDED_BY(mu_) = 0;
  SteadyNanos counted_until_ MESHRUN_GUARDED_BY(mu_){0};
  SteadyNanos waited_ MESHRUN_GUARDED_BY(mu_){0};
  uint64_t sent_ MESHRUN_GUARDED_BY(mu_) = 0;
};

// A wait as long as its scope; none on a thread in the background (agent/background.h).
class WaitScope {
 public:
  explicit WaitScope(std::shared_ptr<Totals> totals);
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  // Null in the background.
  const std::shared_ptr<Totals> totals_;
};

}  // namespace meshrun::agent
