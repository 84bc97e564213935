// What a process says of a group that it joins. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/comm/ucx/engine/values/hosts.h"

namespace meshrun::ucx {

struct GroupConfig {
  std::string name;
  int rank = 0;
  int size = 1;
  std::vector<int> world_ranks;  // by rank in the group; absent: the same numbers
  int world_rank(int of) const { return world_ranks.empty() ? of : world_ranks[of]; }
  // Told by the launcher, equal on all ranks; algorithms depend on it.
  Hosts hosts;
  // Sums are taken in rank order on several hosts too (algorithms.h).
  bool in_rank_order = false;
  bool check_headers = true;
  // Equal on all ranks: shorter messages are not worth an offer of memory (shared_heap.h).
  int64_t least_offered = 4 << 10;
  // Nor is it worth lending a source for them: they leave the sender without waiting for receivers.
  int64_t least_lent = 8 << 10;
};

// What one rank copied and sent: gates of the benchmarks, and metrics.
struct Counters {
  int64_t operations = 0;
  int64_t messages = 0;
  int64_t sent_bytes = 0;
  int64_t copied_bytes = 0;  // staged, moved from input to output
  int64_t pushed_bytes = 0;  // of the sent ones: written into the receiver's memory
  int64_t lent_bytes = 0;    // of the sent ones: read by the receiver from the sender's memory
  int64_t reduced_bytes = 0;
  int64_t submitters = 0;  // threads that are remembered because they have begun operations
  int64_t wake_ups = 0;    // of the progress thread from its rest, each a system call of another
};

}  // namespace meshrun::ucx
