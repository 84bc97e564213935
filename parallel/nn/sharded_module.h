// Base of modules that hold some of their parameters in pieces, cut from the unsharded parameters'
// initial values.
//
//   struct Layer : ShardedModule {
//     explicit Layer(GroupArgument::Handle group) : ShardedModule(std::move(group)) {
//       weight = register_shard("weight", at::randn({64, 32}), /*dim=*/0);
//     }
//     at::Tensor weight;  // [64 / ranks, 32]
//   };
//
// Ranks that are seeded alike start from one model, whatever their number: each draws the whole
// parameter and keeps its piece. Without a group a module holds everything.
//
// Threads: one at a time per module. Errors: c10::ValueError on this rank.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun {

class ShardedModule : public torch::nn::Module, public ShardedParameters {
 public:
  // `group` null: nothing is cut.
  explicit ShardedModule(GroupArgument::Handle group = {});

  std::map<std::string, ParameterShard> own_parameter_shards() const override { return shards_; }

 protected:
  // Registers the piece of `whole` that compute_split_shapes gives this rank along `dim`, a copy.
  at::Tensor register_shard(const std::string& name, const at::Tensor& whole, IntArgument dim);

 private:
  const GroupArgument::Handle group_;
  std::map<std::string, ParameterShard> shards_;
};

}  // namespace meshrun
