#include "parallel/manager/distributed_manager.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "c10/util/Logging.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/base/process.h"
#include "parallel/base/spent_time.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/ucx_engine.h"
#include "parallel/manager/device_choice.h"
#include "parallel/manager/environment.h"
#include "parallel/manager/group_table.h"
#include "parallel/manager/rendezvous.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;

// How long cleanup waits for collectives in flight to notice that a peer is gone.
constexpr milliseconds kReleaseGrace(5000);

// How long rank 0 stays for ranks that are behind, and the key by which they count themselves out.
constexpr milliseconds kLeaveTogether(3000);
constexpr const char* kLeft = "left";

// Only some errors mean that a peer is gone: ranks may also have called something else than
// cleanup.
void warn_of_barrier(const std::exception& error) {
  const auto* const ours = dynamic_cast<const c10::Error*>(&error);
  const bool is_gone = dynamic_cast<const PeerLeftError*>(&error) != nullptr ||
                       dynamic_cast<const PeerLostError*>(&error) != nullptr;
  TORCH_WARN("cleanup(): the barrier failed", is_gone ? ", because a peer is gone: " : ": ",
             ours == nullptr ? error.what() : ours->what_without_backtrace());
}

// The one instance. Never destroyed by the runtime: cleanup() at exit takes it out while LibTorch
// is still whole.
std::unique_ptr<DistributedManager>& instance() {
  static auto& instance = *new std::unique_ptr<DistributedManager>;
  return instance;
}

// What this process tried before, by meeting place; see tcp_store.h.
InstanceHistory& history_of(const World& world) {
  static auto& histories = *new std::map<std::string, InstanceHistory>;
  return histories[meeting_place(world)];
}

bool warn_if_initialized() {
  if (!DistributedManager::is_initialized()) return false;
  TORCH_WARN(
      "DistributedManager is initialized already; this call changes nothing. Call cleanup() first "
      "to join anew.");
  return true;
}

// Lets the groups go on another thread: it waits for collectives in flight, and one whose peer
// hangs without dying may wait for long. Gloo waits in its destructor and cannot be told to stop.
void release_groups(std::vector<ProcessGroupPtr> groups, const std::string& backend) {
  if (groups.empty()) return;
  std::promise<void> released;
  std::future<void> done = released.get_future();
  const bool can_abort = backend != "gloo";
  std::vector<ProcessGroupPtr> to_abort;
  if (can_abort) to_abort = groups;
  std::thread([groups = std::move(groups), can_abort, released = std::move(released)]() mutable {
    for (ProcessGroupPtr& group : groups) {
      try {
        if (can_abort) group->shutdown();
        group.reset();
      } catch (const std::exception& error) {
        TORCH_WARN("a process group did not close cleanly: ", error.what());
      }
    }
    released.set_value();
  }).detach();
  if (done.wait_for(kReleaseGrace) == std::future_status::ready) return;
  TORCH_WARN("collectives are still in flight ", kReleaseGrace.count(), " ms after cleanup(); ",
             can_abort ? "they are aborted" : "their process groups are left to end by themselves");
  for (const ProcessGroupPtr& group : to_abort) group->abort();
  if (can_abort) done.wait_for(kReleaseGrace);
}

