#include "parallel/nn/sharded_module.h"

#include <utility>

#include "ATen/Functions.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

ShardedModule::ShardedModule(GroupArgument::Handle group) : group_(std::move(group)) {}

at::Tensor ShardedModule::register_shard(const std::string& name, const at::Tensor& whole,
                                         IntArgument dim) {
  if (!group_) return register_parameter(name, whole);
  ParameterShard shard{.global_shape = whole.sizes().vec(), .dim = dim, .group = group_};
  for (int rank = 0; rank < group_->getSize(); ++rank) {
    shard.ranges.push_back(split_range(whole.size(dim), group_->getSize(), rank));
  }
  const at::Tensor piece = shard_of(whole, shard).clone(at::MemoryFormat::Contiguous);
  register_parameter(name, piece);
  announce_shard(piece, shard);
  shards_.emplace(name, std::move(shard));
  return piece;
}

}  // namespace meshrun
