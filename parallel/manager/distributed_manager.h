// This rank's place in the job, its device, and its process groups and meshes.
//
//   meshrun::DistributedManager::initialize();
//   auto& manager = meshrun::DistributedManager::get();
//   std::vector<at::Tensor> tensors = {gradient.to(manager.device())};
//   manager.world()->allreduce(tensors)->wait();
//
// One binary runs under every launcher. initialize() takes the first of these that the environment
// shows: the meshrun daemon (MESHRUN_AGENT), ENV (torchrun's variables), SLURM, OPENMPI, MPICH (and
// Intel MPI). If it shows none, the process is rank 0 of 1; groups and meshes work there too.
// MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD, then PHYSICSNEMO_DISTRIBUTED_INITIALIZATION_METHOD,
// forces one (parallel/manager/environment.h has the contract). A program that has MPI passes its
// communicator instead: initialize(MPI_COMM_WORLD), see parallel/c_api/communicator.h.
// MESHRUN_TIMEOUT_SECONDS sets the timeout of rendezvous and collectives. With
// MODEL_PARALLEL_SIZE=n initialize() also makes the group "model_parallel", of n consecutive ranks
// each; n divides the world size.
//
// The call that creates a subgroup connects it. The group of a mesh axis is connected when group()
// or get_mesh_group() first returns it: all its ranks must make that call, in the same order of
// groups. Every rank knows beforehand which ranks form a group, so all of them report wrong
// arguments, before anything is sent.
//
// Threads: initialize, setup and cleanup from one thread, while no other thread uses the manager.
// All other methods from any thread.
//
// Errors: parallel/base/errors.h. Collectives raise those of parallel/base/collective_errors.h on
// ucx; on other backends c10d's c10::DistError, and Gloo's own std::runtime_error if a peer dies.
//
// Corresponds to physicsnemo.distributed.DistributedManager.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/arguments.h"
#include "parallel/manager/device_mesh.h"
#include "parallel/manager/process_group_config.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

namespace agent {
class Agent;  // #include "agent/agent.h"
}

struct World;
struct Bootstrap;  // #include "parallel/manager/bootstrap.h"
// Specialised by headers of other libraries' communicators.
template <typename Communicator>
class BootstrapOf;

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

struct InitializeOptions {
  // "ucx", "gloo", "nccl", or one for each device: "cpu:gloo,cuda:nccl". Absent: MESHRUN_BACKEND,
  // else "nccl" where this process has a GPU and NCCL linked in, else "ucx".
  std::optional<std::string> backend;
  // COORDINATOR, ENV, SLURM, OPENMPI or MPICH; absent: as the variables above say, else the first
  // that the environment shows.
  std::optional<std::string> method;
  // Timeout of rendezvous and collectives; absent: MESHRUN_TIMEOUT_SECONDS, else 5 minutes for
  // rendezvous and c10d's own for collectives (ucx and Gloo 30 minutes, NCCL 10).
  std::optional<std::chrono::milliseconds> timeout;
  // For COORDINATOR: an existing connection to the daemon; absent: one is made.
  std::shared_ptr<agent::Agent> agent;
};

class DistributedManager {
 public:
  // Joins the job. A second call warns and returns. Raises EnvironmentError (half set, malformed),
  // RendezvousError, BackendError; the manager is then uninitialized, and all ranks may call
  // initialize() again, whatever went wrong on each.
  static void initialize(const InitializeOptions& options = {});
  // Joins the ranks that another library has brought together (bootstrap.h), instead of those that
  // the environment names; `method` and `agent` of the options do not apply. Collective over them.
  // If all are in the world of these ranks already, it warns and returns. If one is in another, all
  // raise EnvironmentError.
  static void initialize(const Bootstrap& bootstrap, const InitializeOptions& options = {});
  // initialize(MPI_COMM_WORLD), or any other communicator, with parallel/c_api/communicator.h
  // included: that says how a Communicator becomes a Bootstrap.
  template <typename Communicator>
  requires requires { BootstrapOf<Communicator>(std::declval<Communicator>()); }
  static void initialize(Communicator communicator, const InitializeOptions& options = {}) {
    initialize(BootstrapOf<Communicator>(communicator).bootstrap(), options);
  }
  // Joins with the given values instead of the environment's. `backend` "nccl" without a GPU is a
  // BackendError. `method` is only recorded. MESHRUN_TIMEOUT_SECONDS applies here too.
  static void setup(IntArgument rank = 0, IntArgument world_size = 1,
                    std::optional<IntArgument> local_rank = std::nullopt,
                    const std::string& addr = "localhost", const std::string& port = "12355",
                    const std::string& backend = "nccl", const std::string& method = "env");
  static bool is_initialized();
  // The one instance. Raises UninitializedError before initialize() or setup() and after cleanup().
  static DistributedManager& get();
  // Drops all groups. With `barrier` it first waits for all ranks, at most for the timeout; a lost
  // peer is a warning. Also runs at exit. Afterwards references from get() are invalid, and
  // initialize() works again.
  static void cleanup(BoolArgument barrier = false);

