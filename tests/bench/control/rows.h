// The rows of the benchmark: each against a coordinator of its own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun::bench {

// One line of the table: what was measured, what it should be, and by how much it is better (above
// 1) or worse.
struct Row {
  std::string name;
  double measured = 0;
  double target = 0;
  std::string unit;
  // True: more is better.
  bool more = false;
  std::string note;

  // 0 where there is no target.
  double ratio() const {
    if (target == 0 || measured == 0) return 0;
    return more ? measured / target : target / measured;
  }
};

using Rows = absl::StatusOr<std::vector<Row>>;

// Durable submits a second with `queued` jobs waiting, and the bytes of the coordinator's memory
// that a queued job and a watcher of it take.
Rows MeasureSubmits(const std::string& coordinator, size_t queued);
// From the end of a rank to the last Start of the next generation, on so many hosts.
Rows MeasureGenerationChange(const std::string& coordinator, size_t hosts, int rounds);
// A barrier of hosts * ranks ranks, a call per host.
Rows MeasureBarrier(const std::string& coordinator, size_t hosts, size_t ranks, int rounds);
// From a cancel to the end of a job of hosts * ranks ranks; the memory of a connected worker.
Rows MeasureTeardown(const std::string& coordinator, size_t hosts, size_t ranks);

}  // namespace meshrun::bench