void print_partition(const std::string& name, const Partition& partition) {
  std::vector<std::string> groups;
  for (const std::vector<int>& ranks : partition)
    groups.push_back(fmt::format("[{}]", fmt::join(ranks, ", ")));
  const std::string line = fmt::format("process group \"{}\": {}\n", name, fmt::join(groups, " "));
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

struct DistributedManager::State {
  World world;
  const int forks = fork_count();
  std::string backend;
  c10::Device device{c10::DeviceType::CPU};
  std::atomic<bool> broadcast_buffers{false};
  std::atomic<bool> find_unused_parameters{false};
  std::unique_ptr<GroupTable> groups;
  // Engine of all groups with CPU tensors on ucx; made with the first such group.
  mutable std::once_flag engine_once;
  mutable std::shared_ptr<ucx::Engine> engine;

  std::mutex unnamed_mutex;
  std::vector<c10::weak_intrusive_ptr<c10d::ProcessGroup>> unnamed;
  std::vector<std::function<void()>> at_cleanup;
  bool has_met = false;  // all ranks have

  std::mutex mesh_mutex;
  // Set once. Only a default mesh is replaced, by initialize_mesh(); older meshes are kept, since
  // callers hold references.
  std::vector<std::unique_ptr<DeviceMesh>> meshes;
  bool mesh_is_default = false;

  std::shared_ptr<ucx::Engine> shared_engine() const {
    const std::optional<BackendChoice> choice = parse_backend(backend);
    if (!choice || choice->cpu != "ucx") return nullptr;
    std::call_once(engine_once, [&] {
      engine =
          start_ucx_engine({world.rank, world.world_size, world.addresses_of_rank_zero, world.store,
                            world.rendezvous_timeout, world.agent, world.deadlock_after});
    });
    return engine;
  }

  // Whether this process is a child of the one that joined.
  bool is_forked() const { return fork_count() != forks; }

  // Empty: all are on one.
  std::vector<int> nodes_of(const std::vector<int>& ranks) const {
    std::vector<int> nodes;
    for (const int rank : ranks) {
      if (!world.nodes.empty()) nodes.push_back(world.nodes[static_cast<size_t>(rank)]);
    }
    return nodes;
  }

  ProcessGroupPtr make_group(const std::string& name, const std::vector<int>& ranks,
                             const c10::intrusive_ptr<c10d::Store>& store,
                             bool together = false) const {
    const auto mine = std::find(ranks.begin(), ranks.end(), world.rank);
    const int group_rank = static_cast<int>(mine - ranks.begin());
    // Prefix of each key of the group's store. It has the same length for any number of ranks,
    // since one call names several keys.
    const std::string key = fmt::format("group/{}/{}-{:016x}", name, ranks.size(),
                                        Fingerprint(fmt::format("{}", fmt::join(ranks, ","))));
    ProcessGroupOptions options;
    options.connect_timeout = world.rendezvous_timeout;
    options.timeout = world.timeout;
    options.name = name;
    options.address = world.address;
    options.engine = shared_engine();
    options.world_ranks = ranks;
    options.hosts = nodes_of(ranks);
    if (device.is_cuda()) options.device = device;
    ProcessGroupPtr world_group;
    if (together && device.is_cuda() && world.world_size > 1) {
      world_group = groups->group(std::nullopt);
      options.split_from = world_group.get();
      options.split_color = ranks.front();
    }
    ProcessGroupPtr group =
        make_process_group(c10::make_intrusive<c10d::PrefixStore>(key, store), group_rank,
                           static_cast<int>(ranks.size()), backend, options);
    // One member speaks for all, and by its rank for the group among its siblings of the same name.
    if (world.agent && group_rank == 0 && !is_implied(name, ranks)) {
      const absl::Status announced = world.agent->RegisterGroup(name, ranks, backend);
      // The group works all the same, and an error on this rank alone would leave its peers
      // waiting.
      if (!announced.ok()) {
        TORCH_WARN("the coordinator does not list the process group \"", name,
                   "\": ", announced.ToString());
      }
    }
    return group;
  }

  // The coordinator knows the groups along the axes of the mesh that it gave.
  bool is_implied(const std::string& name, const std::vector<int>& ranks) const {
    if (!find_axis(world.mesh, name)) return false;
    return value_or_throw<MeshError>(submesh_of(world.mesh, {name}, world.rank)).ranks == ranks;
  }

  // Returns when all ranks are there. Gloo's group has waited for them in its constructor.
  void meet(c10d::ProcessGroup& group) const {
    if (engine == nullptr) return;
    c10d::BarrierOptions options;
    options.timeout = world.rendezvous_timeout;
    options.device = c10::Device(c10::DeviceType::CPU);
    const auto began = std::chrono::steady_clock::now();
    try {
      group.barrier(options)->wait();
    } catch (const c10::Error& error) {
      throw RendezvousError(
          fmt::format("rank {} of {} did not meet the other ranks of the world in {}: {}",
                      world.rank, world.world_size, spent_of(began, world.rendezvous_timeout),
                      error.what_without_backtrace()));
    }
  }

  // Whether rank 0 hosts what the others meet through.
  bool store_is_ours() const {
    return has_met && !world.agent && !world.store_is_hosted && world.world_size > 1;
  }

  bool has_failed_group() const {
    if (engine == nullptr) return false;
    const auto backend = groups->group(std::nullopt)->getBackend(c10::DeviceType::CPU);
    return backend->getError() != c10d::ErrorType::SUCCESS;
  }

  // On rank 0, which hosts the store and, on ucx, hears of deaths: other ranks may still be
  // finding each other for a group that it is not in.
  void wait_for_others_to_leave() const {
    if (world.rank != 0 || !store_is_ours()) return;
    const auto deadline = std::chrono::steady_clock::now() + kLeaveTogether;
    try {
      while (world.store->add(kLeft, 0) + 1 < world.world_size && !has_failed_group() &&
             std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(milliseconds(2));
      }
    } catch (const std::exception&) {
      // There is nothing to stay for.
    }
  }

  void say_that_it_left() const {
    if (world.rank == 0 || !store_is_ours()) return;
    try {
      world.store->add(kLeft, 1);
    } catch (const std::exception&) {
      // Rank 0 went first.
    }
  }

  void declare(const std::string& name, Partition partition, bool verbose) {
    if (verbose && world.rank == 0) print_partition(name, partition);
    groups->declare(name, std::move(partition));
  }

  // Makes groups of MODEL_PARALLEL_SIZE ranks, unless an axis of the mesh has that name.
  void make_model_parallel_group() {
    const std::string name = kModelParallel;
    if (!world.model_parallel_size || groups->contains(name)) return;
    groups->declare(name, groups->split(name, *world.model_parallel_size, std::nullopt));
    groups->make_together(name);
  }

  const DeviceMesh* mesh() const { return meshes.empty() ? nullptr : meshes.back().get(); }

  // A default mesh gives way to one that is there, and to a later one.
  const DeviceMesh& set_mesh(const MeshLayout& layout, bool is_default = false) {
    auto mesh = std::make_unique<DeviceMesh>(layout, world.rank);
    const std::lock_guard lock(mesh_mutex);
    if (!meshes.empty() && (is_default || !mesh_is_default)) {
      if (is_default || *meshes.back() == *mesh) return *meshes.back();
      throw MeshError(fmt::format("a mesh is there already, {}; it cannot become {}",
                                  meshes.back()->to_string(), mesh->to_string()));
    }
    // All names first, so that a refused mesh leaves nothing behind.
    for (const std::string& name : layout.names) {
      if (name == "world" && layout.names.size() == 1) continue;
      if (groups->contains(name)) {
        throw MeshError(fmt::format(
            "the mesh axis \"{}\" of {} has the name of a process group that exists already", name,
            mesh->to_string()));
      }
    }
    for (const std::string& name : layout.names) {
      if (name != "world") groups->declare(name, axis_partition(layout, name));
    }
    mesh_is_default = is_default;
    meshes.push_back(std::move(mesh));
    return *meshes.back();
  }

  static Partition axis_partition(const MeshLayout& layout, const std::string& name) {
    Partition partition;
    for (const int rank : layout.ranks) {
      std::vector<int> ranks = value_or_throw<MeshError>(submesh_of(layout, {name}, rank)).ranks;
      if (ranks.front() == rank) partition.push_back(std::move(ranks));
    }
    return partition;
  }
};

DistributedManager::DistributedManager(std::unique_ptr<State> state) : state_(std::move(state)) {}

DistributedManager::~DistributedManager() {
  if (state_->is_forked()) {
    // The groups, the store and the line to the daemon are the parent's: never released here.
    static_cast<void>(state_.release());
    return;
  }
  state_->wait_for_others_to_leave();
  // Groups before the store that they met at, and the store before the line to the daemon.
  std::vector<ProcessGroupPtr> groups;
  for (const auto& weak : state_->unnamed) {
    if (ProcessGroupPtr group = weak.lock()) groups.push_back(std::move(group));
  }
  for (const auto& last : std::exchange(state_->at_cleanup, {})) last();
  for (ProcessGroupPtr& group : state_->groups->release()) groups.push_back(std::move(group));
  release_groups(std::move(groups), state_->backend);
  state_->groups.reset();
  state_->engine.reset();
  state_->say_that_it_left();
  state_->world.store.reset();
}

namespace {

// The frames of a program that exports no symbols are unknown functions: they bury the sentence.
void drop_backtraces() {
  const char* const wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (wanted == nullptr || std::string_view(wanted) != "1") {
    c10::SetStackTraceFetcher([] { return std::string(); });
  }
}

}  // namespace

void DistributedManager::install(World world, const std::optional<std::string>& asked_backend) {
  drop_backtraces();
  auto state = std::make_unique<State>();
  const int gpus = gpu_count();
  state->backend = choose_backend(asked_backend, gpus);
  state->world = std::move(world);
  InstanceHistory& history = history_of(state->world);
  join(state->world, history);
  const c10::intrusive_ptr<c10d::Store> store = state->world.store;
  try {
    install_joined(std::move(state), gpus);
  } catch (...) {
    give_up_instance(*store);
    throw;
  }
  // Every rank needs all others for the world's group.
  history.complete = history.last;
  static const int registered = std::atexit([] { cleanup(); });
  static_cast<void>(registered);
}

void DistributedManager::install_joined(std::unique_ptr<State> state, int gpus) {
  state->device = choose_device(state->backend, state->world.world_size, state->world.local_rank,
                                gpus, assigned_gpu(process_environment()));
  State* raw = state.get();
  state->groups = std::make_unique<GroupTable>(
      raw->world.rank, raw->world.world_size,
      [raw](const std::string& name, const std::vector<int>& ranks, bool together) {
        return raw->make_group(name, ranks, raw->world.store, together);
      });
  std::unique_ptr<DistributedManager> manager(new DistributedManager(std::move(state)));
  if (raw->world.world_size > 1) raw->meet(*manager->world());
  raw->has_met = true;
  if (!raw->world.mesh.shape.empty()) raw->set_mesh(raw->world.mesh);
  raw->make_model_parallel_group();

  instance() = std::move(manager);
}

void DistributedManager::initialize(const InitializeOptions& options) {
  if (warn_if_initialized()) return;
  install(find_world(options.method, options.timeout, options.agent), options.backend);
}

void DistributedManager::setup(IntArgument rank, IntArgument world_size,
                               std::optional<IntArgument> local_rank, const std::string& addr,
                               const std::string& port, const std::string& backend,
                               const std::string& method) {
  if (warn_if_initialized()) return;
  const auto on_node = local_rank ? std::optional(local_rank->to_int()) : std::optional<int>();
  install(given_world(rank.to_int(), world_size.to_int(), on_node, addr, port, method), backend);
}

bool DistributedManager::is_initialized() { return instance() != nullptr; }

DistributedManager& DistributedManager::get() {
  if (!instance()) {
    throw UninitializedError(
        "DistributedManager is not initialized: call DistributedManager::initialize() first");
  }
  return *instance();
}

void DistributedManager::cleanup(BoolArgument barrier) {
  if (!instance()) return;
  if (barrier && instance()->world_size() > 1 && !instance()->state_->is_forked()) {
    try {
      instance()->world()->barrier()->wait();
    } catch (const std::exception& error) {  // Gloo has exceptions of its own
      warn_of_barrier(error);
    }
  }
  instance().reset();
}

int DistributedManager::rank() const { return state_->world.rank; }
int DistributedManager::world_size() const { return state_->world.world_size; }
int DistributedManager::local_rank() const { return state_->world.local_rank; }
int DistributedManager::local_world_size() const { return state_->world.local_world_size; }
int DistributedManager::node_rank() const { return state_->world.node_rank; }
std::vector<int> DistributedManager::node_ranks() const {
  if (!state_->world.nodes.empty()) return state_->world.nodes;
  return std::vector<int>(static_cast<size_t>(world_size()), node_rank());
}
c10::Device DistributedManager::device() const { return state_->device; }
bool DistributedManager::cuda() const { return state_->device.is_cuda(); }
bool DistributedManager::distributed() const { return state_->world.distributed; }
const std::string& DistributedManager::backend() const { return state_->backend; }
const std::string& DistributedManager::initialization_method() const {
  return state_->world.method;
}
std::optional<milliseconds> DistributedManager::timeout() const { return state_->world.timeout; }

bool DistributedManager::broadcast_buffers() const { return state_->broadcast_buffers; }
void DistributedManager::set_broadcast_buffers(BoolArgument broadcast) {
  state_->broadcast_buffers = broadcast;
}
bool DistributedManager::find_unused_parameters() const { return state_->find_unused_parameters; }
void DistributedManager::set_find_unused_parameters(BoolArgument find) {
  state_->find_unused_parameters = find;
}

ProcessGroupPtr DistributedManager::world() { return state_->groups->group(std::nullopt); }

ProcessGroupPtr DistributedManager::group(const std::optional<std::string>& name) {
  return state_->groups->group(name);
}

std::vector<std::string> DistributedManager::group_names() const { return state_->groups->names(); }

std::vector<int> DistributedManager::group_ranks(const std::optional<std::string>& name) const {
  return state_->groups->ranks(name);
}

int DistributedManager::group_size(const std::optional<std::string>& name) const {
  return static_cast<int>(group_ranks(name).size());
}

int DistributedManager::group_rank(const std::optional<std::string>& name) const {
  const std::vector<int> ranks = group_ranks(name);
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
}

std::string DistributedManager::group_name(const ProcessGroupPtr& group) const {
  if (!group) return "world";
  const std::optional<std::string> name = state_->groups->name_of(group.get());
  if (!name)
    throw UndefinedGroupError(
        "group_name() got a process group that this DistributedManager did not make");
  return *name;
}

void DistributedManager::create_process_subgroup(const std::string& name, IntArgument size,
                                                 const std::optional<std::string>& group_name,
                                                 BoolArgument verbose) {
  State& state = *get().state_;
  state.declare(name, state.groups->split(name, size.to_int(), group_name), verbose);
  state.groups->make_together(name);
}

void DistributedManager::create_orthogonal_process_group(const std::string& orthogonal_group_name,
                                                         const std::string& group_name,
                                                         BoolArgument verbose) {
  State& state = *get().state_;
  state.declare(orthogonal_group_name, state.groups->transpose(orthogonal_group_name, group_name),
                verbose);
  state.groups->make_together(orthogonal_group_name);
}

void DistributedManager::create_groups_from_config(const ProcessGroupConfig& config,
                                                   BoolArgument verbose) {
  State& state = *get().state_;
  const ProcessGroupTree& tree = config.tree();
  const auto size_of = [&](const std::string& name) {
    const std::optional<int> size = config.get_node(name).size;
    if (!size) {
      throw GroupError(fmt::format(
          "the group \"{}\" of the configuration has no size: call set_leaf_group_sizes()", name));
    }
    return *size;
  };

  std::vector<std::string> declared;
  const auto declare = [&](const std::string& name, Partition partition, bool print) {
    state.declare(name, std::move(partition), print);
    declared.push_back(name);
  };
  std::vector<std::string> made;
  try {
    const std::string& root = tree.root();
    if (root == "world") {
      if (size_of(root) != state.world.world_size) {
        throw GroupError(
            fmt::format("the configuration's \"world\" has {} ranks, but this world has {}",
                        size_of(root), state.world.world_size));
      }
    } else {
      declare(root, state.groups->split(root, size_of(root), std::nullopt), verbose);
      made.push_back(root);
    }
    // Breadth first. A child splits what is orthogonal to its elder siblings within the parent.
    std::vector<std::string> open = {root};
    for (size_t next = 0; next < open.size(); ++next) {
      std::string parent = open[next];
      for (const std::string& child : tree.children(open[next])) {
        declare(child, state.groups->split(child, size_of(child), parent), verbose);
        made.push_back(child);
        const std::string orthogonal = "__orthogonal_to_" + child;
        declare(orthogonal, state.groups->transpose(orthogonal, child), verbose);
        parent = orthogonal;
        open.push_back(child);
      }
    }
  } catch (...) {
    for (const std::string& name : declared) state.groups->forget(name);
    throw;
  }
  for (const std::string& name : made) state.groups->make_together(name);
}

const DeviceMesh& DistributedManager::initialize_mesh(
    const std::vector<int64_t>& mesh_shape, const std::vector<std::string>& mesh_dim_names) {
  return state_->set_mesh(
      value_or_throw<MeshError>(make_mesh_layout(mesh_shape, mesh_dim_names, world_size())));
}

const DeviceMesh& DistributedManager::global_mesh() {
  {
    const std::lock_guard lock(state_->mesh_mutex);
    if (state_->mesh() != nullptr) return *state_->mesh();
  }
  return state_->set_mesh(
      value_or_throw<MeshError>(make_mesh_layout({-1}, {"world"}, world_size())),
      /*is_default=*/true);
}

DeviceMesh DistributedManager::mesh(const std::optional<std::string>& name) const {
  const std::lock_guard lock(state_->mesh_mutex);
  if (state_->mesh() == nullptr) {
    throw UndefinedGroupError(
        "no mesh was initialized: call initialize_mesh() or global_mesh(), or start with --mesh");
  }
  const DeviceMesh& global = *state_->mesh();
  if (!name) return global;
  if (!find_axis(global.layout(), *name)) {
    throw UndefinedGroupError(fmt::format("there is no mesh \"{}\"; the axes are \"{}\"", *name,
                                          fmt::join(global.mesh_dim_names(), "\", \"")));
  }
  return global[*name];
}

std::vector<std::string> DistributedManager::mesh_names() const {
  const std::lock_guard lock(state_->mesh_mutex);
  return state_->mesh() == nullptr ? std::vector<std::string>() : state_->mesh()->mesh_dim_names();
}

std::map<std::string, int64_t> DistributedManager::mesh_dims() const {
  const std::lock_guard lock(state_->mesh_mutex);
  std::map<std::string, int64_t> dims;
  if (state_->mesh() == nullptr) return dims;
  for (const std::string& name : state_->mesh()->mesh_dim_names())
    dims[name] = state_->mesh()->size(name);
  return dims;
}

ProcessGroupPtr DistributedManager::get_mesh_group(const DeviceMesh& mesh) {
  if (mesh.ndim() == 1) {
    const std::string& name = mesh.mesh_dim_names().front();
    if (state_->groups->contains(name) && state_->groups->ranks(name) == mesh.ranks())
      return group(name);
  }
  return state_->groups->unnamed_group("mesh " + mesh.to_string(), mesh.ranks());
}

ProcessGroupPtr DistributedManager::make_group(const std::string& key,
                                               const std::vector<int>& ranks,
                                               const c10::intrusive_ptr<c10d::Store>& store) {
  if (std::find(ranks.begin(), ranks.end(), rank()) == ranks.end()) {
    throw GroupError(fmt::format("rank {} cannot make the process group \"{}\" of ranks [{}]",
                                 rank(), key, fmt::join(ranks, ", ")));
  }
  ProcessGroupPtr group = state_->make_group(key, ranks, store ? store : state_->world.store);
  const std::lock_guard lock(state_->unnamed_mutex);
  std::erase_if(state_->unnamed, [](const auto& weak) { return weak.expired(); });
  state_->unnamed.emplace_back(group);
  return group;
}

void DistributedManager::at_cleanup(std::function<void()> last) {
  const std::lock_guard lock(state_->unnamed_mutex);
  state_->at_cleanup.push_back(std::move(last));
}

agent::Agent* DistributedManager::agent() const { return state_->world.agent.get(); }
std::shared_ptr<agent::Agent> DistributedManager::shared_agent() const {
  return state_->world.agent;
}
c10::intrusive_ptr<c10d::Store> DistributedManager::store() const { return state_->world.store; }

}  // namespace meshrun
