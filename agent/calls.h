// Blocking calls that outlast a restart of the daemon or the coordinator, and end when the agent
// does.
#pragma once

#include <grpcpp/client_context.h>

#include <chrono>
#include <functional>
#include <set>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "core/mutex.h"

namespace meshrun::agent {

class Calls {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  // One attempt: `remaining` of the call's time is left, and `context` has its deadline a little
  // later, so that the server can say what was missing.
  using Attempt =
      std::function<grpc::Status(grpc::ClientContext& context, std::chrono::nanoseconds remaining)>;

  // `peer` is named in errors. `token` goes with every call as metadata.
  Calls(std::string peer, std::string token) : peer_(std::move(peer)), token_(std::move(token)) {}

  // Repeats the call while the answer is UNAVAILABLE, or it could not be taken
  // (rpc::WaitBeforeRepeating), until `deadline`. Errors: the answer's; UNAVAILABLE names the peer
  // and the time; CANCELLED after CancelAll, or once `stop` is requested.
  absl::Status Run(Deadline deadline, const Attempt& attempt, const std::stop_token& stop = {})
      MESHRUN_EXCLUDES(mu_);

  // Ends all calls, now and later, with CANCELLED, and waits until none is under way; a call in a
  // pause between two attempts is.
  void CancelAll() MESHRUN_EXCLUDES(mu_);

 private:
  absl::Status Repeat(Deadline deadline, const Attempt& attempt, const std::stop_token& stop)
      MESHRUN_EXCLUDES(mu_);
  bool Enter(grpc::ClientContext* context) MESHRUN_EXCLUDES(mu_);
  void Forget(grpc::ClientContext* context) MESHRUN_EXCLUDES(mu_);
  void Leave() MESHRUN_EXCLUDES(mu_);
  // False when cancelled meanwhile.
  bool Pause(Deadline until, const std::stop_token& stop) MESHRUN_EXCLUDES(mu_);

  const std::string peer_;
  const std::string token_;
  Mutex mu_;
  CondVar changed_;
  bool cancelled_ MESHRUN_GUARDED_BY(mu_) = false;
  int running_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::set<grpc::ClientContext*> contexts_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::agent
