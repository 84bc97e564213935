// Work on the state store, beside the event loop: a disk may hang in it.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "core/mutex.h"

namespace meshrun::coordinator {

// One piece of work at a time. Owned by one thread, which alone calls it.
class StoreThread {
 public:
  // `on_done` is called on the thread after each piece.
  explicit StoreThread(std::function<void()> on_done) : on_done_(std::move(on_done)) {}
  // Waits for the work under way, however long the disk takes.
  ~StoreThread() { Stop(); }

  void Start();
  void Stop();

  // Only when not busy. What `work` leaves behind is the caller's after TakeDone.
  void Begin(std::function<void()> work);
  bool busy() const { return busy_; }
  // True once after each piece.
  bool TakeDone();

 private:
  void Run();

  const std::function<void()> on_done_;
  std::thread thread_;
  // Only the owner's.
  bool busy_ = false;

  Mutex mu_;
  CondVar changed_;
  std::function<void()> work_ MESHRUN_GUARDED_BY(mu_);
  bool done_ MESHRUN_GUARDED_BY(mu_) = false;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
};

}  // namespace meshrun::coordinator
