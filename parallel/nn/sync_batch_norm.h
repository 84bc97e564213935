// Batch normalization whose statistics are those of the batch on all ranks of a group, so that a
// network in data parallel computes what one process computes with the whole batch.
//
//   SyncBatchNorm norm(torch::nn::BatchNormOptions(32));     in one's own module
//   convert_sync_batch_norm(*network);                        a network that has BatchNorm1d..3d
//
// Shapes: input [n, channels, ...] with two dimensions or more. n and the extents behind the
// channels may differ between ranks; a rank may have none. The result is shaped like the input.
// Dtypes: float64 is computed in float64, everything else in float32. Counts, means and sums of
// squared deviations of the ranks are merged in float64 as Chan, Golub and LeVeque do (1983): a
// mean far from zero costs no digits.
//
// Training: one all-gather of 2 channels + 1 numbers. running_mean
// and running_var become those of PyTorch: (1 - momentum) * running + momentum * statistic, where
// the variance is the unbiased one of all ranks' elements; without elements on any rank they stay.
// Evaluation: torch::batch_norm, no communication. Without running statistics it takes those of
// this rank's batch, as torch.nn.SyncBatchNorm does: one rank may evaluate alone.
//
// Backward: one all-reduce of 2 channels numbers; the input's gradient is exact. Those of weight
// and bias are this rank's part: DistributedDataParallel averages them like all others.
// Differentiable again. A backward pass runs on all ranks of the group or on none: see tie.h.
//
// Collective over `group`: all ranks call alike. Errors: c10::ValueError on this rank for an input
// of fewer dimensions; on every rank that called: other numbers of channels
// (parallel/base/collective_errors.h), and c10::ValueError where the whole batch has one value per
// channel (CPU only: a GPU would have to be waited for).
// Threads: those of the collectives. Corresponds to torch.nn.SyncBatchNorm.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>

#include "parallel/manager/group_argument.h"

namespace meshrun {

// `weight`, `bias`, `running_mean`, `running_var` may be undefined. The latter two are updated in
// place.
at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& running_mean,
                           const at::Tensor& running_var, double momentum, double eps,
                           const GroupArgument& group = {});

// Its parameters and buffers have the names of torch::nn::BatchNorm1d..3d: checkpoints of one fit
// the other.
class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<2, SyncBatchNormImpl> {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             const GroupArgument& group = {});

  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  GroupArgument group_;
};
TORCH_MODULE(SyncBatchNorm);

// Every torch::nn::BatchNorm1d, 2d and 3d below `module`, itself included, computes as
// SyncBatchNorm from now on, wherever a class keeps it. Returns how many there are. Not collective.
//
// In C++ a module that is a member of somebody else's class cannot be replaced. So aten::batch_norm
// looks up the module's parameters instead. They may be moved (to()) and loaded; a clone() is an
// ordinary BatchNorm again. A second conversion sets the new group. LibTorch itself refuses one
// value per channel on a rank (BatchNorm1d with a local batch of 1), and then only that rank
// raises: use SyncBatchNorm where that can happen.
// Errors: c10::ValueError for a BatchNorm with neither parameters nor running statistics, by name,
// or without running statistics where no shared_ptr owns it; then nothing is converted.
int64_t convert_sync_batch_norm(torch::nn::Module& module, const GroupArgument& group = {});

template <typename Contained>
int64_t convert_sync_batch_norm(const torch::nn::ModuleHolder<Contained>& module,
                                const GroupArgument& group = {}) {
  return convert_sync_batch_norm(static_cast<torch::nn::Module&>(*module.ptr()), group);
}

}  // namespace meshrun
