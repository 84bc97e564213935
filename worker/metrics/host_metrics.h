// What a worker tells Prometheus: docs/monitoring.md has the list. A rank's series are labelled by
// its place on this host, of which there are as many as slots, by its user and its number. A
// process keeps its place where it lives on under another number. The name of a job is a label only
// where the operator asks for it, since jobs have no bound.
//
// Thread: any, one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/metrics/exposition.h"
#include "meshrun/v1/common.pb.h"
#include "worker/metrics/gpu_watch.h"

namespace meshrun::worker {

// A rank that runs here.
struct RunningRank {
  std::string job_id;
  // The generation in which its process began, and its number there.
  std::pair<uint64_t, int> process;
  int rank = 0;
  std::string user;
  v1::Progress progress;
  // Time of a step, between its last two reports; absent: there were no two.
  std::optional<double> step_seconds;
};

// What the daemon's loop tells.
struct HostMeasures {
  uint32_t slots = 0;
  std::vector<RunningRank> ranks;
  bool connected = false;
  // Since the heartbeat that was answered last was sent.
  std::chrono::nanoseconds lease_age{0};
  // What the checks of this host have found.
  size_t problems = 0;
  uint64_t term = 0;
};

// Figures of the file system with the ranks' output.
struct LogSpace {
  uint64_t log_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t size_bytes = 0;
};

class HostMetrics {
 public:
  explicit HostMetrics(bool with_job) : with_job_(with_job) {}

  // `measures`: null where the loop has not answered; `gpus`: null where there are none.
  void Collect(const HostMeasures* measures, const std::optional<LogSpace>& logs,
               const GpuWatch::State* gpus, metrics::Exposition* out);

 private:
  void CollectRanks(const HostMeasures& measures, metrics::Exposition& out);
  // Keeps the places of processes that still run, and gives new ones the lowest that are free.
  void Place(const std::vector<RunningRank>& ranks);

  const bool with_job_;
  // By job and process: ranks may be numbered anew while their processes run, and totals are of a
  // process.
  std::map<std::pair<std::string, std::pair<uint64_t, int>>, uint32_t> places_;
};

}  // namespace meshrun::worker
