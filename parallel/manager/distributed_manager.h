// Who am I in this job, on which device, and which process groups am I in.
//
//   meshrun::DistributedManager::initialize();
//   auto& manager = meshrun::DistributedManager::get();
//   std::vector<at::Tensor> tensors = {gradient.to(manager.device())};
//   manager.world()->allreduce(tensors)->wait();
//
// One binary runs under every launcher. initialize() takes the first of these that the environment
// shows: the meshrun daemon (MESHRUN_AGENT), ENV (torchrun's variables), SLURM, OPENMPI; with none
// of them the process is rank 0 of 1, where groups and meshes work too.
// MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD, then PHYSICSNEMO_DISTRIBUTED_INITIALIZATION_METHOD,
// forces one (parallel/manager/environment.h has the contract). MESHRUN_TIMEOUT_SECONDS sets the
// timeout of rendezvous and collectives.
//
// A subgroup is made by the call that creates it; the group of a mesh axis when group() or
// get_mesh_group() first hands it out, which all its ranks must come to, in the same order of
// groups. What a group consists of is known on every rank beforehand, so wrong arguments are
// reported by all of them, before anything is sent.
//
// Threads: initialize, setup and cleanup from one thread, while nobody else uses the manager. All
// other methods from any thread.
//
// Errors: parallel/base/errors.h. Collectives raise those of parallel/base/collective_errors.h
// on ucx; on other backends c10d's c10::DistError, and Gloo's own std::runtime_error where a peer
// dies.
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
#include <vector>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/manager/device_mesh.h"
#include "parallel/manager/process_group_config.h"

namespace c10d {
class ProcessGroup;  // #include "torch/csrc/distributed/c10d/ProcessGroup.hpp" to call its methods
class Store;
}  // namespace c10d

namespace meshrun {

namespace agent {
class Agent;  // #include "agent/agent.h"
}

struct World;

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

struct InitializeOptions {
  // "ucx", "gloo", "nccl", or one for each device: "cpu:gloo,cuda:nccl". Absent: MESHRUN_BACKEND,
  // else "nccl" where this process has a GPU and NCCL linked in, else "ucx".
  std::optional<std::string> backend;
  // COORDINATOR, ENV, SLURM or OPENMPI; absent: the variables above, else the first that the
  // environment shows.
  std::optional<std::string> method;
  // Of rendezvous and collectives; absent: MESHRUN_TIMEOUT_SECONDS, else 5 minutes and c10d's own
  // (ucx and Gloo 30 minutes, NCCL 10).
  std::optional<std::chrono::milliseconds> timeout;
  // A connection to the daemon that is there already, for COORDINATOR; absent: one is made.
  std::shared_ptr<agent::Agent> agent;
};

class DistributedManager {
 public:
  // Joins the job. A second call warns and returns. Raises EnvironmentError (half set, malformed),
  // RendezvousError, BackendError; the manager is then uninitialized, and initialize() may be
  // called again, on all ranks, whatever each of them failed at.
  static void initialize(const InitializeOptions& options = {});
  // Joins as told instead of as found. `backend` "nccl" without a GPU is a BackendError. `method`
  // is recorded only. MESHRUN_TIMEOUT_SECONDS holds here too.
  static void setup(int rank = 0, int world_size = 1, std::optional<int> local_rank = std::nullopt,
                    const std::string& addr = "localhost", const std::string& port = "12355",
                    const std::string& backend = "nccl", const std::string& method = "env");
  static bool is_initialized();
  // The one instance. Raises UninitializedError before initialize() or setup() and after cleanup().
  static DistributedManager& get();
  // Drops all groups. With `barrier`, first waits for all ranks, at most the timeout; a lost peer
  // is a warning. Also runs at exit. Afterwards initialize() works again. References from get() are
  // invalid then.
  static void cleanup(bool barrier = false);

