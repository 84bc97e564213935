// Schedules of a group's recent calls: a training step makes the same ones again and again, and
// building one costs 1 to 3 us (8 ranks, 64 MiB, 1,653 steps: 150 us).
//
// Thread-safe. Holds kEntries, the least recently used goes first. `build` runs without the lock,
// so two threads that miss at once may both build; they get the same schedule. No errors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/mutex.h"
#include "parallel/comm/ucx/engine/planning/schedule.h"

namespace meshrun::ucx {

class ScheduleCache {
 public:
  static constexpr int kEntries = 64;

  // `key` is everything that the schedule was made from: kind, counts, layouts, root, reduction.
  // Compared whole, so two calls never share one by chance.
  std::shared_ptr<const Schedule> get(std::span<const int64_t> key,
                                      const std::function<Schedule()>& build) MESHRUN_EXCLUDES(mu_);

 private:
  struct Entry {
    uint64_t digest = 0;
    uint64_t last_used = 0;
    std::vector<int64_t> key;
    std::shared_ptr<const Schedule> schedule;
  };
  std::shared_ptr<const Schedule> find(uint64_t digest, std::span<const int64_t> key)
      MESHRUN_REQUIRES(mu_);

  Mutex mu_;
  uint64_t uses_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::vector<Entry> entries_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::ucx
