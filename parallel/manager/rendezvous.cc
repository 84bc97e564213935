#include "parallel/manager/rendezvous.h"

#include <utility>
#include <vector>

#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "parallel/base/network.h"
#include "parallel/base/process.h"
#include "parallel/base/thrown_status.h"
#include "parallel/comm/store/agent_store.h"
#include "parallel/comm/store/tcp_store.h"
#include "parallel/manager/environment.h"
#include "parallel/manager/make_mesh_layout.h"
#include "parallel/manager/places.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;

void take_assignment(World& world) {
  const agent::Assignment& assignment = world.agent->assignment();
  world.rank = assignment.rank;
  world.world_size = assignment.world_size;
  world.local_rank = assignment.local_rank;
  world.local_world_size = assignment.local_world_size;
  world.node_rank = assignment.node_rank;
  world.master_addr = assignment.node_count == 1 ? "127.0.0.1" : assignment.master_addr;
  if (assignment.mesh.empty()) return;
  world.mesh = value_or_throw<MeshError>(make_mesh_layout(assignment.mesh, world.world_size));
}

void check_model_parallel_group(const World& world) {
  std::optional<int64_t> axis;
  if (const auto found = find_axis(world.mesh, kModelParallel)) axis = world.mesh.shape[*found];
  throw_if_error<EnvironmentError>(
      check_model_parallel_size(world.model_parallel_size, world.world_size, axis));
}

// Place of this process.
RankPlace own_place(const World& world) {
  const auto address = local_address_towards(world.master_addr);
  const bool is_elsewhere = address.ok() && !is_loopback(*address);
  return {node_identity(node_facts()), world.node_rank, is_elsewhere ? *address : ""};
}

// What the launcher left out, and what it does not know.
void fill_locality(World& world, const std::vector<RankPlace>& places) {
  const NodeLayout layout = lay_out_nodes(places, world.rank);
  if (world.local_rank < 0) world.local_rank = layout.local_rank;
  if (world.local_world_size < 0) world.local_world_size = layout.local_world_size;
  world.node_rank = layout.nodes[static_cast<size_t>(world.rank)];
  if (layout.count > 1) world.nodes = layout.nodes;
}

// Where a daemon brings the ranks together, it knows where they are.
std::vector<RankPlace> places_in_table(const World& world) {
  RankPlace own = own_place(world);
  if (world.local_world_size >= world.world_size) {
    return std::vector<RankPlace>(static_cast<size_t>(world.world_size), own);
  }
  const auto table = value_or_throw<RendezvousError>(world.agent->World(world.rendezvous_timeout));
  const int node_of_rank_zero = table.node_ranks.front();
  std::vector<RankPlace> places;
  for (size_t rank = 0; rank < table.node_ranks.size(); ++rank) {
    const int node = table.node_ranks[rank];
    const bool is_there = node == node_of_rank_zero || is_loopback(table.addresses[rank]);
    places.push_back({std::to_string(node), node, is_there ? "" : table.addresses[rank]});
  }
  places[static_cast<size_t>(world.rank)].address = std::move(own.address);
  return places;
}

// A host name often resolves to 127.0.1.1 on its own machine, where no peer finds it. So rank 0's
// own host asks the way to another rank's address instead.
std::string peer_address(const World& world, const std::vector<RankPlace>& places) {
  constexpr const char* kLoopback = "127.0.0.1";
  if (is_loopback(world.master_addr)) return kLoopback;
  const RankPlace& own = places[static_cast<size_t>(world.rank)];
  if (!own.address.empty()) return own.address;
  if (const auto other = address_to_ask_the_way_to(places, world.rank)) {
    const auto address = local_address_towards(*other);
    if (address.ok() && !is_loopback(*address)) return *address;
  }
  // Either all ranks are on this host, or each host believes that rank 0 is on it.
  const std::vector<std::string> interfaces = interface_addresses();
  return world.nodes.empty() || interfaces.empty() ? kLoopback : interfaces.front();
}

void fill_addresses(World& world, const std::vector<RankPlace>& places) {
  world.address = peer_address(world, places);
  world.addresses_of_rank_zero = addresses_of_rank_zero(world.master_addr, world.store_is_hosted,
                                                        world.address, interface_addresses());
}

}  // namespace

