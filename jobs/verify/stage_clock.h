// The deadline of the stage that runs: a thread that ends the process where a stage hangs.
//
// No LibTorch. Threads: begin() and end() from one thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "core/mutex.h"

namespace meshrun::verify {

class StageClock {
 public:
  // `on_late` is called at most once, on this object's thread; it may end the process.
  using OnLate = std::function<void(const std::string& stage, std::chrono::seconds limit)>;
  explicit StageClock(OnLate on_late);
  ~StageClock();

  void begin(const std::string& stage, std::chrono::seconds limit);
  void end();
  // The one that runs, or ran last.
  std::string stage() const;

 private:
  void watch();

  const OnLate on_late_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::string stage_ MESHRUN_GUARDED_BY(mutex_);
  std::chrono::seconds limit_ MESHRUN_GUARDED_BY(mutex_){0};
  std::optional<std::chrono::steady_clock::time_point> until_ MESHRUN_GUARDED_BY(mutex_);
  bool is_over_ MESHRUN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace meshrun::verify
