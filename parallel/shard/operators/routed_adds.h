// Additions where the written tensor, the source and the index are cut along the chosen dimension
// by the same axes: a graph whose nodes and edges lie on the same ranks. Each rank sends what its
// source adds to the owners of the rows, once, and each owner adds in the order of the ranks.
//
// Internal to parallel/shard/operators; above autograd. The result is absent where the layouts are
// others. All ranks of the mesh call alike. Errors: c10::IndexError, on the rank that has an index
// out of range.
#pragma once

#include <cstdint>
#include <optional>

#include "ATen/core/Tensor.h"

namespace meshrun {

// self[index[i]] += source[i] along `dim`; `index` is a vector.
std::optional<at::Tensor> routed_index_add(const at::Tensor& self, int64_t dim,
                                           const at::Tensor& index, const at::Tensor& source);
// An index for each element of `source`.
std::optional<at::Tensor> routed_scatter_add(const at::Tensor& self, int64_t dim,
                                             const at::Tensor& index, const at::Tensor& source);

}  // namespace meshrun
