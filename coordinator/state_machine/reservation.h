// When the first job of the queue starts at the latest, where, and which jobs of lower priority
// would have to go for it. Pure.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state_machine/placement.h"
#include "core/clock.h"

namespace meshrun::coordinator {

// A job that holds nodes.
struct Holder {
  std::string job_id;
  // When it has given them back at the latest; absent: nobody knows.
  std::optional<SteadyNanos> until;
  // Its ranks are being stopped.
  bool stopping = false;
  // It may be stopped and started again.
  bool restartable = false;
  int32_t priority = 0;
  SteadyNanos since{0};
  // By node_id.
  std::map<std::string, Resource> holds;
};

struct Reservation {
  // Absent: nobody knows, since it needs what a job without a time limit holds.
  std::optional<SteadyNanos> at;
  // The nodes that it gets then; without a time, all that it could use.
  std::set<std::string> nodes;
  // How many placements it took to find out.
  size_t placements = 0;
};

// Reservation for a job that cannot start now, but could if nothing else ran. It stays true while
// nothing that ends after its time is placed on its nodes.
Reservation Reserve(const PlacementRequest& request, const std::vector<Holder>& holders);

// The holders that must be stopped so that the job can start: lowest priority first, then the
// shortest run. Empty: no set of holders is enough, or those already being stopped are enough.
std::vector<std::string> Victims(const PlacementRequest& request, int32_t priority,
                                 const std::vector<Holder>& holders, size_t* placements);

}  // namespace meshrun::coordinator
