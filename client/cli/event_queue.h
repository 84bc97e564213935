// Events that a follower's threads hand to the thread that draws.
#pragma once

#include <cstddef>
#include <deque>
#include <stop_token>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "core/mutex.h"
#include "core/os/fd.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {

struct JobChanged {
  v1::Job job;
};
struct WatchEnded {
  absl::Status status;
};
struct Output {
  v1::ReadLogsResponse chunk;
};
struct OutputEnded {
  uint64_t generation;
  absl::Status status;
};
struct Interrupted {
  absl::Status status;
};
struct CancelAnswered {
  absl::Status status;
};
struct SignalAnswered {
  int signal = 0;
  absl::Status status;
};
// Ranks were told to stand still, and this process can follow them; or they were not.
struct PauseAnswered {
  absl::Status status;
};
// This node was taken out of the job, or could not be.
struct LeaveAnswered {
  absl::Status status;
};
using Event = std::variant<JobChanged, WatchEnded, Output, OutputEnded, Interrupted, CancelAnswered,
                           SignalAnswered, PauseAnswered, LeaveAnswered>;

// The bytes of output in the queue are bounded: Push waits while there are too many, unless told to
// stop. Thread-safe.
class EventQueue {
 public:
  static constexpr size_t kMaxOutputBytes = 4 << 20;

  EventQueue();
  // False when stopped before there was room.
  bool Push(Event event, const std::stop_token& stop = {}) MESHRUN_EXCLUDES(mu_);
  // All events; does not wait.
  std::vector<Event> TakeAll() MESHRUN_EXCLUDES(mu_);
  // Readable when there are events.
  int fd() const { return fd_.get(); }

 private:
  os::UniqueFd fd_;
  Mutex mu_;
  CondVar room_;
  std::deque<Event> events_ MESHRUN_GUARDED_BY(mu_);
  size_t output_bytes_ MESHRUN_GUARDED_BY(mu_) = 0;
};

}  // namespace meshrun::client
