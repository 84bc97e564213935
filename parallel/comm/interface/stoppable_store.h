// A c10d store whose waits can be ended from another thread.
#pragma once

#include <stop_token>

namespace meshrun {

class StoppableStore {
 public:
  virtual ~StoppableStore() = default;

  // Once `stop` is requested, multiGet raises DistNetworkError: what waits in it, and later calls.
  // Not synchronised with calls in progress; a clone has none.
  virtual void set_stop(std::stop_token stop) = 0;
};

}  // namespace meshrun
