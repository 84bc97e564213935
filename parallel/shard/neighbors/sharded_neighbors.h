// Neighbor searches among sharded points: ring_neighbors.h on ShardTensors.
//
// points (N, D) and queries (Q, D), sharded or plain (Replicate), at least one of them sharded.
// Results (Q, k) are sharded as the queries; queries that are equal on ranks with different points
// are cut first. Points that several axes cut are gathered along all but one, unless all axes of
// the mesh cut them. D is whole on every rank, and is gathered where it is cut.
//
// Gradients: of the distances, in the placements of points and queries. Threads and order: all
// ranks of the mesh call alike. Errors: ShardTensorError (two meshes, no sharded tensor), those of
// ring_neighbors.
//
// PhysicsNeMo: physicsnemo.nn.functional.knn and radius_search on ShardTensors.
#pragma once

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/shard/neighbors/ring_neighbors.h"

namespace meshrun {

// The k nearest points of each query.
Neighbors nearest_neighbors(const at::Tensor& points, const at::Tensor& queries, IntArgument k);
// The nearest within the radius, at most max_points; -1 and inf where there are fewer.
Neighbors radius_search(const at::Tensor& points, const at::Tensor& queries, double radius,
                        IntArgument max_points);

}  // namespace meshrun