World find_world(const std::optional<std::string>& method, std::optional<milliseconds> timeout,
                 std::shared_ptr<agent::Agent> agent) {
  const EnvironmentLookup process = process_environment();
  // A connection that is handed in stands for the variable that would lead to one.
  const EnvironmentLookup lookup = [&](const std::string& name) {
    return agent && name == "MESHRUN_AGENT" ? std::optional<std::string>("given") : process(name);
  };
  const auto environment =
      value_or_throw<EnvironmentError>(detect_environment(lookup, method, this_process()));

  World world;
  world.method = to_string(environment.method);
  world.distributed = environment.method != LaunchMethod::kSingle;
  world.timeout = timeout ? timeout : environment.timeout;
  world.deadlock_after = environment.deadlock_after;
  world.rendezvous_timeout = world.timeout.value_or(world.rendezvous_timeout);
  world.model_parallel_size = environment.model_parallel_size;
  if (environment.method == LaunchMethod::kCoordinator) {
    world.agent = std::move(agent);
    if (!world.agent)
      world.agent =
          value_or_throw<RendezvousError>(agent::Agent::Connect(world.rendezvous_timeout));
    take_assignment(world);
    check_model_parallel_group(world);
    return world;
  }
  world.rank = environment.rank;
  world.world_size = environment.world_size;
  world.local_rank = environment.local_rank.value_or(-1);
  world.local_world_size = environment.local_world_size.value_or(-1);
  world.node_rank = environment.node_rank.value_or(-1);
  world.master_addr = environment.master_addr;
  world.master_port = environment.master_port;
  world.store_is_hosted = environment.store_is_hosted;
  world.store_prefix = environment.store_prefix;
  world.identity = environment.identity;
  check_model_parallel_group(world);
  return world;
}

World given_world(int rank, int world_size, std::optional<int> local_rank, const std::string& addr,
                  const std::string& port, const std::string& method) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw EnvironmentError(fmt::format(
        "setup() got rank {} of a world of {}: ranks are 0 to world_size - 1", rank, world_size));
  }
  if (local_rank && (*local_rank < 0 || *local_rank >= world_size)) {
    throw EnvironmentError(fmt::format(
        "setup() got local_rank {}, which does not fit a world of {}", *local_rank, world_size));
  }
  const EnvironmentLookup lookup = process_environment();
  World world;
  world.method = method;
  world.timeout = value_or_throw<EnvironmentError>(read_timeout(lookup));
  world.deadlock_after = value_or_throw<EnvironmentError>(read_deadlock_after(lookup));
  world.rendezvous_timeout = world.timeout.value_or(world.rendezvous_timeout);
  world.distributed = true;
  world.rank = rank;
  world.world_size = world_size;
  world.local_rank = local_rank.value_or(-1);
  world.master_addr = addr;
  world.master_port =
      value_or_throw<EnvironmentError>(parse_port("the port given to setup()", port));
  world.identity = fmt::format(
      "{}, world size {}",
      job_identity(lookup, fmt::format("setup {}:{}, {}", addr, port, this_process())), world_size);
  return world;
}

std::string meeting_place(const World& world) {
  if (world.agent) {
    const agent::Assignment& assignment = world.agent->assignment();
    return fmt::format("job {} generation {}", assignment.job_id, assignment.generation);
  }
  return fmt::format("{}:{} {} {}", world.master_addr, world.master_port, world.store_prefix,
                     world.identity);
}

void join(World& world, InstanceHistory& history) {
  if (world.agent) {
    // The coordinator has brought the ranks together: only the number of a later attempt is open.
    try {
      world.store = enter_fresh_instance(
          c10::make_intrusive<AgentStore>(world.agent, world.rendezvous_timeout), world.rank,
          history, world.rendezvous_timeout);
    } catch (const RendezvousError&) {
      throw;
    } catch (const c10::DistError& error) {
      throw RendezvousError(fmt::format("rank {} could not join {}: {}", world.rank,
                                        meeting_place(world), error.what_without_backtrace()));
    }
    if (world.world_size == 1) return;
    const std::vector<RankPlace> places = places_in_table(world);
    fill_locality(world, places);
    fill_addresses(world, places);
    return;
  }
  if (world.world_size == 1) {
    world.store = c10::make_intrusive<c10d::HashStore>();
    fill_locality(world, {own_place(world)});
    return;
  }
  TcpStoreOptions options;
  options.host = world.master_addr;
  options.port = world.master_port;
  options.rank = world.rank;
  options.world_size = world.world_size;
  options.is_hosted = world.store_is_hosted;
  options.listener = world.listener;
  options.prefix = world.store_prefix;
  options.identity = world.identity;
  options.timeout = world.rendezvous_timeout;
  options.introduction = [&] { return serialize(own_place(world)); };
  world.store = join_tcp_store(options, history);
  const auto places =
      value_or_throw<RendezvousError>(parse_places(introductions(*world.store, world.world_size)));
  fill_locality(world, places);
  fill_addresses(world, places);
}

}  // namespace meshrun
