// How a job ends that was asked to stop (parallel/elastic/stop_signal.h).
//
// Ranks see the request at different times. So they first agree on the step at which they stop; one
// rank that has seen the request is enough. A rank that stopped alone would leave the others in a
// collective.
#pragma once

#include <exception>

#include "parallel/elastic/stop_signal.h"

namespace meshrun::jobs {

// Raised by a job that stopped because it was asked to.
class Stopped : public std::exception {
 public:
  const char* what() const noexcept override { return "stopped on request"; }
};

}  // namespace meshrun::jobs
