#include "python/extension/worlds.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "core/mutex.h"
#include "core/parse_integer.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/callback_threads.h"
#include "parallel/base/errors.h"
#include "parallel/base/interrupts.h"
#include "parallel/base/network.h"
#include "parallel/base/process.h"
#include "parallel/base/thrown_status.h"
#include "parallel/comm/ucx/backend.h"
#include "parallel/comm/ucx_engine.h"
#include "parallel/manager/environment.h"
#include "parallel/manager/places.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::python {
namespace {

constexpr std::chrono::seconds kLastWait(1);

struct Worlds {
  Mutex mu;
  std::vector<std::shared_ptr<World>> all MESHRUN_GUARDED_BY(mu);
  std::weak_ptr<World> of_default_group MESHRUN_GUARDED_BY(mu);
  std::vector<c10::weak_intrusive_ptr<UcxBackend>> groups MESHRUN_GUARDED_BY(mu);
};

// Never destroyed: groups may outlive the runtime's statics.
Worlds& worlds() {
  static auto& worlds = *new Worlds;
  return worlds;
}

// The first call remembers the process.
bool is_forked() {
  static const int forks = fork_count();
  return forks != fork_count();
}

void refuse_after_fork() {
  if (!is_forked()) return;
  throw BackendError(fmt::format(
      "process {} was forked from one that had process groups on meshrun, and UCX does not survive "
      "that: fork before the first process group is made, or start processes by spawn",
      getpid()));
}

std::string variable(const char* name) { return process_environment()(name).value_or(""); }

// A launcher sets ranks apart that share a machine, for example in containers.
int node_rank_of_launcher() {
  return std::max(ParseInteger<int>(variable("GROUP_RANK")).value_or(-1), -1);
}

RankPlace own_place(const std::string& master) {
  RankPlace place{node_identity(node_facts()), node_rank_of_launcher(), ""};
  if (master.empty()) return place;
  const auto address = local_address_towards(master);
  if (address.ok() && !is_loopback(*address)) place.address = *address;
  return place;
}

std::vector<RankPlace> exchange_places(c10d::Store& store, int rank, int size,
                                       const RankPlace& own) {
  std::vector<std::string> keys;
  for (int other = 0; other < size; ++other) keys.push_back(fmt::format("place/{}", other));
  store.set(keys[static_cast<size_t>(rank)], serialize(own));
  std::vector<std::vector<uint8_t>> values;
  try {
    if (store.hasExtendedApi()) {
      values = store.multiGet(keys);
    } else {
      for (const std::string& key : keys) values.push_back(store.get(key));
    }
  } catch (const c10::DistStoreError& error) {
    std::vector<int> absent;
    for (int other = 0; other < size; ++other) {
      if (!store.check({keys[static_cast<size_t>(other)]})) absent.push_back(other);
    }
    if (absent.empty()) throw;
    throw RendezvousError(fmt::format("of the {} ranks these did not come in time: {}. {}", size,
                                      fmt::join(absent, ", "), error.what_without_backtrace()));
  }
  std::vector<std::string> texts;
  for (const std::vector<uint8_t>& value : values) texts.emplace_back(value.begin(), value.end());
  return value_or_throw<RendezvousError>(parse_places(texts));
}

// Where peers find rank 0, as the manager's rendezvous has it. Without MASTER_ADDR (init_method is
// a file, or a store was given) the interfaces have to do.
std::vector<std::string> addresses_of_rank_zero(const std::vector<RankPlace>& places,
                                                const std::string& master, bool is_hosted,
                                                bool one_node) {
  if (one_node) return {"127.0.0.1"};
  std::string own = places.front().address;
  if (const auto other = address_to_ask_the_way_to(places, 0)) {
    const auto address = local_address_towards(*other);
    if (address.ok()) own = *address;
  }
  return meshrun::addresses_of_rank_zero(master, is_hosted, own, interface_addresses());
}

}  // namespace

