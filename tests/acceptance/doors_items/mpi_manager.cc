// DistributedManager::initialize(MPI_Comm), in C++: says its place, and what an all-reduce of the
// ranks' numbers gives.
#include <mpi.h>

#include <cstdio>
#include <vector>

#include "ATen/Functions.h"
#include "parallel/c_api/communicator.h"

int main(int argc, char** argv) {
  using meshrun::DistributedManager;
  try {
    DistributedManager::initialize(MPI_COMM_WORLD);
  } catch (const meshrun::EnvironmentError& error) {
    std::printf("refused: %s\n", error.what());
  }
  MPI_Init(&argc, &argv);
  MPI_Comm reversed;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
  DistributedManager::initialize(reversed, {.backend = "gloo"});
  DistributedManager& manager = DistributedManager::get();
  std::vector<at::Tensor> sum = {at::full({1}, rank + 1, at::kLong)};
  manager.world()->allreduce(sum)->wait();
  std::printf("%s: rank %d is %d of %d on %s, sum %ld\n", manager.initialization_method().c_str(),
              rank, manager.rank(), manager.world_size(), manager.backend().c_str(),
              static_cast<long>(sum[0].item<int64_t>()));
  DistributedManager::cleanup();
  MPI_Comm_free(&reversed);
  MPI_Finalize();
}
