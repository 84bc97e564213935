// Work that a file system may hold up, kept off the daemon's loop. Each key (a job's id) has a
// thread of its own while it has work, so that a directory that hangs delays its own job alone. The
// work of one key runs in the order in which it was given.
//
// Limit: kMostThreads keys work at once; the others wait for one of them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "worker/event_loop/event_loop.h"

namespace meshrun::worker {

class FileTasks {
 public:
  static constexpr size_t kMostThreads = 64;

  // `loop` outlives this.
  explicit FileTasks(EventLoop& loop);
  // Waits for no thread: one that a file system holds is left behind, and its `done` is dropped.
  // Work that has not begun is dropped too.
  ~FileTasks();

  // Runs `work` on the key's thread, then posts `done` to the loop. Thread-safe. `work` holds
  // everything that it uses: it may outlive this object and the loop.
  void Run(const std::string& key, std::function<void()> work, EventLoop::Task done = nullptr);
  // Waits until nothing is left to do. False at the timeout. Not on the loop.
  bool Drain(std::chrono::milliseconds timeout);

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace meshrun::worker
