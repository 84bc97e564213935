// Worlds of real rank processes for tests of collectives: on ucx and on Gloo, of one to four ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

// Runs a registered rank function in all of them. Two ranks on ucx are programs executed anew,
// whose addresses differ and whose exit is whole; the others are forks (rank_processes.h).
void run_in_worlds(const std::string& function, const std::vector<int>& sizes = {1, 2, 3, 4},
                   const std::vector<std::string>& backends = {"ucx", "gloo"});

// DistributedManager of this rank for the length of a test. All ranks leave together.
class JoinedWorld {
 public:
  JoinedWorld();
  ~JoinedWorld();

  DistributedManager& manager;
  const int rank;
  const int size;
};

// Expects `call` to throw a c10::Error that says `part`, in the same words on all ranks of the
// world.
void expect_error_on_all_ranks(const std::function<void()>& call, const std::string& part);
// Message of the c10::Error that `call` throws; the test fails if it throws nothing or something
// else.
std::string error_of(const std::function<void()>& call);

}  // namespace meshrun
