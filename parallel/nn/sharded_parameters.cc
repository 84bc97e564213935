#include "parallel/nn/sharded_parameters.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "ATen/Functions.h"
#include "c10/util/Exception.h"
#include "core/mutex.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/nn/module.h"

namespace meshrun {
namespace {

// Ranks in the order of their pieces.
std::vector<size_t> in_order(const ParameterShard& shard) {
  std::vector<size_t> ranks(shard.ranges.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  std::stable_sort(ranks.begin(), ranks.end(), [&](size_t a, size_t b) {
    const SplitRange& x = shard.ranges[a];
    const SplitRange& y = shard.ranges[b];
    return x.begin != y.begin ? x.begin < y.begin : x.end < y.end;
  });
  return ranks;
}

void check(const ParameterShard& shard) {
  TORCH_CHECK_VALUE(shard.dim >= 0 && shard.dim < static_cast<int64_t>(shard.global_shape.size()),
                    "A sharded parameter of shape ", shard.global_shape, " has no dimension ",
                    shard.dim);
  TORCH_CHECK_VALUE(static_cast<int>(shard.ranges.size()) == shard.group->getSize(),
                    "A sharded parameter has ", shard.ranges.size(), " pieces on ",
                    shard.group->getSize(), " ranks");
  int64_t covered = 0;
  for (const size_t rank : in_order(shard)) {
    const SplitRange& range = shard.ranges[rank];
    if (range.size() == 0) continue;
    TORCH_CHECK_VALUE(range.begin == covered && range.size() > 0, "Rank ", rank, "'s piece [",
                      range.begin, ", ", range.end, ") of a sharded parameter should begin at ",
                      covered);
    covered = range.end;
  }
  const int64_t extent = shard.global_shape[static_cast<size_t>(shard.dim)];
  TORCH_CHECK_VALUE(covered == extent, "The pieces of a sharded parameter cover ", covered, " of ",
                    extent, " rows");
}

// By tensor. A weak reference keeps the address of a tensor that is gone from being used again.
class AnnouncedShards {
 public:
  using Shard = std::shared_ptr<const ParameterShard>;

  void add(const at::Tensor& parameter, Shard shard) {
    Entry entry{Weak(parameter.getIntrusivePtr()), std::move(shard)};
    std::vector<Entry> dead;  // ends without the lock: it may hold a group's last reference
    const MutexLock lock(mu_);
    take_dead(dead);
    const auto found = entries_.find(parameter.unsafeGetTensorImpl());
    if (found == entries_.end()) {
      entries_.emplace(parameter.unsafeGetTensorImpl(), std::move(entry));
    } else {
      std::swap(found->second, entry);
    }
  }

  Shard find(const at::Tensor& parameter) {
    const MutexLock lock(mu_);
    const auto found = entries_.find(parameter.unsafeGetTensorImpl());
    return found == entries_.end() ? nullptr : found->second.shard;
  }

  void forget_dead() {
    std::vector<Entry> dead;
    const MutexLock lock(mu_);
    take_dead(dead);
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Weak alive;
    Shard shard;
  };

  void take_dead(std::vector<Entry>& dead) MESHRUN_REQUIRES(mu_) {
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      if (entry->second.alive.expired()) {
        dead.push_back(std::move(entry->second));
        entry = entries_.erase(entry);
      } else {
        ++entry;
      }
    }
  }

  Mutex mu_;
  std::map<const c10::TensorImpl*, Entry> entries_ MESHRUN_GUARDED_BY(mu_);
};

// Never destroyed: groups in it may end later than static objects.
AnnouncedShards& announced_shards() {
  static auto& shards = *new AnnouncedShards;
  return shards;
}

// So that the groups of modules that are gone end with the manager.
void forget_dead_at_cleanup() {
  static std::atomic<bool> is_asked_for{false};
  if (!DistributedManager::is_initialized() || is_asked_for.exchange(true)) return;
  DistributedManager::get().at_cleanup([] {
    is_asked_for = false;
    announced_shards().forget_dead();
  });
}

const SplitRange& own_range(const ParameterShard& shard) {
  return shard.ranges[static_cast<size_t>(shard.group->getRank())];
}

}  // namespace

std::map<std::string, ParameterShard> parameter_shards(const torch::nn::Module& module) {
  std::map<std::string, ParameterShard> shards;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& part) {
    const auto* sharded = dynamic_cast<const ShardedParameters*>(&part);
    if (sharded == nullptr) return;
    const auto parameters = part.named_parameters(/*recurse=*/false);
    for (auto& [name, shard] : sharded->own_parameter_shards()) {
      if (const at::Tensor* parameter = parameters.find(name)) announce_shard(*parameter, shard);
      shards.emplace(prefix + name, shard);
    }
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add(item.key() + ".", *item.value());
  }
  return shards;
}

void announce_shard(const at::Tensor& parameter, const ParameterShard& shard) {
  TORCH_CHECK_VALUE(parameter.defined() && shard.group,
                    "announce_shard takes a defined parameter and a shard with a group");
  announced_shards().add(parameter, std::make_shared<const ParameterShard>(shard));
  forget_dead_at_cleanup();
}

std::shared_ptr<const ParameterShard> announced_shard(const at::Tensor& parameter) {
  return parameter.defined() ? announced_shards().find(parameter) : nullptr;
}

at::Tensor unsharded(const at::Tensor& piece, const ParameterShard& shard) {
  check(shard);
  std::vector<int64_t> sizes;
  for (const SplitRange& range : shard.ranges) sizes.push_back(range.size());
  const at::Tensor gathered =
      all_gather_v(piece.detach(), sizes, shard.dim, true, GroupArgument(shard.group));
  const std::vector<size_t> order = in_order(shard);
  if (std::is_sorted(order.begin(), order.end())) return gathered;
  const std::vector<at::Tensor> pieces = gathered.split_with_sizes(sizes, shard.dim);
  std::vector<at::Tensor> sorted;
  for (const size_t rank : order) sorted.push_back(pieces[rank]);
  return at::cat(sorted, shard.dim);
}

at::Tensor shard_of(const at::Tensor& whole, const ParameterShard& shard) {
  check(shard);
  TORCH_CHECK_VALUE(whole.sizes() == at::IntArrayRef(shard.global_shape),
                    "A sharded parameter has the shape ", shard.global_shape, ", not ",
                    whole.sizes());
  const SplitRange& range = own_range(shard);
  return whole.narrow(shard.dim, range.begin, range.size());
}

}  // namespace meshrun
