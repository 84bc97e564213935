#include "python/extension/backend.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/ucx/backend.h"
#include "python/extension/worlds.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::python {
namespace {

void check(const GroupCall& call) {
  if (call.store == nullptr) {
    throw CollectiveArgumentError(
        fmt::format("the group \"{}\" has no store: its ranks cannot meet", call.name));
  }
  if (call.size < 1 || call.rank < 0 || call.rank >= call.size) {
    throw CollectiveArgumentError(
        fmt::format("the group \"{}\" got rank {} of {}: ranks are 0 to the group's size - 1",
                    call.name, call.rank, call.size));
  }
  if (!call.global_ranks.empty() && call.global_ranks.size() != static_cast<size_t>(call.size)) {
    throw CollectiveArgumentError(fmt::format("the group \"{}\" has {} ranks, but {} are listed",
                                              call.name, call.size, call.global_ranks.size()));
  }
}

c10::intrusive_ptr<c10d::Store> keys_of_this_call(const GroupCall& call) {
  const int64_t number = call.store->add(fmt::format("meshrun/calls/{}", call.rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>(fmt::format("meshrun/{}", number), call.store);
}

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const GroupCall& call,
                                                  const std::string& backend_name) {
  check(call);
  const auto store = keys_of_this_call(call);
  ProcessGroupOptions options;
  options.timeout = call.timeout;
  options.connect_timeout =
      std::min(call.connect_timeout.value_or(call.timeout), kLongestRendezvous);
  options.name = call.is_default ? "world" : call.name;
  std::shared_ptr<World> world = call.is_default ? nullptr : default_world();
  if (world != nullptr) {
    options.world_ranks = call.global_ranks;
    for (const int rank : call.global_ranks) {
      if (!world->nodes.empty())
        options.hosts.push_back(world->nodes.at(static_cast<size_t>(rank)));
    }
  } else {
    world = meet({.store = c10::make_intrusive<c10d::PrefixStore>("world", store),
                  .rank = call.rank,
                  .size = call.size,
                  .timeout = options.connect_timeout,
                  .is_default = call.is_default,
                  .host = call.host});
    options.hosts = world->nodes;
  }
  options.engine = world->engine;
  const auto group = make_process_group(c10::make_intrusive<c10d::PrefixStore>("group", store),
                                        call.rank, call.size, backend_name, options);
  const auto backend = group->getBackend(c10::DeviceType::CPU);
  if (auto* const ucx = dynamic_cast<UcxBackend*>(backend.get())) {
    add_group(c10::intrusive_ptr<UcxBackend>::reclaim_copy(ucx));
  }
  return group;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> create_backend(const GroupCall& call) {
  return make_group(call, "ucx")->getBackend(c10::DeviceType::CPU);
}

c10::intrusive_ptr<c10d::ProcessGroup> create_group(const GroupCall& call) {
  return make_group(call, "nccl");
}

}  // namespace meshrun::python
