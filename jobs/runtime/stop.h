// How a job ends that was asked to stop (parallel/elastic/stop_signal.h).
//
// A rank sees the request at a moment of its own, so ranks agree on the step at which they stop
// before they do (any one that has seen it is enough); stopping alone would leave the others in a
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
