// A request to stop: SIGTERM or SIGINT, or the coordinator's word that the generation is over.
//
// A rank sees the request at a moment of its own, so ranks agree on the step at which they stop
// before they do (any one that has seen it is enough); stopping alone would leave the others in a
// collective.
#pragma once

#include <exception>

namespace meshrun::jobs {

// From now on the first SIGTERM or SIGINT only sets the request; a second one ends the process.
void catch_stop_signals();

// Thread-safe; may be called from anywhere but a signal handler.
void request_stop(int signal_number);

bool stop_requested();
// The signal to answer with in the exit code, 128 + n; 0 while nobody asked.
int stop_signal();

// Raised by a job that stopped because it was asked to.
class Stopped : public std::exception {
 public:
  const char* what() const noexcept override { return "stopped on request"; }
};

}  // namespace meshrun::jobs