std::shared_ptr<World> meet(const Meeting& meeting) {
  refuse_after_fork();
  drop_unused_worlds();
  auto world = std::make_shared<World>();
  UcxEngineOptions options;
  options.world_rank = meeting.rank;
  options.world_size = meeting.size;
  options.store = meeting.store;
  options.timeout = meeting.timeout;
  options.deadlock_after =
      value_or_throw<EnvironmentError>(read_deadlock_after(process_environment()));
  if (meeting.size > 1) {
    const std::string master = meeting.host ? *meeting.host : variable("MASTER_ADDR");
    const bool is_hosted = meeting.host || variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
    const std::vector<RankPlace> places =
        exchange_places(*meeting.store, meeting.rank, meeting.size, own_place(master));
    NodeLayout layout = lay_out_nodes(places, meeting.rank);
    options.addresses = addresses_of_rank_zero(places, master, is_hosted, layout.count == 1);
    if (layout.count > 1) world->nodes = std::move(layout.nodes);
  }
  world->engine = start_ucx_engine(options);
  Worlds& known = worlds();
  const MutexLock lock(known.mu);
  known.all.push_back(world);
  if (meeting.is_default) known.of_default_group = world;
  return world;
}

void drop_unused_worlds() {
  std::vector<std::shared_ptr<World>> unused;
  Worlds& known = worlds();
  const MutexLock lock(known.mu);
  const auto used = std::partition(
      known.all.begin(), known.all.end(),
      [](const std::shared_ptr<World>& world) { return world->engine.use_count() > 1; });
  std::move(used, known.all.end(), std::back_inserter(unused));
  known.all.erase(used, known.all.end());
}

void hold_engine(c10d::ProcessGroup& group) {
  const auto types = group.getDeviceTypes();
  const bool has_cpu = std::any_of(types.begin(), types.end(),
                                   [](const c10::Device& device) { return device.is_cpu(); });
  if (!has_cpu) return;
  const auto backend = group.getBackend(c10::DeviceType::CPU);
  const auto* const ucx = dynamic_cast<const UcxBackend*>(backend.get());
  if (ucx == nullptr) return;
  auto world = std::make_shared<World>();
  world->engine = ucx->group()->engine();
  Worlds& known = worlds();
  const MutexLock lock(known.mu);
  const bool is_held = std::any_of(known.all.begin(), known.all.end(),
                                   [&](const auto& held) { return held->engine == world->engine; });
  if (!is_held) known.all.push_back(std::move(world));
}

std::shared_ptr<World> default_world() {
  Worlds& known = worlds();
  const MutexLock lock(known.mu);
  std::shared_ptr<World> world = known.of_default_group.lock();
  return world != nullptr && world->engine.use_count() > 1 ? world : nullptr;
}

void add_group(const c10::intrusive_ptr<UcxBackend>& group) {
  Worlds& known = worlds();
  const MutexLock lock(known.mu);
  std::erase_if(known.groups, [](const auto& weak) { return weak.expired(); });
  known.groups.emplace_back(group);
}

void end_worlds() {
  if (is_forked()) return;  // they are the parent's
  std::vector<std::shared_ptr<World>> dropped;
  std::vector<c10::intrusive_ptr<UcxBackend>> groups;
  {
    Worlds& known = worlds();
    const MutexLock lock(known.mu);
    dropped.swap(known.all);
    for (const auto& weak : known.groups) {
      if (auto group = weak.lock()) groups.push_back(std::move(group));
    }
  }
  const auto deadline = std::chrono::steady_clock::now() + kLastWait;
  for (const auto& group : groups) {
    for (const auto& operation : group->group()->unfinished()) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left > left.zero()) group->group()->wait(*operation, left);
    }
  }
  forget_interrupt();  // the interpreter ends
  for (const auto& group : groups) {
    group->group()->leave(fmt::format("The Python interpreter of rank {} has ended group \"{}\"",
                                      group->getRank(), group->group()->config().name));
  }
  // They take the GIL, which ends a thread once the interpreter is finalized.
  CallbackTurn::await_all(std::chrono::steady_clock::now() + kLastWait);
}

}  // namespace meshrun::python
