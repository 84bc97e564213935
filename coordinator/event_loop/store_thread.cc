#include "coordinator/event_loop/store_thread.h"

namespace meshrun::coordinator {

void StoreThread::Start() {
  thread_ = std::thread([this] { Run(); });
}

void StoreThread::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void StoreThread::Begin(std::function<void()> work) {
  busy_ = true;
  MutexLock lock(mu_);
  work_ = std::move(work);
  changed_.NotifyAll();
}

bool StoreThread::TakeDone() {
  MutexLock lock(mu_);
  if (!std::exchange(done_, false)) return false;
  busy_ = false;
  return true;
}

void StoreThread::Run() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(mu_);
      while (!work_ && !stopping_) changed_.Wait(mu_);
      // Work that was begun is finished: its rows may be what a next term reads.
      if (!work_) return;
      work = std::exchange(work_, nullptr);
    }
    work();
    {
      MutexLock lock(mu_);
      done_ = true;
    }
    on_done_();
  }
}

}  // namespace meshrun::coordinator
