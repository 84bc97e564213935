// The one thread on which the daemon's state lives: posted tasks, timers and descriptors.
//
// Post and Stop may be called from any thread; everything else on the loop's own thread, or before
// Run. Tasks are run in the order they were posted. The queue of tasks has no bound of its own: its
// users have one (calls in flight, messages of a stream).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "core/mutex.h"
#include "core/os/fd.h"

namespace meshrun::worker {

class EventLoop {
 public:
  using Task = std::function<void()>;
  using TimerId = uint64_t;

  EventLoop();

  void Post(Task task) MESHRUN_EXCLUDES(mu_);
  // Runs until Stop; tasks posted before Stop are still run.
  void Run() MESHRUN_EXCLUDES(mu_);
  void Stop() MESHRUN_EXCLUDES(mu_);

  TimerId After(std::chrono::nanoseconds delay, Task task);
  // Cancelling a timer that has fired, or 0, is not an error.
  void Cancel(TimerId id);

  // Calls `on_ready(revents)` whenever poll() reports one of `events`, an error or a hangup. One
  // watch per descriptor; a new one replaces it.
  void Watch(int fd, short events, std::function<void(short)> on_ready);
  void Unwatch(int fd);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct FdWatch {
    short events = 0;
    uint64_t id = 0;
    std::function<void(short)> on_ready;
  };
  struct Timer {
    Time at;
    Task task;
  };

  void RunPosted() MESHRUN_EXCLUDES(mu_);
  void RunTimers();
  void PollOnce();
  int PollTimeout() const;

  Mutex mu_;
  std::vector<Task> posted_ MESHRUN_GUARDED_BY(mu_);
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  os::UniqueFd wake_;

  std::map<int, FdWatch> watches_;
  std::map<TimerId, Timer> timers_;
  std::multimap<Time, TimerId> due_;
  uint64_t next_id_ = 1;
};

}  // namespace meshrun::worker
