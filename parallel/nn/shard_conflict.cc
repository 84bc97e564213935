#include "parallel/nn/shard_conflict.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "c10/util/Exception.h"
#include "parallel/base/sharded_key.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::detail {
namespace {

// Ranks of the world, by group rank; empty where the backend does not know them.
std::vector<int64_t> world_ranks_of(const c10d::ProcessGroup& group) {
  try {
    const auto options = group.getDefaultBackend()->getBackendOptions();
    std::vector<int64_t> ranks;
    for (const uint64_t rank : options->global_ranks_in_group) {
      ranks.push_back(static_cast<int64_t>(rank));
    }
    if (static_cast<int>(ranks.size()) == group.getSize()) return ranks;
  } catch (const c10::Error&) {
    // A backend without such options.
  }
  return {};
}

std::string conflict_of(const std::string& name, const ParameterShard& shard,
                        const GroupArgument::Handle& group) {
  if (shard.group->getSize() == 1 || group->getSize() == 1) return "";
  const std::string piece = c10::str("parameter \"", name, "\" is held in pieces by ");
  const std::string cure =
      ". Each rank's piece is its own; pass a group that has one rank of each set of pieces, such "
      "as the data-parallel axis of the mesh: DistributedManager::get().group(\"dp\")";
  if (shard.group.get() == group.get()) {
    return c10::str(piece, "the ", group->getSize(), " ranks of this very group", cure);
  }
  const std::vector<int64_t> holders = world_ranks_of(*shard.group);
  const std::vector<int64_t> members = world_ranks_of(*group);
  if (holders.empty() || members.empty()) {
    return c10::str(piece, shard.group->getSize(),
                    " ranks, and the backend does not say which of them are among the ",
                    group->getSize(), " of this group", cure);
  }
  const auto common = std::count_if(holders.begin(), holders.end(), [&](int64_t rank) {
    return std::find(members.begin(), members.end(), rank) != members.end();
  });
  if (common < 2) return "";
  return c10::str(piece, "the ranks ", at::IntArrayRef(holders), ", and this group has ", common,
                  " of them, its ranks are ", at::IntArrayRef(members), cure);
}

}  // namespace

bool have_same_ranks(const c10d::ProcessGroup& a, const c10d::ProcessGroup& b) {
  if (&a == &b) return true;
  if (a.getSize() != b.getSize()) return false;
  std::vector<int64_t> of_a = world_ranks_of(a), of_b = world_ranks_of(b);
  std::sort(of_a.begin(), of_a.end());
  std::sort(of_b.begin(), of_b.end());
  return !of_a.empty() && of_a == of_b;
}

std::string find_shard_conflict(const std::map<std::string, ParameterShard>& shards,
                                const torch::OrderedDict<std::string, at::Tensor>& tensors,
                                const GroupArgument::Handle& group) {
  for (const auto& item : tensors) {
    if (is_sharded(item.value())) {
      return c10::str("parameter \"", item.key(),
                      "\" is a ShardTensor, whose gradient is that of the whole mesh already; only "
                      "distribute_module() takes modules that have one");
    }
    const auto named = shards.find(item.key());
    const auto announced = announced_shard(item.value());
    std::string conflict;
    if (named != shards.end()) {
      conflict = conflict_of(item.key(), named->second, group);
    } else if (announced) {
      conflict = conflict_of(item.key(), *announced, group);
    }
    if (!conflict.empty()) return conflict;
  }
  return "";
}

}  // namespace meshrun::detail
