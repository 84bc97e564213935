// A std::mutex that clang's thread-safety analysis understands, and its condition variable.
//
// std::mutex and not absl::Mutex: ThreadSanitizer reports false races in Debian's build of the
// latter.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define MESHRUN_TSA(x) __attribute__((x))
#else
#define MESHRUN_TSA(x)
#endif

#define MESHRUN_GUARDED_BY(mu) MESHRUN_TSA(guarded_by(mu))
#define MESHRUN_REQUIRES(mu) MESHRUN_TSA(requires_capability(mu))
#define MESHRUN_EXCLUDES(mu) MESHRUN_TSA(locks_excluded(mu))

namespace meshrun {

class MESHRUN_TSA(capability("mutex")) Mutex {
 public:
  void Lock() MESHRUN_TSA(acquire_capability()) { mu_.lock(); }
  void Unlock() MESHRUN_TSA(release_capability()) { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class MESHRUN_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) MESHRUN_TSA(acquire_capability(mu)) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() MESHRUN_TSA(release_capability()) { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Every wait has a deadline; `Wait` without one is for threads that have nothing else to do until
// they are woken.
class CondVar {
 public:
  void Wait(Mutex& mu) MESHRUN_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when the deadline passed.
  bool WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point deadline) MESHRUN_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool woken = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return woken;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace meshrun
