// Whether tensors of one call, which writes to all of them, are memory of each other.
#pragma once

#include <string>
#include <string_view>

#include "ATen/core/Tensor.h"

namespace meshrun {

// The first two that have an element in common, as a sentence; empty: none have. `name`: the
// list's. The tensors are defined, dense and on one device. Costs a sort, and time by element only
// for tensors whose elements lie between those of another one.
std::string find_memory_overlap(at::ArrayRef<at::Tensor> tensors, std::string_view name);

}  // namespace meshrun
