// What tests of the executor and of its objects share: bytes, seeds, barriers.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/parallel/comm/ucx/simulation.h"

namespace meshrun::ucx {

using Bytes = std::vector<std::byte>;

inline Bytes bytes(size_t size, int value) { return Bytes(size, static_cast<std::byte>(value)); }

// Ranks of seed 0 have no heaps, those of seed 1 have.
inline MemoryNetwork::Options options(uint64_t seed = 0) {
  MemoryNetwork::Options options;
  options.seed = seed;
  return options;
}

inline std::vector<Simulation::Handle> barrier(Simulation& ranks,
                                               const std::string& group = "world") {
  std::vector<Simulation::Handle> handles;
  for (const int rank : ranks.members(group)) {
    handles.push_back(ranks.submit(rank, group, barrier_spec()));
  }
  return handles;
}

}  // namespace meshrun::ucx