  int rank() const;
  int world_size() const;
  int local_rank() const;
  int local_world_size() const;
  int node_rank() const;
  // The node of each rank of the world.
  std::vector<int> node_ranks() const;
  // cuda:<the first GPU that the daemon gave this rank, else by the local rank>, or cpu. Worlds of
  // parts of a launch count local ranks as the launcher does, where gpu_index() says so.
  c10::Device device() const;
  bool cuda() const;
  // Whether there is more than one rank, or a launcher started this process.
  bool distributed() const;
  // As requested or chosen: "ucx", "nccl".
  const std::string& backend() const;
  // "COORDINATOR", "ENV", "SLURM", "OPENMPI", "MPICH", "SINGLE", or what setup() or the
  // Bootstrap was given ("MPI").
  const std::string& initialization_method() const;
  // Timeout of collectives; absent: c10d's own.
  std::optional<std::chrono::milliseconds> timeout() const;

  // The options to build DistributedDataParallel with.
  bool broadcast_buffers() const;
  void set_broadcast_buffers(BoolArgument broadcast);
  bool find_unused_parameters() const;
  void set_find_unused_parameters(BoolArgument find);

  // The group of all ranks.
  ProcessGroupPtr world();
  // This rank's group of that name: a subgroup's, an orthogonal group's or a mesh axis's; without a
  // name, or for "world", the world. Raises UndefinedGroupError, which lists all names.
  ProcessGroupPtr group(const std::optional<std::string>& name = std::nullopt);
  // All names, in order of creation, without "world".
  std::vector<std::string> group_names() const;
  // These three do not connect the group.
  int group_size(const std::optional<std::string>& name = std::nullopt) const;
  int group_rank(const std::optional<std::string>& name = std::nullopt) const;
  // Global ranks, by group rank.
  std::vector<int> group_ranks(const std::optional<std::string>& name = std::nullopt) const;
  // The name of a group from group(); "world" for a null handle. Raises UndefinedGroupError for any
  // other handle.
  std::string group_name(const ProcessGroupPtr& group = {}) const;

  // Splits a group (absent: the world) into contiguous blocks of `size` ranks. All ranks call it.
  // Raises GroupError: the name is taken, `size` does not divide the parent's size, or, on ucx,
  // ranks give other arguments (as in the next two functions); UndefinedGroupError: there is no
  // such parent.
  static void create_process_subgroup(const std::string& name, IntArgument size,
                                      const std::optional<std::string>& group_name = std::nullopt,
                                      BoolArgument verbose = false);
  // Ranks with the same position in `group_name` form a new group. All ranks call it.
  static void create_orthogonal_process_group(const std::string& orthogonal_group_name,
                                              const std::string& group_name,
                                              BoolArgument verbose = false);
  static void create_groups_from_config(const ProcessGroupConfig& config,
                                        BoolArgument verbose = false);

  // Arranges the world as a mesh; one size may be -1. Every axis becomes a group of its name. All
  // ranks make the first call. Raises MeshError, also if, on ucx, ranks give other arguments, or if
  // there is a mesh of another shape (a job submitted with --mesh starts with one).
  const DeviceMesh& initialize_mesh(const std::vector<int64_t>& mesh_shape,
                                    const std::vector<std::string>& mesh_dim_names);
  // One axis named "world" if no mesh was initialized.
  const DeviceMesh& global_mesh();
  // The global mesh, or this rank's sub-mesh along one axis. Raises UndefinedGroupError if no mesh
  // was initialized or the name is unknown.
  DeviceMesh mesh(const std::optional<std::string>& name = std::nullopt) const;
  std::vector<std::string> mesh_names() const;
  // Axis name to size.
  std::map<std::string, int64_t> mesh_dims() const;
  // The group of a mesh's ranks, made once. All of them call it.
  ProcessGroupPtr get_mesh_group(const DeviceMesh& mesh);
  // A new group of `ranks`, this rank included, without a name. All of them call it. `key` and the
  // ranks together distinguish it from every other group made over the same store: the world's, or
  // `store`. The caller owns it; cleanup() still shuts it down.
  ProcessGroupPtr make_group(const std::string& key, const std::vector<int>& ranks,
                             const c10::intrusive_ptr<c10d::Store>& store = {});
  // Runs `last` once, when cleanup() begins: for what uses the groups and must end before them.
  void at_cleanup(std::function<void()> last);

  // The rank's connection to its daemon; nullptr outside meshrun.
  agent::Agent* agent() const;
  // The same, for whoever needs it after cleanup().
  std::shared_ptr<agent::Agent> shared_agent() const;
  // The store through which the world met.
  c10::intrusive_ptr<c10d::Store> store() const;

  ~DistributedManager();
  DistributedManager(const DistributedManager&) = delete;
  DistributedManager& operator=(const DistributedManager&) = delete;

 private:
  struct State;
  static void install(World world, const std::optional<std::string>& asked_backend);
  static void install_joined(std::unique_ptr<State> state, int gpus);
  explicit DistributedManager(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace meshrun
