// Additions and other reductions where the written tensor, the source and the index are cut along
// the chosen dimension by the same axes: a graph whose nodes and edges lie on the same ranks. Each
// rank sends the rows of its source to the owners of the rows that they are for, once, and each
// owner takes them in the order of the ranks, which is that of the whole source.
//
// Internal to parallel/shard/operators; above autograd. The result is absent where the layouts are
// others. All ranks of the mesh call alike. Errors: c10::IndexError, on the rank that has an index
// out of range.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "ATen/core/Tensor.h"

namespace meshrun {

// What an owner does to its part: the part, the indices in it, and the rows for them.
using RowReduction =
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

// `call` with self[index[i]] and source[i] along `dim`; `index` is a vector.
std::optional<at::Tensor> routed_index_reduce(const at::Tensor& self, int64_t dim,
                                              const at::Tensor& index, const at::Tensor& source,
                                              const RowReduction& call);
// self[index[i]] += source[i].
std::optional<at::Tensor> routed_index_add(const at::Tensor& self, int64_t dim,
                                           const at::Tensor& index, const at::Tensor& source);
// An index for each element of `source`.
std::optional<at::Tensor> routed_scatter_add(const at::Tensor& self, int64_t dim,
                                             const at::Tensor& index, const at::Tensor& source);

}  // namespace meshrun
