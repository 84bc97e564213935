// Parameters that the ranks of a group hold in pieces: a rank keeps some rows of the unsharded
// parameter, as an ordinary tensor with an ordinary gradient.
//
//   for (const auto& [name, shard] : parameter_shards(*model)) ...   // names as named_parameters()
//   at::Tensor whole = unsharded(parameter, shard);                  // collective
//   at::Tensor part = shard_of(whole, shard);                        // pure
//
// A module with such parameters derives from ShardedParameters and says how each is cut; all other
// parameters are equal on all ranks. So a checkpoint holds the unsharded model under its own names,
// and any number of ranks reads any other's.
//
// Optimizers and clip_grad_norm_ get tensors without their module. announce_shard() lets them know
// a piece: ShardedModule and FNO announce theirs, a module that derives from ShardedParameters
// itself calls it where it registers a piece, and parameter_shards() announces all that it finds.
// The announcement belongs to the tensor: to() and set_data() keep it, a clone() has none, and it
// ends with the tensor.
//
// Pieces are the result of one rule, given what all ranks know: a rank's initial piece is cut from
// the unsharded parameter's initial values, which every rank draws from the same seed.
//
// Threads: one at a time per module; announcements: any. Errors: c10::ValueError on this rank for
// pieces that do not cover the parameter, or a tensor of another shape; unsharded() also raises
// those of all_gather_v.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/split.h"
#include "parallel/manager/group_argument.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"  // a ParameterShard destroys its handle

namespace torch::nn {
class Module;
}

namespace meshrun {

struct ParameterShard {
  // Shape of the unsharded parameter.
  std::vector<int64_t> global_shape;
  // The dimension that is cut.
  int64_t dim = 0;
  // By rank of the group. Together they cover global_shape[dim] once, in any order.
  std::vector<SplitRange> ranges;
  GroupArgument::Handle group;
};

// The interface of a module with sharded parameters.
class ShardedParameters {
 public:
  virtual ~ShardedParameters() = default;
  // Shards of the module's own parameters, by name, without those of its submodules.
  virtual std::map<std::string, ParameterShard> own_parameter_shards() const = 0;
};

// Shards of the parameters of the module and all its submodules, by the names of
// named_parameters().
std::map<std::string, ParameterShard> parameter_shards(const torch::nn::Module& module);

// Notes on the tensor that it is this rank's piece of a parameter. A later call replaces it.
void announce_shard(const at::Tensor& parameter, const ParameterShard& shard);
// What was announced; null: nothing, so every rank has all of the parameter.
std::shared_ptr<const ParameterShard> announced_shard(const at::Tensor& parameter);

// The unsharded tensor, on every rank of the shard's group, without a gradient. Also for what is
// sharded alike: a gradient, an optimizer's moment.
at::Tensor unsharded(const at::Tensor& piece, const ParameterShard& shard);

// This rank's part of `whole`: a view.
at::Tensor shard_of(const at::Tensor& whole, const ParameterShard& shard);

}  // namespace meshrun
