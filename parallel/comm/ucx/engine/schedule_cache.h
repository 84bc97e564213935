// Schedules of a group's recent calls: a training step makes the same ones again and again, and
// building one costs 1 to 3 us (8 ranks, 64 MiB, 1,653 steps: 150 us).
//
// Thread-safe. Holds kEntries, the least recently used goes first. No errors.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/mutex.h"
#include "parallel/comm/ucx/engine/header_check.h"
#include "parallel/comm/ucx/engine/schedule.h"

namespace meshrun::ucx {

class ScheduleCache {
 public:
  static constexpr int kEntries = 64;

  // `key` is everything that the schedule was made from: kind, counts, layouts, root, reduction.
  // Compared whole, so two calls never share one by chance.
  std::shared_ptr<const Schedule> get(const std::vector<int64_t>& key,
                                      const std::function<Schedule()>& build) MESHRUN_EXCLUDES(mu_);

 private:
  struct Entry {
    uint64_t digest;
    std::vector<int64_t> key;
    std::shared_ptr<const Schedule> schedule;
  };
  Mutex mu_;
  std::vector<Entry> entries_ MESHRUN_GUARDED_BY(mu_);  // most recent last
};

}  // namespace meshrun::ucx
