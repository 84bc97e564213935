#include "parallel/comm/ucx_engine.h"

#include <utility>

#include "core/log.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/errors.h"
#include "parallel/comm/flight_record_file.h"
#include "parallel/comm/ucx/agent_watch.h"
#include "parallel/comm/ucx/engine/execution/engine.h"
#include "parallel/comm/ucx/engine/liveness/hub_watch.h"
#include "parallel/comm/ucx/engine/transport/ucx_transport.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {
namespace {

constexpr const char* kEndpoint = "ucx/watch";

// Once in a world, and only where not UCX alone has chosen.
void log_interfaces() {
  const auto interfaces = ucx::ucx_interfaces();
  if (!interfaces.ok() || interfaces->names.empty()) return;
  log::Info("interfaces between hosts",
            {{"used", fmt::format("{}", fmt::join(interfaces->names, ","))},
             {"left_out", fmt::format("{}", fmt::join(interfaces->left_out, ","))}});
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
  if (options.world_rank == 0 && options.world_size > 1) log_interfaces();
  auto transport = value_or_throw<RendezvousError>(ucx::create_ucx_transport());
  engine.watch = watch_of(options);
  engine.dump = [path = flight_record_path(options.world_rank)](const std::string& json) {
    log::Warning(keep_flight_record(path, json));
  };
  if (options.deadlock_after) engine.deadlock_after = *options.deadlock_after;
  return ucx::Engine::start(std::move(transport), std::move(engine));
}

}  // namespace meshrun
