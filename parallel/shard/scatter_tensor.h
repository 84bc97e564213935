// A tensor that one rank has becomes a ShardTensor: each rank gets its own part and nothing else.
//
//   ShardTensor x = scatter_tensor(rank == 0 ? loaded : at::Tensor(), 0, mesh, {Shard(1)});
//
// `tensor` is looked at on rank `global_src` alone (a rank of the world, as the mesh counts them).
// Parts are cut by the split rule. Axes that are Replicate get the parts from the ranks along the
// source's own coordinates, so that the source sends each part once. A message tells shape and
// dtype only where `global_shape` or `dtype` is absent. The parts are on the device of the mesh's
// group. The result is a leaf.
//
// Errors, on all ranks of the mesh: ShardTensorError (global_src is not in the mesh, a Partial
// placement, a dim out of range), CollectiveArgumentError (the source's tensor is undefined, or of
// another shape or dtype than is given), CollectiveMismatchError (ranks whose arguments differ).
// Threads: any; all ranks of the mesh call alike. Corresponds to the peer's scatter_tensor, which
// sends the whole tensor to every rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/shard/shard_tensor.h"

namespace meshrun {

ShardTensor scatter_tensor(const at::Tensor& tensor, IntArgument global_src, const DeviceMesh& mesh,
                           const Placements& placements,
                           const std::optional<std::vector<int64_t>>& global_shape = std::nullopt,
                           std::optional<at::ScalarType> dtype = std::nullopt,
                           BoolArgument requires_grad = false);

}  // namespace meshrun
