// The nearest of many points that are cut among the ranks of a group: blocks of points travel round
// a ring, the next one while the present one is searched. A rank holds at most two blocks beside
// its own, and the distances of some queries to one block.
//
// Shapes: points (N of this rank, D), queries (Q of this rank, D); results (Q, k), nearest first.
// Where there are fewer than k points (within the radius), the rest has index -1 and distance inf.
// k may be larger than a block, and, with a radius, than all of them. Euclidean distances, computed
// in float32 (float64 for float64) from differences. Points at equal distances come in the order of
// their indices, except where the k-th and the next one of a block are equally far.
//
// Backward: of the distances to points and queries, exact and the same in every run; a distance of
// 0 has a gradient of 0. The points travel again, and their gradients behind them, as in
// attention/ring_attention.h. No second derivatives.
//
// Threads and order: those of c10d::Backend; a backward runs on all ranks or on none. Errors, on
// all ranks: CollectiveArgumentError for a wrong argument, CollectiveMismatchError where ranks
// differ.
//
// PhysicsNeMo: knn and radius_search of domain_parallel.shard_utils, which take k up to a block's
// size and have no gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

struct Neighbors {
  at::Tensor indices;  // int64, in the points of all ranks, in rank order
  at::Tensor distances;
};

// `point_sizes`: of all ranks. `radius`: points farther away do not count.
Neighbors ring_neighbors(const at::Tensor& points, const at::Tensor& queries,
                         const std::vector<int64_t>& point_sizes, IntArgument k,
                         std::optional<double> radius = std::nullopt,
                         const GroupArgument& group = {});
// The same of points that this rank has whole; nothing moves.
Neighbors local_neighbors(const at::Tensor& points, const at::Tensor& queries, IntArgument k,
                          std::optional<double> radius = std::nullopt);

}  // namespace meshrun
