#include "tests/bench/collectives/world.h"

#include <mpi/mpi.h>
#include <sched.h>
#include <ucp/api/ucp.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "parallel/comm/process_group_factory.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"
#include "torch/version.h"

namespace meshrun::bench {

Group make_group(const std::string& backend, const c10::intrusive_ptr<c10d::Store>& store, int rank,
                 int size) {
  return make_process_group(c10::make_intrusive<c10d::PrefixStore>(backend, store), rank, size,
                            backend, {.name = "bench-" + backend});
}

c10::intrusive_ptr<c10d::Store> meet(int rank, int size) {
  c10d::TCPStoreOptions options;
  options.numWorkers = size;
  options.waitWorkers = false;
  options.isServer = true;
  options.port = 0;
  c10::intrusive_ptr<c10d::TCPStore> server;
  if (rank == 0) server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  int port = rank == 0 ? server->getPort() : 0;
  MPI_Bcast(&port, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (rank == 0) return server;
  options.isServer = false;
  options.port = static_cast<uint16_t>(port);
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

namespace {

// The cores that this process may run on, "0,1".
std::string cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) text += (text.empty() ? "" : ",") + std::to_string(core);
  }
  return text;
}

}  // namespace

nlohmann::json machine(int rank, int size) {
  std::string mine = cores();
  mine.resize(64);
  std::vector<char> all(64 * static_cast<size_t>(size));
  MPI_Gather(mine.data(), 64, MPI_CHAR, all.data(), 64, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank != 0) return {};
  nlohmann::json pinned = nlohmann::json::array();
  for (int r = 0; r < size; ++r) pinned.push_back(std::string(&all[64 * static_cast<size_t>(r)]));
  char mpi[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(mpi, &length);
  double load[3] = {};
  getloadavg(load, 3);
  const std::string version(mpi);
  return {{"torch", TORCH_VERSION},
          {"ucx", ucp_get_version_string()},
          {"open_mpi", version.substr(0, version.find(','))},
          {"gloo", "of LibTorch, over TCP on loopback"},
          {"ranks", size},
          {"cores", pinned},
          {"header_check", true},
          {"load_average", {load[0], load[1], load[2]}}};
}

}  // namespace meshrun::bench
