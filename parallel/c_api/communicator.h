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
#include "parallel/c_api/meshrun_mpi.h"
#include "parallel/manager/bootstrap.h"
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
    bootstrap_.rank = opened_.rank;
    bootstrap_.world_size = opened_.world_size;
    bootstrap_.local_rank = opened_.local_rank;
    bootstrap_.local_world_size = opened_.local_world_size;
    bootstrap_.node_rank = opened_.node_rank;
    bootstrap_.broadcast = [this](void* data, size_t bytes) {
      std::array<char, 512> text{};
      check(opened_.broadcast(opened_.context, data, bytes, text.data(), text.size()), text.data());
    };
    bootstrap_.all_gather = [this](const void* own, void* all, size_t bytes) {
      std::array<char, 512> text{};
      check(opened_.all_gather(opened_.context, own, all, bytes, text.data(), text.size()),
            text.data());
    };
  }
  ~BootstrapOf() { meshrun_mpi_close(&opened_); }
  BootstrapOf(const BootstrapOf&) = delete;
  BootstrapOf& operator=(const BootstrapOf&) = delete;

  const Bootstrap& bootstrap() const { return bootstrap_; }

 private:
  static void check(int code, const char* text) {
    if (code != 0) throw RendezvousError(std::string(text));
  }

  meshrun_bootstrap opened_{};
  Bootstrap bootstrap_;
};

}  // namespace meshrun
