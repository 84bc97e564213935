// Clipping of gradients by their norm, for parameters of which ranks hold pieces.
//
//   loss.backward();
//   clip_grad_norm_(network->parameters(), 1.0);      // all ranks get the norm of one process
//   optimizer.step();
//
// A tensor that is given twice counts once: parameters() lists tied weights under each name.
//
// Signatures and results are LibTorch's (torch/nn/utils/clip_grad.h), which knows this rank's
// gradients alone: of pieces it finds another norm on each rank, so replicated layers part. Here
//
//   a piece (sharded_parameters.h)   counts with the other pieces of its group
//   a ShardTensor                    counts with the parts on the other ranks of its mesh; a
//                                    gradient that is Partial is added up first
//   any other parameter              counts once: its gradient is equal on all ranks by now
//   a ZeroRedundancyOptimizer's      pass the optimizer, not its parameters: it adds gradients up
//                                    within step() only. Its overload adds them up for the norm
//                                    (one reduce-scatter more for a step) and scales each rank's
//                                    own gradients. Its parameters in a list raise
//                                    ZeroRedundancyError
//
// Ranks of the groups that hold pieces get the same bits, and so the same coefficient. One small
// all-reduce for each distinct group; without pieces nothing is sent. 16-bit gradients are
// accumulated in float32, sums over tensors and ranks in float64. Gradients may be sparse. Each
// call waits for the gradients' device once.
//
// The functions take parameters, not gradients: a gradient does not know its group. A norm_type of
// 0 gives the number of parameters that have a gradient, as in LibTorch.
//
// Threads: one at a time; collective over the groups that hold pieces, and over a
// ZeroRedundancyOptimizer's group. Errors: c10::Error if the norm is not finite and
// error_if_nonfinite is set, on all ranks of these groups; ZeroRedundancyError; those of
// collectives (parallel/base/collective_errors.h).
#pragma once

#include <initializer_list>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"

namespace torch::optim {
class Optimizer;
}

namespace meshrun {

// The norm of all gradients together; nothing is changed.
double get_total_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2.0,
                      BoolArgument error_if_nonfinite = false);
double get_total_norm(std::initializer_list<at::Tensor> parameters, double norm_type = 2.0,
                      BoolArgument error_if_nonfinite = false);
double get_total_norm(const at::Tensor& parameter, double norm_type = 2.0,
                      BoolArgument error_if_nonfinite = false);
double get_total_norm(torch::optim::Optimizer& optimizer, double norm_type = 2.0,
                      BoolArgument error_if_nonfinite = false);

// Multiplies all gradients by max_norm / (norm + 1e-6) where that is below 1. Returns the norm that
// they had.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                       double norm_type = 2.0, BoolArgument error_if_nonfinite = false);
double clip_grad_norm_(std::initializer_list<at::Tensor> parameters, double max_norm,
                       double norm_type = 2.0, BoolArgument error_if_nonfinite = false);
double clip_grad_norm_(const at::Tensor& parameter, double max_norm, double norm_type = 2.0,
                       BoolArgument error_if_nonfinite = false);
double clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type = 2.0,
                       BoolArgument error_if_nonfinite = false);

}  // namespace meshrun