  int rank() const;
  int world_size() const;
  int local_rank() const;
  int local_world_size() const;
  int node_rank() const;
  // The node of each rank of the world.
  std::vector<int> node_ranks() const;
  // cuda:<the first GPU that the daemon gave this rank, else the local rank>, or cpu.
  c10::Device device() const;
  bool cuda() const;
  // More than one rank, or a launcher said so.
  bool distributed() const;
  // As asked or chosen: "ucx", "nccl".
  const std::string& backend() const;
  // "COORDINATOR", "ENV", "SLURM", "OPENMPI", "SINGLE", or what setup() was given.
  const std::string& initialization_method() const;
  // Of collectives; nothing where c10d's own holds.
  std::optional<std::chrono::milliseconds> timeout() const;

  // What DistributedDataParallel is to be built with.
  bool broadcast_buffers() const;
  void set_broadcast_buffers(bool broadcast);
  bool find_unused_parameters() const;
  void set_find_unused_parameters(bool find);

  // The group of all ranks.
  ProcessGroupPtr world();
  // The group of that name which this rank is in; without a name, or "world", the world. The name
  // is that of a subgroup, an orthogonal group, or a mesh axis. Raises UndefinedGroupError, which
  // lists the names there are.
  ProcessGroupPtr group(const std::optional<std::string>& name = std::nullopt);
  // All names, in order of creation, without "world".
  std::vector<std::string> group_names() const;
  // Known without making the group.
  int group_size(const std::optional<std::string>& name = std::nullopt) const;
  int group_rank(const std::optional<std::string>& name = std::nullopt) const;
  // Global ranks, by group rank.
  std::vector<int> group_ranks(const std::optional<std::string>& name = std::nullopt) const;
  // The name of a group from group(); "world" for a null handle. Raises UndefinedGroupError for a
  // stranger.
  std::string group_name(const ProcessGroupPtr& group = {}) const;

  // Splits a group (the world where `group_name` is absent) into contiguous blocks of `size`. To be
  // called by all ranks. Raises GroupError: the name is taken, `size` does not divide the parent's;
  // UndefinedGroupError: no such parent.
  static void create_process_subgroup(const std::string& name, int size,
                                      const std::optional<std::string>& group_name = std::nullopt,
                                      bool verbose = false);
  // Ranks with the same position in `group_name` meet in the new group. To be called by all ranks.
  static void create_orthogonal_process_group(const std::string& orthogonal_group_name,
                                              const std::string& group_name, bool verbose = false);
  static void create_groups_from_config(const ProcessGroupConfig& config, bool verbose = false);

  // Arranges the world; one size may be -1. Every axis becomes a group of its name. Raises
  // MeshError; also where a mesh of another shape is there already (a job submitted with --mesh
  // comes with one).
  const DeviceMesh& initialize_mesh(const std::vector<int64_t>& mesh_shape,
                                    const std::vector<std::string>& mesh_dim_names);
  // One axis named "world" where no mesh was initialized.
  const DeviceMesh& global_mesh();
  // The global mesh, or this rank's sub-mesh along one axis. Raises UndefinedGroupError where no
  // mesh was initialized or the name is unknown.
  DeviceMesh mesh(const std::optional<std::string>& name = std::nullopt) const;
  std::vector<std::string> mesh_names() const;
  // Axis name to size.
  std::map<std::string, int64_t> mesh_dims() const;
  // The group of a mesh's ranks, made once. To be called by all of them.
  ProcessGroupPtr get_mesh_group(const DeviceMesh& mesh);
  // A new group of `ranks`, this rank among them, that no name leads to. To be called by all of
  // them. `key`, with the ranks, tells it from any other made over the same store: the world's, or
  // `store`. The caller owns it; cleanup() shuts it down all the same.
  ProcessGroupPtr make_group(const std::string& key, const std::vector<int>& ranks,
                             const c10::intrusive_ptr<c10d::Store>& store = {});
  // Runs `last`, once, when cleanup() begins: for what is built on the groups and must go first.
  void at_cleanup(std::function<void()> last);

  // The rank's line to its daemon; nullptr outside meshrun.
  agent::Agent* agent() const;
  // The store that the world met at.
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
