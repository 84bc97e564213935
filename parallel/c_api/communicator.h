// DistributedManager::initialize(MPI_Comm), for C++.
//
//   #include "parallel/c_api/communicator.h"
//   MPI_Init(&argc, &argv);
//   meshrun::DistributedManager::initialize(MPI_COMM_WORLD);
//
// The world is the communicator: its ranks, and its hosts. Collective over it. meshrun_mpi.h says
// what else holds, and which library to link.
//
// Errors: EnvironmentError if MPI's state or the communicator does not allow it, RendezvousError.
#pragma once

#include <array>
#include <string>

#include "parallel/base/errors.h"
#include "parallel/c_api/c_bootstrap.h"
#include "parallel/c_api/meshrun_mpi.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun {

template <>
class BootstrapOf<MPI_Comm> {
 public:
  explicit BootstrapOf(MPI_Comm communicator) {
    std::array<char, 512> error{};
    const int code = meshrun_mpi_open(communicator, &opened_, error.data(), error.size());
    if (code == MESHRUN_ENVIRONMENT) throw EnvironmentError(std::string(error.data()));
    if (code != MESHRUN_OK) throw RendezvousError(std::string(error.data()));
    bootstrap_ = to_bootstrap(opened_);
  }
  ~BootstrapOf() { meshrun_mpi_close(&opened_); }
  BootstrapOf(const BootstrapOf&) = delete;
  BootstrapOf& operator=(const BootstrapOf&) = delete;

  const Bootstrap& bootstrap() const { return bootstrap_; }

 private:
  meshrun_bootstrap opened_{};
  Bootstrap bootstrap_;
};

}  // namespace meshrun
