#include <sys/socket.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "parallel/base/network.h"
#include "parallel/base/thrown_status.h"
#include "parallel/manager/environment.h"
#include "parallel/manager/rendezvous.h"

namespace meshrun {
namespace {

using std::chrono::milliseconds;

// For each of rank 0's addresses. A packet to an address of another network may get no answer.
constexpr milliseconds kProbeTimeout(2000);
constexpr const char* kLoopback = "127.0.0.1";

// Settings of this process's environment; raises EnvironmentError.
LaunchEnvironment settings() {
  return value_or_throw<EnvironmentError>(
      detect_environment(process_environment(), to_string(LaunchMethod::kSingle)));
}

// Processes that torchrun or meshrun has started together, and that MPI has not.
void warn_if_alone(const Bootstrap& bootstrap) {
  const std::string launched = process_environment()("WORLD_SIZE").value_or("1");
  if (bootstrap.world_size > 1 || launched == "1") return;
  TORCH_WARN(bootstrap.method, " says that this process is alone, and its launcher that it is one ",
             "of ", launched, ": each of them is a world of one rank. Use the mpirun of the MPI ",
             "that the program was compiled with, or initialize() without a communicator");
}

// Rank 0's. A failure is told to the others.
BootstrapMeeting open_meeting(bool is_one_host, std::shared_ptr<os::UniqueFd>& listener) {
  BootstrapMeeting meeting;
  if (!is_one_host) {
    meeting.addresses = interface_addresses();
    if (meeting.addresses.empty()) {
      meeting.problem =
          "the host of rank 0 has no network interface that other hosts could reach: see \"ip "
          "addr\"";
      return meeting;
    }
  }
  auto socket = bind_port(is_one_host ? kLoopback : meeting.addresses.front(), /*port=*/0);
  if (socket.ok() && ::listen(socket->get(), SOMAXCONN) != 0) {
    socket = absl::UnavailableError("nothing may listen at a port of this host");
  }
  if (!socket.ok()) {
    meeting.problem =
        fmt::format("rank 0 cannot open its store: {}", std::string(socket.status().message()));
    return meeting;
  }
  listener = std::make_shared<os::UniqueFd>(*std::move(socket));
  meeting.port = bound_port(*listener);
  RandomIdSource random;
  meeting.token = NewRequestId(random);
  return meeting;
}

// One rank of each host tries.
std::vector<bool> try_addresses(const Bootstrap& bootstrap, const BootstrapMeeting& meeting) {
  std::vector<bool> reached(meeting.addresses.size(), true);
  if (bootstrap.node_rank == 0 || bootstrap.local_rank != 0) return reached;
  for (size_t i = 0; i < reached.size(); ++i) {
    reached[i] = probe(meeting.addresses[i], meeting.port, kProbeTimeout).ok();
  }
  return reached;
}

// What the launcher calls the local ranks of this world's ranks on this rank's node, its own first.
// Empty: it does not say all of them.
std::vector<int> launched_on_node(const std::vector<BootstrapReport>& reports, int rank) {
  const BootstrapReport& own = reports[static_cast<size_t>(rank)];
  std::vector<int> launched = {own.launched_local_rank};
  for (const BootstrapReport& report : reports) {
    if (&report == &own || report.node_rank != own.node_rank) continue;
    launched.push_back(report.launched_local_rank);
  }
  if (std::count(launched.begin(), launched.end(), -1) > 0) return {};
  return launched;
}

// The calls of the other library, in their order. What a rank finds wrong, all raise.
void meet(const Bootstrap& bootstrap, const BootstrapReport& own, World& world) {
  const auto is_joined = [](const BootstrapReport& report) { return report.joined_size > 0; };
  const std::vector<BootstrapReport> reports = exchange_reports(bootstrap, own);
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].problem.empty()) continue;
    if (static_cast<int>(rank) == world.rank) throw EnvironmentError(own.problem);
    throw EnvironmentError(fmt::format("rank {} cannot join: {}", rank, reports[rank].problem));
  }
  const auto other =
      std::find_if(reports.begin(), reports.end(), [&](const BootstrapReport& report) {
        return is_joined(report) != is_joined(reports.front());
      });
  if (other != reports.end()) {
    throw EnvironmentError(fmt::format(
        "rank {} has a DistributedManager and rank {} has none: call cleanup() on all ranks before "
        "they join another world",
        is_joined(reports.front()) ? 0 : other - reports.begin(),
        is_joined(reports.front()) ? other - reports.begin() : 0));
  }
  for (size_t rank = 0; is_joined(own) && rank < reports.size(); ++rank) {
    const auto& [joined_rank, joined_size, node, launched, problem] = reports[rank];
    if (joined_rank == static_cast<int>(rank) && joined_size == world.world_size) continue;
    throw EnvironmentError(fmt::format(
        "rank {} of {} is rank {} of {} in the world that its DistributedManager has joined: call "
        "cleanup() on all ranks before they join another world",
        rank, world.world_size, joined_rank, joined_size));
  }
  world.master_addr = kLoopback;
  if (is_joined(own)) return;
  world.launched_local_ranks = launched_on_node(reports, world.rank);
  if (world.world_size == 1) return;
  std::set<int> nodes;
  for (const BootstrapReport& report : reports) nodes.insert(report.node_rank);
  BootstrapMeeting meeting;
  if (world.rank == 0) meeting = open_meeting(nodes.size() == 1, world.listener);
  meeting = exchange_meeting(bootstrap, meeting);
  if (!meeting.problem.empty()) throw RendezvousError(meeting.problem);
  if (!meeting.addresses.empty()) {
    world.master_addr = value_or_throw<RendezvousError>(
        agree_on_address(bootstrap, meeting.addresses, try_addresses(bootstrap, meeting)));
  }
  world.master_port = meeting.port;
  world.identity =
      fmt::format("{} {}, world size {}", world.method, meeting.token, world.world_size);
  if (world.model_parallel_size) {
    world.identity += fmt::format(", MODEL_PARALLEL_SIZE={}", *world.model_parallel_size);
  }
}

}  // namespace

