// The deadline of the stage that runs: a thread that ends the process where a stage hangs.
//
// No LibTorch. Threads: stages begin and end on one thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "core/mutex.h"

namespace meshrun::verify {

// For all stages together, so that a verification ends within 3 minutes.
constexpr std::chrono::seconds kAllStages{170};

// The limit of a stage that may take `most`, when `passed` of kAllStages is over; at least 1 s.
std::chrono::seconds stage_limit(std::chrono::seconds most, std::chrono::duration<double> passed);

class StageClock {
 public:
  // `on_late` is called at most once, on this object's thread; it may end the process.
  using OnLate = std::function<void(const std::string& stage, std::chrono::seconds limit)>;
  explicit StageClock(OnLate on_late);
  ~StageClock();

  // The stage that runs while this object is there, however it ends. One at a time.
  class [[nodiscard]] Running {
   public:
    Running(StageClock& clock, const std::string& stage, std::chrono::seconds limit)
        : clock_(clock) {
      clock_.begin(stage, limit);
    }
    ~Running() { clock_.end(); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    StageClock& clock_;
  };

  // The one that runs, or ran last.
  std::string stage() const;

 private:
  void begin(const std::string& stage, std::chrono::seconds limit);
  // Returns when `on_late` has, if it was called: no two threads write the end of one stage.
  void end();
  void watch();

  const OnLate on_late_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::string stage_ MESHRUN_GUARDED_BY(mutex_);
  std::chrono::seconds limit_ MESHRUN_GUARDED_BY(mutex_){0};
  std::optional<std::chrono::steady_clock::time_point> until_ MESHRUN_GUARDED_BY(mutex_);
  // While `on_late` is called.
  bool is_late_ MESHRUN_GUARDED_BY(mutex_) = false;
  bool is_over_ MESHRUN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace meshrun::verify
