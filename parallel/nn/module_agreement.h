// Checks that all ranks hold the same module, with the same options, before anything is built on
// it. So a difference is a sentence on every rank, not a hang or a silent mix of different tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/ordered_dict.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshrun::detail {

// One line per tensor: name, dtype, shape, and whether it is trained.
std::string describe(const torch::OrderedDict<std::string, at::Tensor>& tensors);

// Collective. Returns the same sentence on every rank of `group` if a rank has a `problem` (not
// empty), or if the options (one line) or the modules' descriptions differ: it names the first rank
// that differs from rank 0, and both lines. Otherwise empty. This rank communicates from `device`.
// Costs one all-gather of 16 bytes if all agree.
std::string find_difference(c10d::ProcessGroup& group, c10::Device device,
                            const std::string& options, const std::string& description,
                            const std::string& problem);

}  // namespace meshrun::detail
