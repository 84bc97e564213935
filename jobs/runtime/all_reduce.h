// A sum, or another reduction, over the ranks of a group, for evaluations.
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace meshrun::jobs {

// Returns a tensor on the CPU, equal on all ranks. `device` is one that the group's backend serves.
// Collective.
inline at::Tensor all_reduced(c10d::ProcessGroup& group, c10::Device device,
                              const at::Tensor& tensor,
                              c10d::ReduceOp::RedOpType operation = c10d::ReduceOp::SUM) {
  // The group reduces in place; the caller's tensor stays as it is.
  std::vector<at::Tensor> tensors = {tensor.to(device, tensor.scalar_type(), false, true)};
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  group.allreduce(tensors, options)->wait();
  return tensors[0].cpu();
}

}  // namespace meshrun::jobs
