#include "parallel/manager/rendezvous.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "parallel/comm/store/agent_store.h"
#include "parallel/comm/store/network.h"
#include "parallel/comm/store/tcp_store.h"
#include "parallel/manager/environment.h"
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
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  for (const agent::MeshAxis& axis : assignment.mesh) {
    shape.push_back(axis.size);
    names.push_back(axis.name);
  }
  world.mesh = value_or_throw<MeshError>(make_mesh_layout(shape, names, world.world_size));
}

// What the launcher left out, from the hosts that the ranks told in joining.
void fill_locality(World& world, const std::vector<std::string>& hosts) {
  const std::string& mine = hosts[static_cast<size_t>(world.rank)];
  std::vector<std::string> nodes;
  int before_me = 0;
  int on_my_host = 0;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (std::find(nodes.begin(), nodes.end(), hosts[rank]) == nodes.end())
      nodes.push_back(hosts[rank]);
    if (hosts[rank] != mine) continue;
    ++on_my_host;
    if (static_cast<int>(rank) < world.rank) ++before_me;
  }
  if (world.local_rank < 0) world.local_rank = before_me;
  if (world.local_world_size < 0) world.local_world_size = on_my_host;
  if (world.node_rank < 0) {
    world.node_rank = static_cast<int>(std::find(nodes.begin(), nodes.end(), mine) - nodes.begin());
  }
}

// Ranks tell each other their nodes, where there are several.
void fill_nodes(World& world) {
  if (world.local_world_size >= world.world_size) return;
  const auto key = [](int rank) { return fmt::format("node_rank/{}", rank); };
  std::vector<std::string> keys;
  for (int rank = 0; rank < world.world_size; ++rank) keys.push_back(key(rank));
  world.store->set(key(world.rank), std::to_string(world.node_rank));
  try {
    world.store->wait(keys, world.rendezvous_timeout);
    for (const std::string& of_rank : keys) {
      world.nodes.push_back(std::stoi(world.store->get_to_str(of_rank)));
    }
  } catch (const c10::DistError& error) {
    throw RendezvousError(fmt::format(
        "rank {} waited in vain for the other ranks to say which node they are on; its own "
        "launcher says that {} of {} ranks are here: {}",
        world.rank, world.local_world_size, world.world_size, error.what_without_backtrace()));
  }
}

std::string peer_address(const std::string& master_addr) {
  if (is_loopback(master_addr)) return "127.0.0.1";
  // A host name often resolves to 127.0.1.1 on its own machine, where no peer finds it; the route
  // to rank 0 does not lie.
  return value_or_throw<RendezvousError>(local_address_towards(master_addr));
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
  world.rendezvous_timeout = world.timeout.value_or(world.rendezvous_timeout);
  if (environment.method == LaunchMethod::kCoordinator) {
    world.agent = std::move(agent);
    if (!world.agent)
      world.agent =
          value_or_throw<RendezvousError>(agent::Agent::Connect(world.rendezvous_timeout));
    take_assignment(world);
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
    // The coordinator has brought the ranks together: only the number of the attempt is open.
    try {
      world.store =
          enter_instance(c10::make_intrusive<AgentStore>(world.agent, world.rendezvous_timeout),
                         world.rank, history, world.rendezvous_timeout);
    } catch (const RendezvousError&) {
      throw;
    } catch (const c10::DistError& error) {
      throw RendezvousError(fmt::format("rank {} could not join {}: {}", world.rank,
                                        meeting_place(world), error.what_without_backtrace()));
    }
    if (world.world_size > 1) world.address = peer_address(world.master_addr);
    fill_nodes(world);
    return;
  }
  if (world.world_size == 1) {
    world.store = c10::make_intrusive<c10d::HashStore>();
    fill_locality(world, {host_name()});
    return;
  }
  TcpStoreOptions options;
  options.host = world.master_addr;
  options.port = world.master_port;
  options.rank = world.rank;
  options.world_size = world.world_size;
  options.is_hosted = world.store_is_hosted;
  options.prefix = world.store_prefix;
  options.identity = world.identity;
  options.timeout = world.rendezvous_timeout;
  world.store = join_tcp_store(options, history);
  world.address = peer_address(world.master_addr);
  if (world.local_rank < 0 || world.local_world_size < 0 || world.node_rank < 0) {
    fill_locality(world, joined_hosts(*world.store, world.world_size));
  }
  fill_nodes(world);
}

}  // namespace meshrun
