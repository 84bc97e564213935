// Do all ranks hold the same module, to be trained in the same way? Asked before anything is built
// on it, so that a difference is a sentence on every rank and not a hang or a silent mix of unlike
// tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/ordered_dict.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshrun::detail {

// One line per tensor: name, dtype, shape, and whether it is trained.
std::string describe(const torch::OrderedDict<std::string, at::Tensor>& tensors);

// Collective. The same sentence on every rank of `group` where a rank has a `problem` (not empty),
// or where the options (one line) or the modules' descriptions differ: names the first rank that
// differs from rank 0, and both their lines. Else empty. `device` is where this rank can
// communicate from. Costs one all-gather of 16 bytes where all agree.
std::string find_difference(c10d::ProcessGroup& group, c10::Device device,
                            const std::string& options, const std::string& description,
                            const std::string& problem);

}  // namespace meshrun::detail
