// Data-parallel training: every rank holds the whole module and a share of the batch; gradients are
// averaged over the ranks while the backward pass still runs.
//
//   FullyConnected network(options);
//   DistributedDataParallel model(network, {.broadcast_buffers = false});
//   torch::optim::Adam optimizer(model->parameters());
//   model(input).square().sum().backward();  // the gradients are now equal on all ranks
//
// Wraps any torch::nn::Module with a forward(). The engine is c10d::Reducer, the one below Python's
// torch.nn.parallel.DistributedDataParallel: the all-reduce of a bucket of gradients starts as soon
// as its last gradient is ready, and after the first backward pass the buckets follow the order in
// which the gradients came. Works in a world of one rank too.
//
// Parameters that ranks hold in pieces (sharded_parameters.h) are trained over a group that has one
// rank of each set of pieces: the data-parallel axis of a mesh, not the world.
//
// Construction, the forward call (if buffers are broadcast) and the backward pass are collective:
// all ranks of the group take part, in the same order.
//
// On a GPU forward passes should run on the stream that is current at construction: LibTorch adds a
// gradient up on the stream on which its accumulator was made, which is then.
//
// MESHRUN_TRACE_DIR makes each rank write a trace of its steps for chrome://tracing (step_trace.h).
//
// Threads: one at a time per module, as for any LibTorch module.
//
// Errors: c10::ValueError on every rank if options do not fit the module, if a module has nothing
// to train, or if the ranks differ in options, or in number, name, shape or dtype of parameters or
// buffers (with both sides' values), or if several ranks of the group hold pieces of a parameter;
// SharedModuleError from a forward call within no_sync() or with gradient_as_bucket_view, if
// parameters are marked as shared (shared_module.h); c10::DistError if a peer is lost.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel/nn/gradient_synchronizer.h"

namespace meshrun {

template <typename ModuleType>
class DistributedDataParallelImpl : public torch::nn::Module {
 public:
  DistributedDataParallelImpl(std::shared_ptr<ModuleType> module,
                              const DistributedDataParallelOptions& options)
      : module_(register_module("module", std::move(module))), synchronizer_(*module_, options) {}

  // Calls the wrapped module's forward() with the same arguments and returns what it returns.
  // Tensors among the arguments are moved to the module's device, those in the result to
  // `output_device`.
  template <typename... Args>
  auto forward(Args&&... args) {
    synchronizer_.before_forward(*module_);
    auto output = module_->forward(synchronizer_.place(std::forward<Args>(args))...);
    std::vector<at::Tensor*> tensors;
    detail::collect_tensors(output, tensors);
    synchronizer_.after_forward(*module_, tensors);
    return output;
  }

  // The wrapped module, whose parameters and buffers are this one's under the prefix "module.".
  ModuleType& module() { return *module_; }

  // While the guard lives, backward passes accumulate gradients locally. The first backward pass
  // after the guard averages the accumulated gradients.
  [[nodiscard]] NoSyncGuard no_sync() { return NoSyncGuard(synchronizer_); }

 private:
  std::shared_ptr<ModuleType> module_;
  detail::GradientSynchronizer synchronizer_;
};

template <typename ModuleType>
class DistributedDataParallel
    : public torch::nn::ModuleHolder<DistributedDataParallelImpl<ModuleType>> {
  using Impl = DistributedDataParallelImpl<ModuleType>;

 public:
  explicit DistributedDataParallel(const std::shared_ptr<ModuleType>& module,
                                   const DistributedDataParallelOptions& options = {})
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(module, options)) {}

  explicit DistributedDataParallel(const torch::nn::ModuleHolder<ModuleType>& module,
                                   const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), options) {}

  template <typename... Args>
  auto operator()(Args&&... args) {
    return this->impl_->forward(std::forward<Args>(args)...);
  }
};

template <typename Holder, typename = typename Holder::ContainedType>
DistributedDataParallel(const Holder&, const DistributedDataParallelOptions& = {})
    -> DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace meshrun
