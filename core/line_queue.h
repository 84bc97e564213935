// Lines for a descriptor that may stop taking them: a pipe whose reader hangs, a terminal that was
// stopped, a file on a disk that does not answer. A thread writes; nobody else waits.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>

namespace meshrun {

// Thread-safe.
class LineQueue {
 public:
  // `fd` stays open. At most `most_bytes` wait.
  LineQueue(int fd, size_t most_bytes);
  // Waits for nothing: a thread that is held in a write is left behind, and what waits is lost.
  ~LineQueue();

  // False when the queue has no room: the line is not kept.
  bool TryPush(std::string_view line);
  // Waits until all is written. False at the timeout.
  bool Flush(std::chrono::milliseconds timeout);

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace meshrun
