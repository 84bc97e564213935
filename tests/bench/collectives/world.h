// The ranks of a benchmark: processes of this machine that mpirun has started, each on a core of
// its own; how they meet in c10d, and what rank 0 writes of the machine.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun::bench {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// After MPI_Init, by all ranks.
c10::intrusive_ptr<c10d::Store> meet(int rank, int size);
Group make_group(const std::string& backend, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                 int size);
// Versions, cores, load average; empty but on rank 0. Called by all.
nlohmann::json machine(int rank, int size);

}  // namespace meshrun::bench
