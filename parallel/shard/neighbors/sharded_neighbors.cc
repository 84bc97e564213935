#include "parallel/shard/neighbors/sharded_neighbors.h"

#include <optional>
#include <utility>
#include <vector>

#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/same_mesh.h"

namespace meshrun {
namespace {

using at::Tensor;

// Along which axis the points travel; -1: none, all axes of the mesh.
struct Course {
  bool is_ring = false;
  int64_t axis = -1;
};

// Makes the points Replicate along the axes that do not travel.
Course choose(Placements& points) {
  std::vector<int64_t> axes;
  for (size_t axis = 0; axis < points.size(); ++axis) {
    if (points[axis].is_shard()) axes.push_back(static_cast<int64_t>(axis));
  }
  if (axes.empty()) return {};
  if (axes.size() > 1 && axes.size() == points.size()) return {true, -1};
  for (const int64_t axis : axes) {
    if (axis != axes.back()) points[static_cast<size_t>(axis)] = Replicate();
  }
  return {true, axes.back()};
}

Neighbors search(const char* name, const Tensor& points, const Tensor& queries, int64_t k,
                 std::optional<double> radius) {
  const ShardMesh::Ptr mesh = mesh_of({&points, &queries}, name);
  if (points.dim() != 2 || queries.dim() != 2) {
    throw ShardTensorError(c10::str(name, " takes points (N, D) and queries (Q, D), not ",
                                    points.sizes(), " and ", queries.sizes()));
  }
  Tensor p = promote(points, mesh);
  Tensor q = promote(queries, mesh);
  Placements of_points = with_whole_dims(spec_of(p), {1})->placements();
  Placements of_queries = with_whole_dims(spec_of(q), {1})->placements();
  const Course course = choose(of_points);
  for (size_t axis = 0; axis < of_queries.size(); ++axis) {
    const bool travels =
        course.is_ring && (course.axis < 0 || course.axis == static_cast<int64_t>(axis));
    if (travels && of_queries[axis].is_replicate()) of_queries[axis] = Shard(0);
  }
  // with_whole_dims reduces a Partial before dims are cut.
  p = redistribute(p, with_whole_dims(spec_of(p), {1}));
  q = redistribute(q, with_whole_dims(spec_of(q), {1}));
  p = redistribute(p, target_spec(spec_of(p), of_points));
  q = redistribute(q, target_spec(spec_of(q), of_queries));
  const SpecPtr& spec = spec_of(q);
  const Tensor own_queries = to_local(q);
  const Tensor own_points = to_local(p, partial_where_replicated(spec_of(p), spec));
  const std::vector<int64_t> sizes = !course.is_ring    ? std::vector<int64_t>{}
                                     : course.axis >= 0 ? spec_of(p)->shard_sizes(course.axis)
                                                        : spec_of(p)->layout().cuts()[0].sizes;
  const Neighbors found =
      course.is_ring
          ? ring_neighbors(
                own_points, own_queries, sizes, k, radius,
                GroupArgument(course.axis < 0 ? mesh->group() : mesh->axis_group(course.axis)))
          : local_neighbors(own_points, own_queries, k, radius);
  std::vector<DimCut> cuts = {spec->layout().cuts()[0], DimCut{{}, {k}}};
  const SpecPtr result =
      make_spec(mesh, ShardLayout::with_cuts(mesh->shape(), spec->placements(), std::move(cuts)));
  return {from_local(found.indices, result), from_local(found.distances, result)};
}

}  // namespace

Neighbors nearest_neighbors(const Tensor& points, const Tensor& queries, IntArgument k) {
  return search("nearest_neighbors", points, queries, k, std::nullopt);
}

Neighbors radius_search(const Tensor& points, const Tensor& queries, double radius,
                        IntArgument max_points) {
  return search("radius_search", points, queries, max_points, radius);
}

}  // namespace meshrun
