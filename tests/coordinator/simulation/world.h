// Everything of one simulated cluster.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/coordinator/simulation/coordinator_process.h"
#include "tests/coordinator/simulation/host.h"
#include "tests/coordinator/simulation/ledger.h"
#include "tests/coordinator/simulation/network.h"
#include "tests/coordinator/simulation/random.h"
#include "tests/coordinator/simulation/timeline.h"

namespace meshrun::coordinator::simulation {

// What the ranks of a job do.
struct Work {
  // Between the first barrier and the last.
  nanoseconds span = seconds(5);
  // Number of additions of each rank to one counter.
  int additions = 2;
  // Its ranks take another generation without being started again.
  bool in_process = false;
  // Rank 0 commits them through the coordinator.
  bool checkpoints = false;
  // Its ranks report that their work is finished before they exit.
  bool reports_finish = false;
  // No rank takes a step before: what they all read from hangs.
  SteadyNanos stands_until{0};
};

struct World {
  World(uint64_t seed, CoordinatorProcess::Observer& observer, StateStore& store)
      : random(seed), coordinator(timeline, random, observer, store) {}

  Timeline timeline;
  Random random;
  Ledger ledger;
  CoordinatorProcess coordinator;
  std::vector<std::unique_ptr<Host>> hosts;
  // By the job's name.
  std::map<std::string, Work> works;
  uint64_t next_process = 1;
};

}  // namespace meshrun::coordinator::simulation
