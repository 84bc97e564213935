// An ordinary module on a mesh: its inputs are ShardTensors, cut over the mesh's axes as one likes,
// and its parameters are whole on every rank.
//
//   auto mesh = manager.initialize_mesh({2, 2}, {"dp", "domain"});
//   VisionTransformer model(options);
//   distribute_module(*model, mesh);
//   ShardTensor x = ShardTensor::from_local(part, mesh, {Shard(0), Shard(2)});  // batch, rows
//   at::mse_loss(model(x), y).backward();
//   optimizer.step();                           // the plain one, on plain parameters
//
// So the batch is cut along "dp" (data parallel) and the activations along "domain"; nothing stands
// around the model. Losses are of the global batch, and parameters have the gradients of that loss,
// as plain tensors equal on all ranks: within the graph each rank has a summand, and when the
// backward pass ends the summands are added over the whole mesh, in buckets, once. Gradients
// accumulate over passes. A penalty on the weights, computed from plain tensors, may be added to
// the loss.
//
// distribute_module() compares the ranks' modules and gives all ranks the first one's parameters
// and buffers. It stays in force as long as the parameters live; to() and load come before it.
//
// A parameter that is a ShardTensor, of a module built so, stays as it is; `placements` may name
// what it must be. A plain parameter is Replicate: LibTorch's modules keep the tensor that they
// were built with, so it cannot be cut afterwards.
//
// Collective over the mesh, and so is each backward pass. Threads: one at a time per module.
// Errors, on every rank: ShardTensorError for modules or options that differ or do not fit,
// parameters that are shared already (mark_module_as_shared) or have a post-accumulate hook.
//
// Corresponds to physicsnemo's and PyTorch's distribute_module.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>

#include "parallel/base/arguments.h"
#include "parallel/manager/device_mesh.h"
#include "parallel/shard/layout/placement.h"

namespace meshrun {

struct DistributeModuleOptions {
  // By the names of named_parameters(); all others are Replicate.
  std::map<std::string, Placements> placements = {};
  // 16-bit gradients are added in float32.
  BoolArgument use_fp32_reduction = true;
  double bucket_cap_mb = 25;
};

// `mesh`: the manager's global one where absent.
void distribute_module(torch::nn::Module& module,
                       const std::optional<DeviceMesh>& mesh = std::nullopt,
                       const DistributeModuleOptions& options = {});

}  // namespace meshrun
