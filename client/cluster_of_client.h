// The cluster with which a client began. An address of its list may lead into another one, by a
// mistake in that one's `--state`: there is no job of this client's. Threads: any.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <string>

#include "core/mutex.h"

namespace meshrun::client {

class ClusterOfClient {
 public:
  // Whether the coordinator at `address` was the last one that was judged, and was the right one.
  bool Knows(const std::string& address) const MESHRUN_EXCLUDES(mu_);
  // This client's cluster is `id` from now on; its coordinator is at `address`.
  void BeginWith(const std::string& address, const std::string& id) MESHRUN_EXCLUDES(mu_);
  // The coordinator at `address` leads the cluster `id`. The first one is this client's.
  // UNAVAILABLE, as a standby answers that names no leader: it is another one; the next address is
  // due. A coordinator without an id, an old one, is taken for the right one.
  grpc::Status Judge(const std::string& address, const std::string& id) MESHRUN_EXCLUDES(mu_);
  // What Judge said of another cluster within the last seconds, and of no right one since; empty:
  // nothing.
  std::string OfOther() const MESHRUN_EXCLUDES(mu_);

 private:
  static constexpr std::chrono::seconds kRecent{30};

  mutable Mutex mu_;
  std::string id_ MESHRUN_GUARDED_BY(mu_);
  std::string judged_ MESHRUN_GUARDED_BY(mu_);
  std::string of_other_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point other_at_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::client
