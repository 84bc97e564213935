#include "parallel/nn/sharded_parameters.h"

#include <algorithm>
#include <numeric>

#include "ATen/Functions.h"
#include "c10/util/Exception.h"
#include "parallel/collectives/all_gather_v.h"
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

const SplitRange& own_range(const ParameterShard& shard) {
  return shard.ranges[static_cast<size_t>(shard.group->getRank())];
}

}  // namespace

std::map<std::string, ParameterShard> parameter_shards(const torch::nn::Module& module) {
  std::map<std::string, ParameterShard> shards;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& part) {
    const auto* sharded = dynamic_cast<const ShardedParameters*>(&part);
    if (sharded == nullptr) return;
    for (auto& [name, shard] : sharded->own_parameter_shards()) {
      shards.emplace(prefix + name, std::move(shard));
    }
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add(item.key() + ".", *item.value());
  }
  return shards;
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
