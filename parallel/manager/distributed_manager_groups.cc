#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "c10/util/Exception.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/base/thrown_status.h"
#include "parallel/comm/interface/call_comparer.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/ucx_engine.h"
#include "parallel/manager/distributed_manager_state.h"
#include "parallel/manager/environment.h"
#include "parallel/manager/make_mesh_layout.h"
#include "parallel/manager/process_group_tree.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

void print_partition(const std::string& name, const Partition& partition) {
  std::vector<std::string> groups;
  for (const std::vector<int>& ranks : partition)
    groups.push_back(fmt::format("[{}]", fmt::join(ranks, ", ")));
  const std::string line = fmt::format("process group \"{}\": {}\n", name, fmt::join(groups, " "));
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

// "world=4 (model=2 data=2)".
std::string words_of(const ProcessGroupTree& tree, const std::string& name) {
  const std::optional<int> size = value_or_throw<GroupError>(tree.get_node(name))->size;
  std::string children;
  for (const std::string& child : tree.children(name)) {
    children += (children.empty() ? "" : " ") + words_of(tree, child);
  }
  return fmt::format("{}{}{}", name, size ? fmt::format("={}", *size) : "",
                     children.empty() ? "" : fmt::format(" ({})", children));
}

void refuse_difference(const std::string& difference) {
  if (!difference.empty()) throw GroupError(difference);
}

}  // namespace

std::shared_ptr<ucx::Engine> DistributedManager::State::shared_engine() const {
  const std::optional<BackendChoice> choice = parse_backend(backend);
  if (!choice || choice->cpu != "ucx") return nullptr;
  std::call_once(engine_once, [&] {
    engine =
        start_ucx_engine({world.rank, world.world_size, world.addresses_of_rank_zero, world.store,
                          world.rendezvous_timeout, world.agent, world.deadlock_after});
  });
  return engine;
}

std::vector<int> DistributedManager::State::nodes_of(const std::vector<int>& ranks) const {
  std::vector<int> nodes;
  for (const int rank : ranks) {
    if (!world.nodes.empty()) nodes.push_back(world.nodes[static_cast<size_t>(rank)]);
  }
  return nodes;
}

ProcessGroupPtr DistributedManager::State::make_group(const std::string& name,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<c10d::Store>& store,
                                                      bool together) const {
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
  const auto part = c10::make_intrusive<GroupStore>(key, store);
  {
    const std::lock_guard lock(stores_mutex);
    std::erase_if(stores, [](const auto& weak) { return weak.expired(); });
    stores.emplace_back(part);
  }
  ProcessGroupPtr group =
      make_process_group(part, group_rank, static_cast<int>(ranks.size()), backend, options);
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

bool DistributedManager::State::is_implied(const std::string& name,
                                           const std::vector<int>& ranks) const {
  if (!find_axis(world.mesh, name)) return false;
  return value_or_throw<MeshError>(submesh_of(world.mesh, {name}, world.rank)).ranks == ranks;
}

std::string DistributedManager::State::difference_of_calls(const std::string& call) const {
  if (world.world_size == 1) return {};
  const ComparingBackend comparer = cpu_comparer_of(*groups->group(std::nullopt));
  if (!comparer) return {};
  try {
    comparer->compare({.what = call, .digest = Fingerprint(call)})->wait();
  } catch (const CollectiveMismatchError& error) {
    return error.what_without_backtrace();
  }
  return {};
}

void DistributedManager::State::declare(const std::string& name, Partition partition,
                                        bool verbose) {
  if (verbose && world.rank == 0) print_partition(name, partition);
  groups->declare(name, std::move(partition));
}

void DistributedManager::State::create(const std::string& name, Partition partition, bool verbose) {
  declare(name, std::move(partition), verbose);
  groups->make_together(name);
}

void DistributedManager::State::make_model_parallel_group() {
  const std::string name = kModelParallel;
  if (!world.model_parallel_size || groups->contains(name)) return;
  create(name, groups->split(name, *world.model_parallel_size, std::nullopt), /*verbose=*/false);
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
  refuse_difference(state.difference_of_calls(
      fmt::format("create_process_subgroup(\"{}\", {}{})", name, static_cast<int64_t>(size),
                  group_name ? fmt::format(", \"{}\"", *group_name) : "")));
  state.create(name, state.groups->split(name, size.to_int(), group_name), verbose);
}

void DistributedManager::create_orthogonal_process_group(const std::string& orthogonal_group_name,
                                                         const std::string& group_name,
                                                         BoolArgument verbose) {
  State& state = *get().state_;
  refuse_difference(state.difference_of_calls(fmt::format(
      "create_orthogonal_process_group(\"{}\", \"{}\")", orthogonal_group_name, group_name)));
  state.create(orthogonal_group_name, state.groups->transpose(orthogonal_group_name, group_name),
               verbose);
}

void DistributedManager::create_groups_from_config(const ProcessGroupConfig& config,
                                                   BoolArgument verbose) {
  State& state = *get().state_;
  const ProcessGroupTree& tree = config.tree();
  refuse_difference(
      state.difference_of_calls("create_groups_from_config(" + words_of(tree, tree.root()) + ")"));
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

}  // namespace meshrun
