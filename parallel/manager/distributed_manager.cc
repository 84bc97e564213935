#include "parallel/manager/distributed_manager.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "c10/util/Exception.h"
#include "c10/util/Logging.h"
#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "parallel/base/spent_time.h"
#include "parallel/manager/device_choice.h"
#include "parallel/manager/distributed_manager_state.h"
#include "parallel/manager/environment.h"
#include "parallel/manager/group_table.h"
#include "parallel/manager/libtorch_version.h"
#include "parallel/manager/rendezvous.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

// What this process tried before, by meeting place; see tcp_store.h.
InstanceHistory& history_of(const World& world) {
  static auto& histories = *new std::map<std::string, InstanceHistory>;
  return histories[meeting_place(world)];
}

// The job that this process was in last, by address and port of its store.
std::string& former_identity(const World& world) {
  static auto& identities = *new std::map<std::string, std::string>;
  return identities[fmt::format("{}:{}", world.master_addr, world.master_port)];
}

bool warn_if_initialized() {
  if (!DistributedManager::is_initialized()) return false;
  TORCH_WARN(
      "DistributedManager is initialized already; this call changes nothing. Call cleanup() first "
      "to join anew.");
  return true;
}

// The frames of a program that exports no symbols are unknown functions: they bury the sentence.
void drop_backtraces() {
  const char* const wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (wanted == nullptr || std::string_view(wanted) != "1") {
    c10::SetStackTraceFetcher([] { return std::string(); });
  }
}

}  // namespace

std::unique_ptr<DistributedManager>& DistributedManager::State::instance() {
  static auto& instance = *new std::unique_ptr<DistributedManager>;
  return instance;
}

void DistributedManager::State::meet(c10d::ProcessGroup& group) const {
  if (engine == nullptr) return;
  c10d::BarrierOptions options;
  options.timeout = world.rendezvous_timeout;
  options.device = c10::Device(c10::DeviceType::CPU);
  const auto began = std::chrono::steady_clock::now();
  try {
    group.barrier(options)->wait();
  } catch (const c10::Error& error) {
    throw RendezvousError(
        fmt::format("rank {} of {} did not meet the other ranks of the world in {}: {}", world.rank,
                    world.world_size, spent_of(began, world.rendezvous_timeout),
                    error.what_without_backtrace()));
  }
}

DistributedManager::DistributedManager(std::unique_ptr<State> state) : state_(std::move(state)) {}

void DistributedManager::install(World world, const std::optional<std::string>& asked_backend) {
  drop_backtraces();
  require_libtorch_of_build();
  auto state = std::make_unique<State>();
  const int gpus = gpu_count();
  state->backend = choose_backend(asked_backend, gpus);
  state->world = std::move(world);
  InstanceHistory& history = history_of(state->world);
  std::string& former = former_identity(state->world);
  history.identity = former;
  join(state->world, history);
  former = history.identity;
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
  state->device =
      choose_device(state->backend, state->world.world_size, state->world.local_rank, gpus,
                    assigned_gpu(process_environment()), state->world.launched_local_ranks);
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

  State::instance() = std::move(manager);
}

void DistributedManager::initialize(const InitializeOptions& options) {
  if (warn_if_initialized()) return;
  install(find_world(options.method, options.timeout, options.agent), options.backend);
}

void DistributedManager::initialize(const Bootstrap& bootstrap, const InitializeOptions& options) {
  const World* const joined = is_initialized() ? &State::instance()->state_->world : nullptr;
  std::optional<World> world = bootstrapped_world(bootstrap, joined, options.timeout);
  if (world) return install(*std::move(world), options.backend);
  warn_if_initialized();
}

void DistributedManager::setup(IntArgument rank, IntArgument world_size,
                               std::optional<IntArgument> local_rank, const std::string& addr,
                               const std::string& port, const std::string& backend,
                               const std::string& method) {
  if (warn_if_initialized()) return;
  const auto on_node = local_rank ? std::optional(local_rank->to_int()) : std::optional<int>();
  install(given_world(rank.to_int(), world_size.to_int(), on_node, addr, port, method), backend);
}

bool DistributedManager::is_initialized() { return State::instance() != nullptr; }

DistributedManager& DistributedManager::get() {
  if (!State::instance()) {
    throw UninitializedError(
        "DistributedManager is not initialized: call DistributedManager::initialize() first");
  }
  return *State::instance();
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
std::optional<std::chrono::milliseconds> DistributedManager::timeout() const {
  return state_->world.timeout;
}

bool DistributedManager::broadcast_buffers() const { return state_->broadcast_buffers; }
void DistributedManager::set_broadcast_buffers(BoolArgument broadcast) {
  state_->broadcast_buffers = broadcast;
}
bool DistributedManager::find_unused_parameters() const { return state_->find_unused_parameters; }
void DistributedManager::set_find_unused_parameters(BoolArgument find) {
  state_->find_unused_parameters = find;
}

agent::Agent* DistributedManager::agent() const { return state_->world.agent.get(); }
std::shared_ptr<agent::Agent> DistributedManager::shared_agent() const {
  return state_->world.agent;
}
c10::intrusive_ptr<c10d::Store> DistributedManager::store() const { return state_->world.store; }

}  // namespace meshrun
