// What the addresses of several coordinators have come to, for the sentence of an error: a standby
// names the leader, and the leader is not reached. Threads: any.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <map>
#include <string>

#include "core/mutex.h"

namespace meshrun::client {

// "...: Failed to connect to remote host: Connection refused" -> "connection refused".
std::string ShortReason(const std::string& text);

class ReachedAddresses {
 public:
  // A call at `address` has ended so. An answer other than a standby's forgets what was before.
  void OnEnd(const std::string& address, const grpc::Status& status) MESHRUN_EXCLUDES(mu_);
  // Why the last call there reached nobody; empty: there was none, or it reached somebody.
  std::string WhyNot(const std::string& address) const MESHRUN_EXCLUDES(mu_);
  // What a standby has said within the last seconds; OK: none has.
  grpc::Status Standby() const MESHRUN_EXCLUDES(mu_);

 private:
  static constexpr std::chrono::seconds kRecent{30};
  // Leaders that were named come and go.
  static constexpr size_t kMost = 64;

  mutable Mutex mu_;
  std::map<std::string, std::string> why_not_ MESHRUN_GUARDED_BY(mu_);
  grpc::Status standby_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point heard_at_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::client
