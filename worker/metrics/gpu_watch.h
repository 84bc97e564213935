// Reads the host's GPUs every few seconds, and counts the errors that their driver reports, on a
// thread of its own: a driver that is ill may not answer for minutes.
//
// Threads: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/mutex.h"
#include "worker/inventory/nvml.h"

namespace meshrun::worker {

class GpuWatch {
 public:
  struct State {
    std::vector<GpuReading> readings;
    // When they were taken; zero: never.
    std::chrono::steady_clock::time_point read_at{};
    // Errors since the start, by GPU, and the last one's number.
    std::map<uint32_t, uint64_t> xids;
    std::map<uint32_t, uint64_t> last_xid;
  };

  explicit GpuWatch(std::chrono::milliseconds interval = std::chrono::seconds(5));
  // Waits for no driver that does not answer: its thread is left behind.
  ~GpuWatch();

  State state() const;

 private:
  struct Shared {
    mutable Mutex mu;
    CondVar changed;
    bool stopping MESHRUN_GUARDED_BY(mu) = false;
    State state MESHRUN_GUARDED_BY(mu);
  };
  static void Run(const std::shared_ptr<Shared>& shared, std::chrono::milliseconds interval);

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace meshrun::worker
