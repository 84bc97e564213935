// For how long each job has held what: CPU slots and GPUs, from the placement of a generation until
// its processes are gone. By the wall clock: the steady one stands still while a disk hangs, and
// the ranks do not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/clock.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

class HeldTimes {
 public:
  void Hold(const std::string& job_id, uint64_t slots, uint64_t gpus, WallNanos now);
  void Release(const std::string& job_id, uint64_t slots, uint64_t gpus, WallNanos now);

  // Up to now.
  v1::HeldTime Of(const std::string& job_id, WallNanos now) const;
  void Forget(const std::string& job_id) { jobs_.erase(job_id); }

  // After a start of the coordinator: what was written last; then, once the job holds again what it
  // held, Resume counts the time since.
  void Restore(const std::string& job_id, const v1::HeldTime& held);
  void Resume(const std::string& job_id, WallNanos now);

 private:
  struct Entry {
    uint64_t slots = 0;
    uint64_t gpus = 0;
    WallNanos since{0};
    double slot_seconds = 0;
    double gpu_seconds = 0;
    // What Restore was told, until Resume.
    std::optional<WallNanos> restored;

    void CountUntil(WallNanos now);
    void Count(double seconds);
  };

  std::unordered_map<std::string, Entry> jobs_;
};

}  // namespace meshrun::coordinator
