// How many bytes of c10's CPU allocator this thread's work holds: live ones, and their peak.
//
//   MemoryMeter meter;
//   model->forward(x).sum().backward();
//   meter.peak_bytes();
//
// Counts what is allocated while the meter lives, on its thread and on those of the autograd engine
// that work for it; what was allocated before does not count when it is freed. It takes the place
// of LibTorch's profiler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>

#include "c10/core/Allocator.h"
#include "c10/util/ThreadLocalDebugInfo.h"

namespace meshrun {

class MemoryMeter {
 public:
  MemoryMeter()
      : counts_(std::make_shared<Counts>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counts_) {}

  int64_t live_bytes() const { return counts_->get().live; }
  int64_t peak_bytes() const { return counts_->get().peak; }
  // The peak from here on.
  void reset_peak() { counts_->reset_peak(); }

 private:
  struct Bytes {
    int64_t live = 0;
    int64_t peak = 0;
  };
  class Counts : public c10::MemoryReportingInfoBase {
   public:
    void reportMemoryUsage(void*, int64_t alloc_size, size_t, size_t, c10::Device device) override {
      if (!device.is_cpu()) return;
      const std::scoped_lock lock(mutex_);
      bytes_.live += alloc_size;
      bytes_.peak = std::max(bytes_.peak, bytes_.live);
    }
    bool memoryProfilingEnabled() const override { return true; }
    Bytes get() const {
      const std::scoped_lock lock(mutex_);
      return bytes_;
    }
    void reset_peak() {
      const std::scoped_lock lock(mutex_);
      bytes_.peak = bytes_.live;
    }

   private:
    mutable std::mutex mutex_;
    Bytes bytes_;
  };

  const std::shared_ptr<Counts> counts_;
  const c10::DebugInfoGuard guard_;
};

}  // namespace meshrun
