// Whether a name comes for the first time: for warnings that are said once for each operator.
//
// Internal to parallel/shard. Threads: any.
#pragma once

#include <mutex>
#include <set>
#include <string>

namespace meshrun {

class FirstTime {
 public:
  bool operator()(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return seen_.insert(name).second;
  }

 private:
  std::mutex mutex_;
  std::set<std::string> seen_;
};

}  // namespace meshrun
