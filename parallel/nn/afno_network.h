// The AFNO network, on one rank or with its channels and its field split over groups. Internal to
// parallel/nn: AFNO, DistributedAFNONet and DistributedAFNO are this class.
//
// Between layers a rank holds its piece of the channels, not all of them. So a block sends
//
//   LayerNorm  two numbers per position and rank, all-gathered; twice
//   filter     nothing
//   MLP        one all-gather of the channels before, one reduce-scatter after
//
// forward, and the same backward: four times (P - 1) / P of the activations in all, where keeping
// whole activations between layers takes six (an all-gather after the filter, an all-reduce after
// the MLP, and their adjoints), computes every LayerNorm P times, and keeps P times the memory. The
// statistics are 2 P / C of the activations.
//
// With a field split over a second group each rank has some columns of patches; the filter's
// transforms are distributed, all else is local.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "parallel/nn/afno_functions.h"
#include "parallel/nn/afno_plan.h"
#include "parallel/nn/channel_group.h"
#include "parallel/nn/distributed_afno_layers.h"
#include "parallel/nn/sharded_module.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"  // destroyed with the module

namespace meshrun::detail {

// Null: not split.
struct AfnoGroups {
  GroupArgument::Handle channels;
  GroupArgument::Handle columns;
};

class AfnoBlockImpl : public torch::nn::Module {
 public:
  AfnoBlockImpl(const AfnoShape& shape, double drop_path_rate, const GroupArgument::Handle& group);

  // This rank's piece of [B, h, w, C].
  at::Tensor forward(const at::Tensor& x, const FieldColumns& columns);

 private:
  const ChannelGroup channels_;
  const double drop_path_rate_;
  Weights norm1_ = nullptr, norm2_ = nullptr;
  DistributedAFNO2D filter_ = nullptr;
  DistributedMLP mlp_ = nullptr;
};
TORCH_MODULE(AfnoBlock);

class AfnoNetwork : public ShardedModule {
 public:
  // `name` begins the messages. `problem`: what the caller found wrong already.
  AfnoNetwork(std::string name, const AfnoShape& shape, const AfnoGroups& groups,
              const std::string& problem = "");

  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor run(const at::Tensor& x);
  void share_parameters(const at::Tensor& x);
  std::string problem_of_input(const at::Tensor& x) const;

  const std::string name_;
  const AfnoShape shape_;
  const ChannelGroup channels_;
  FieldColumns columns_;
  DistributedPatchEmbed patch_embed_ = nullptr;
  at::Tensor pos_embed_;
  torch::nn::ModuleList blocks_ = nullptr;
  Weights head_ = nullptr;
};

}  // namespace meshrun::detail