std::optional<World> bootstrapped_world(const Bootstrap& bootstrap, const World* joined,
                                        std::optional<milliseconds> timeout) {
  if (const std::string problem = problem_of(bootstrap); !problem.empty()) {
    throw EnvironmentError(fmt::format("{} gave {}", bootstrap.method, problem));
  }
  World world;
  world.method = bootstrap.method;
  world.distributed = true;
  world.rank = bootstrap.rank;
  world.world_size = bootstrap.world_size;
  world.local_rank = bootstrap.local_rank;
  world.local_world_size = bootstrap.local_world_size;
  world.node_rank = bootstrap.node_rank;
  BootstrapReport own{.node_rank = bootstrap.node_rank,
                      .launched_local_rank = launched_local_rank(process_environment())};
  if (joined != nullptr) {
    own.joined_rank = joined->rank;
    own.joined_size = joined->world_size;
  }
  try {
    const LaunchEnvironment environment = settings();
    world.timeout = timeout ? timeout : environment.timeout;
    world.deadlock_after = environment.deadlock_after;
    world.rendezvous_timeout = world.timeout.value_or(world.rendezvous_timeout);
    world.model_parallel_size = environment.model_parallel_size;
    throw_if_error<EnvironmentError>(
        check_model_parallel_size(world.model_parallel_size, world.world_size, std::nullopt));
  } catch (const c10::Error& error) {
    own.problem = error.what_without_backtrace();
  }
  try {
    meet(bootstrap, own, world);
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw RendezvousError(fmt::format("rank {} of {} lost the others in a call of {}: {}",
                                      world.rank, world.world_size, world.method, error.what()));
  }
  if (joined != nullptr) return std::nullopt;
  warn_if_alone(bootstrap);
  return world;
}

}  // namespace meshrun
