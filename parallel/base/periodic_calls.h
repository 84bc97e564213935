// One thread of the process that calls all of its members every `period`, for work that may be late
// by that much. It starts with the first member and sleeps while there is none.
//
// Threads: any. A member is never called after remove() has returned; it must not add or remove
// members itself, nor throw.
#pragma once

#include <chrono>
#include <functional>
#include <map>

#include "core/mutex.h"

namespace meshrun {

class PeriodicCalls {
 public:
  explicit PeriodicCalls(std::chrono::milliseconds period) : period_(period) {}
  PeriodicCalls(const PeriodicCalls&) = delete;
  PeriodicCalls& operator=(const PeriodicCalls&) = delete;
  // Lives as long as the process: its thread does not end.
  ~PeriodicCalls() = delete;

  void add(const void* member, std::function<void()> call) MESHRUN_EXCLUDES(mu_);
  // Waits for a call that is under way.
  void remove(const void* member) MESHRUN_EXCLUDES(mu_);

 private:
  void run() MESHRUN_EXCLUDES(mu_);

  const std::chrono::milliseconds period_;
  Mutex mu_;
  CondVar has_members_;
  std::map<const void*, std::function<void()>> members_ MESHRUN_GUARDED_BY(mu_);
  bool is_running_ MESHRUN_GUARDED_BY(mu_) = false;
};

}  // namespace meshrun
