// One run of a simulated cluster through faults to peace, all of it drawn from a seed: the same
// seed runs alike every time, on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/state_store/state_store.h"
#include "tests/coordinator/simulation/timeline.h"

namespace meshrun::coordinator::simulation {

struct Plan {
  uint64_t seed = 1;
  int hosts = 4;
  int jobs = 3;
  // The most nodes that a job may ask for.
  int most_nodes = 4;
  nanoseconds chaos = seconds(40);
  int faults = 12;
  // Crashes of the coordinator, as in CoordinatorProcess.
  uint64_t crash_chance = 0;
  uint64_t crash_at_write = 0;
  bool crash_after_commit = false;
  // The rules are checked after each so many batches.
  int check_interval = 1;
  // Where the coordinator's state is; null: in memory.
  StateStore* store = nullptr;
  // It is in a model of etcd instead, so many of whose 1,000 calls have a fault; 0: it is not.
  uint64_t etcd_fault_chance = 0;
  // As in CoordinatorProcess.
  uint32_t keep_ended = 0;
  nanoseconds keep_lost{0};
  uint32_t quarantine_after = 0;
  // At most so long after an event the coordinator takes its batch.
  nanoseconds turn = milliseconds(1);
  // Lease and heartbeat interval of the coordinator.
  nanoseconds lease = seconds(5);
  nanoseconds heartbeat = seconds(1);
  // Jobs come in the first so long of each hour; 0: at any time.
  nanoseconds rush{0};
  // Longest work of a job.
  nanoseconds longest_work = seconds(20);
};

// A plan of PlanOf, with the state in the model of etcd.
Plan EtcdPlanOf(uint64_t seed);

// Small clusters mostly, a larger one now and then. Every fourth seed has a single fault: the
// coordinator dies at one write, before or after its commit.
Plan PlanOf(uint64_t seed);

struct Outcome {
  // The first rule that was broken; empty: none.
  std::string violation;
  // Counts of the coordinator's state machine.
  uint64_t steps = 0;
  uint64_t writes = 0;
  uint64_t crashes = 0;
  // Where the state is in etcd: commits that failed, and those of them that were done all the same;
  // writes of coordinators that were replaced; transactions that were late and changed nothing.
  uint64_t failed_commits = 0;
  uint64_t done_nevertheless = 0;
  uint64_t stale_commits = 0;
  uint64_t late_refusals = 0;
  // Ranks that were started, ranks that took another generation in process, barriers that a rank
  // passed, checkpoints that were committed.
  uint64_t starts = 0;
  uint64_t taken = 0;
  uint64_t barriers = 0;
  uint64_t checkpoints = 0;
  // By the job's last state.
  int succeeded = 0;
  int failed = 0;
  int cancelled = 0;
  // Jobs that had ended and were forgotten by the coordinator's rule.
  uint64_t forgotten = 0;
  nanoseconds simulated{0};
  // The last events, where they were kept.
  std::vector<std::string> notes;

  // Adds the counts.
  Outcome& operator+=(const Outcome& other);
};

// The counts, in words.
std::string Text(const Outcome& outcome);

Outcome Simulate(const Plan& plan, size_t keep_notes = 0);

}  // namespace meshrun::coordinator::simulation
