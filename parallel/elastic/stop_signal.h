// A request to stop: SIGTERM or SIGINT, or the coordinator's word that the generation is over. See
// graceful_stop.h for loops that stop at the same step on all ranks.
#pragma once

#include <atomic>
#include <cstdint>

#include "parallel/base/arguments.h"

namespace meshrun {

// From now on the first SIGTERM or SIGINT only sets the request; the same signal again, more than a
// second later, ends the process. Until then it is the same request: a batch system signals every
// process of its job, and the launcher, which is one of them, passes the signal on.
void catch_stop_signals();

// Thread-safe; may be called from anywhere but a signal handler.
void request_stop(IntArgument signal_number);

// Call when the ranks have agreed to stop: sets the request, and ignores SIGTERM from now on. When
// the first rank ends, a launcher sends SIGTERM to the others, although they are about to end.
void stop_together();

bool stop_requested();
// How often one signal came. May be used in a signal handler.
class RepeatedSignal {
 public:
  // It came at `now`, in nanoseconds. True: the first one came more than a second before.
  bool insists(int64_t now);

 private:
  std::atomic<int64_t> first_ = 0;
};

// The signal to answer with in the exit code, 128 + n; 0 while nobody asked.
int stop_signal();

}  // namespace meshrun
