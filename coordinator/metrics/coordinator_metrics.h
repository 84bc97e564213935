// What a coordinator tells Prometheus: docs/monitoring.md has the list. Labels have a bounded
// number of values: no name of a job, a node or a rank is one.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/event_loop/event_loop.h"
#include "coordinator/state_machine/tallies.h"
#include "core/clock.h"
#include "core/metrics/buckets.h"
#include "core/metrics/exposition.h"
#include "core/mutex.h"

namespace meshrun::coordinator {

class CoordinatorMetrics {
 public:
  // What is asked for at each scrape.
  struct Sources {
    // Null: this coordinator does not lead.
    std::shared_ptr<const Measures> measures;
    bool leads = false;
    // Absent: it stands by, and has none.
    std::optional<uint64_t> term;
    bool read_only = false;
    size_t queued_events = 0;
    // Absent on a Unix socket.
    struct Connections {
      size_t open = 0;
      uint64_t closed = 0;
      uint64_t refused = 0;
    };
    std::optional<Connections> grpc;
    Connections http;
    // Absent where the store does not know.
    std::optional<uint64_t> store_bytes;
    std::optional<uint64_t> store_quota_bytes;
    // By role: "cert", "ca".
    std::vector<std::pair<std::string_view, std::string>> certificates;
  };

  // This coordinator begins to lead. What Measures tell begins anew with it, and so does the share
  // of commits in the start of generations; all else counts for the life of the process.
  void BeginTerm();
  // A call that is answered once has ended. `method`: its last part, "SubmitJob".
  void OnCall(std::string_view method, absl::StatusCode code, SteadyNanos took);
  void OnCommit(const EventLoop::Options::Committed& committed);

  void Collect(const Sources& sources, metrics::Exposition* out) const;

 private:
  void CollectShell(const Sources& sources, metrics::Exposition& out) const;

  // Further pairs of method and code are not counted.
  static constexpr size_t kMostCalls = 1024;

  mutable Mutex mu_;
  std::map<std::pair<std::string, absl::StatusCode>, metrics::Buckets, std::less<>> calls_
      MESHRUN_GUARDED_BY(mu_);
  metrics::Buckets commit_seconds_ MESHRUN_GUARDED_BY(mu_){metrics::kShortSeconds};
  metrics::Buckets commit_events_ MESHRUN_GUARDED_BY(mu_){metrics::kNumbers};
  metrics::Buckets commit_rows_ MESHRUN_GUARDED_BY(mu_){metrics::kNumbers};
  // Counts the commits with which generations start, once for each.
  metrics::Buckets generation_commit_ MESHRUN_GUARDED_BY(mu_){metrics::kShortSeconds};
};

}  // namespace meshrun::coordinator
