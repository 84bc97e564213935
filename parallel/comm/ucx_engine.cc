#include "parallel/comm/ucx_engine.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "core/log.h"
#include "core/os/cores.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/errors.h"
#include "parallel/base/numa.h"
#include "parallel/base/process.h"
#include "parallel/base/shared_heap.h"
#include "parallel/base/thrown_status.h"
#include "parallel/comm/flight_record_file.h"
#include "parallel/comm/ucx/agent_watch.h"
#include "parallel/comm/ucx/engine/execution/engine.h"
#include "parallel/comm/ucx/engine/liveness/hub_watch.h"
#include "parallel/comm/ucx/engine/transport/ucx_transport.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {
namespace {

constexpr const char* kEndpoint = "ucx/watch";

std::string joined(const std::vector<std::string>& names, const char* if_none) {
  return names.empty() ? if_none : fmt::format("{}", fmt::join(names, ","));
}

// Once per process, however many worlds it joins, where there is something to say: interfaces were
// chosen, a quota leaves less than the cores, or NUMA nodes are several; on rank 0 also where UCX
// was told its interfaces.
void log_what_is_used(int world_rank, const ChosenInterfaces& interfaces, const SharedHeap* heap) {
  static std::atomic<int> logged_in{-1};
  if (logged_in == fork_count()) return;
  const os::CpuQuota quota = os::FindCpuQuota();
  const double cores = os::UsableCores(quota);
  const bool has_quota = cores < os::CoresOfAffinity();
  const size_t nodes = numa_nodes().size();
  const bool is_chosen = !interfaces.names.empty() || has_quota || nodes > 1;
  const bool is_told = world_rank == 0 && std::getenv("UCX_NET_DEVICES") != nullptr;
  if (!is_chosen && !is_told) return;
  if (logged_in.exchange(fork_count()) == fork_count()) return;
  const std::optional<int> node = heap == nullptr ? std::nullopt : heap->numa_node();
  log::Info("ucx uses", {{"rank", world_rank},
                         {"interfaces", joined(interfaces.names, "those of UCX")},
                         {"left_out", joined(interfaces.left_out, "none")},
                         {"cores", fmt::format("{:g}", cores)},
                         {"cpu_quota", has_quota},
                         {"numa_nodes", nodes},
                         {"heap_node", node ? std::to_string(*node) : "any"}});
}

std::unique_ptr<ucx::PeerWatch> watch_of(const UcxEngineOptions& options) {
  if (options.agent != nullptr) return ucx::create_agent_watch(options.agent);
  if (options.world_size == 1) return nullptr;
  ucx::HubWatchOptions hub;
  hub.world_rank = options.world_rank;
  hub.world_size = options.world_size;
  hub.addresses = options.addresses;
  hub.timeout = options.timeout;
  hub.set_endpoint = [&](const std::string& endpoint) { options.store->set(kEndpoint, endpoint); };
  hub.get_endpoint = [&] { return options.store->get_to_str(kEndpoint); };
  return value_or_throw<RendezvousError>(ucx::create_hub_watch(hub));
}

}  // namespace

std::shared_ptr<ucx::Engine> start_ucx_engine(const UcxEngineOptions& options) {
  ucx::Engine::Options engine;
  engine.heap = SharedHeap::of_process();
  const auto interfaces = value_or_throw<RendezvousError>(ucx::ucx_interfaces());
  if (options.world_size > 1) log_what_is_used(options.world_rank, interfaces, engine.heap);
  auto transport = value_or_throw<RendezvousError>(ucx::create_ucx_transport(interfaces));
  engine.watch = watch_of(options);
  engine.dump = [path = flight_record_path(options.world_rank)](const std::string& json) {
    log::Warning(keep_flight_record(path, json));
  };
  if (options.deadlock_after) engine.deadlock_after = *options.deadlock_after;
  return ucx::Engine::start(std::move(transport), std::move(engine));
}

}  // namespace meshrun
