#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/shard/neighbors/ring_neighbors.h"
#include "parallel/shard/neighbors/sharded_neighbors.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;

// All distances, sorted, in LibTorch's own operators; the gradient is autograd's.
Neighbors expected_neighbors(const Tensor& points, const Tensor& queries, int64_t k,
                             std::optional<double> radius) {
  const Tensor all = (queries.unsqueeze(1) - points.unsqueeze(0)).norm(2, {2});
  const int64_t found = std::min(k, points.size(0));
  auto [distances, indices] = at::topk(all, found, 1, false);
  if (radius) {
    const Tensor beyond = distances > *radius;
    distances = distances.masked_fill(beyond, std::numeric_limits<double>::infinity());
    indices = indices.masked_fill(beyond, -1);
  }
  return {at::constant_pad_nd(indices, {0, k - found}, -1),
          at::constant_pad_nd(distances, {0, k - found}, std::numeric_limits<double>::infinity())};
}

Tensor finite(const Tensor& distances) { return distances.masked_fill(distances.isinf(), 0.0); }

void expect_close(const Tensor& got, const Tensor& expected, const char* what) {
  ASSERT_TRUE(got.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(at::allclose(got, expected, 1e-10, 1e-10)) << what;
}

struct Whole {
  Whole(int64_t num_points, int64_t num_queries, int64_t k, std::optional<double> radius) {
    at::manual_seed(num_points * 100 + num_queries);
    points = at::randn({num_points, 3}, at::kDouble).requires_grad_();
    queries = at::randn({num_queries, 3}, at::kDouble);
    // One query is a point: its distance of 0 has a gradient of 0.
    if (num_queries > 0) queries[0].copy_(points.detach()[num_points / 2]);
    queries.requires_grad_();
    found = expected_neighbors(points, queries, k, radius);
    weights = at::randn(found.distances.sizes(), at::kDouble);
    // norm's own gradient at 0 is 0.
    (finite(found.distances) * weights).sum().backward();
  }
  Tensor points, queries, weights;
  Neighbors found;
};

Tensor rows_of(const Tensor& whole, const Sizes& sizes, int rank) {
  int64_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += sizes[static_cast<size_t>(r)];
  return whole.narrow(0, begin, sizes[static_cast<size_t>(rank)]);
}

struct Case {
  int64_t k;
  std::optional<double> radius;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> cases = {{1, std::nullopt}, {4, std::nullopt}, {11, std::nullopt},
                                          {4, 1.5},          {20, 2.0},         {3, 0.0}};
  return cases;
}

const bool kRing = register_rank_function("ring", [] {
  const JoinedWorld world;
  for (const Case& c : cases()) {
    Sizes uneven(static_cast<size_t>(world.size), 0);
    uneven.back() = 4;
    uneven.front() += 9;
    const Sizes even(static_cast<size_t>(world.size), 12);
    for (const Sizes& sizes : {even, uneven}) {
      int64_t total = 0;
      for (const int64_t size : sizes) total += size;
      SCOPED_TRACE(c10::str("k ", c.k, " radius ", c.radius.value_or(-1), " of ", total));
      const Sizes query_sizes(static_cast<size_t>(world.size), 5);
      const Whole whole(total, 5 * world.size, c.k, c.radius);
      const auto leaf = [&](const Tensor& tensor, const Sizes& cut) {
        return rows_of(tensor, cut, world.rank).detach().clone().requires_grad_();
      };
      const Tensor points = leaf(whole.points, sizes);
      const Tensor queries = leaf(whole.queries, query_sizes);
      const Neighbors found = ring_neighbors(points, queries, sizes, c.k, c.radius);
      EXPECT_TRUE(found.indices.equal(rows_of(whole.found.indices, query_sizes, world.rank)));
      EXPECT_FALSE(found.indices.requires_grad());
      expect_close(found.distances.detach(),
                   rows_of(whole.found.distances, query_sizes, world.rank).detach(), "distances");
      (finite(found.distances) * rows_of(whole.weights, query_sizes, world.rank)).sum().backward();
      expect_close(queries.grad(), rows_of(whole.queries.grad(), query_sizes, world.rank),
                   "gradient of queries");
      expect_close(points.grad(), rows_of(whole.points.grad(), sizes, world.rank),
                   "gradient of points");
    }
  }
  const Sizes sizes(static_cast<size_t>(world.size), 2);
  const Tensor x = at::randn({2, 3});
  expect_error_on_all_ranks([&] { ring_neighbors(x, x, sizes, 2 * world.size + 1); }, "points");
  if (world.size > 1) {
    expect_error_on_all_ranks(
        [&] { ring_neighbors(world.rank == 1 ? x.to(at::kDouble) : x, x, sizes, 1); }, "dtype");
    expect_error_on_all_ranks([&] { ring_neighbors(x, x, sizes, world.rank == 1 ? 2 : 1); },
                              "neighbors");
  }
});

TEST(RingNeighborsTest, FindWhatASearchOfAllPointsFinds) {
  run_in_worlds("ring", {1, 2, 3}, {"ucx"});
}

const bool kSharded = register_rank_function("sharded", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh =
      ShardMesh::of(world.manager.initialize_mesh({2, 2}, {"dp", "domain"}));
  const auto placed = [&](const Tensor& whole, const Placements& placements) {
    const SpecPtr spec =
        make_spec(mesh, ShardLayout::split(mesh->shape(), placements, whole.sizes().vec()));
    Tensor part = whole.detach();
    for (int64_t dim = 0; dim < 2; ++dim) {
      const auto d = static_cast<size_t>(dim);
      part = part.narrow(dim, spec->box().offsets[d], spec->box().sizes[d]);
    }
    return ShardTensor(part.clone(), spec, true);
  };
  const std::vector<Placements> all = {{Shard(0), Shard(0)},
                                       {Replicate(), Shard(0)},
                                       {Shard(0), Replicate()},
                                       {Replicate(), Replicate()},
                                       {Shard(1), Shard(0)}};
  for (const std::optional<double> radius : {std::optional<double>(), std::optional<double>(1.5)}) {
    const Whole whole(13, 7, 5, radius);
    for (const Placements& of_points : all) {
      for (const Placements& of_queries : all) {
        SCOPED_TRACE(meshrun::to_string(of_points) + meshrun::to_string(of_queries));
        const ShardTensor points = placed(whole.points, of_points);
        const ShardTensor queries = placed(whole.queries, of_queries);
        const Neighbors found = radius ? radius_search(points, queries, *radius, 5)
                                       : nearest_neighbors(points, queries, 5);
        EXPECT_TRUE(ShardTensor(found.indices).full_tensor().equal(whole.found.indices));
        expect_close(ShardTensor(found.distances.detach()).full_tensor(),
                     whole.found.distances.detach(), "distances");
        (at::masked_fill(found.distances, at::isinf(found.distances.detach()), 0.0) * whole.weights)
            .sum()
            .backward();
        expect_close(ShardTensor(queries.grad()).full_tensor(), whole.queries.grad(),
                     "gradient of queries");
        expect_close(ShardTensor(points.grad()).full_tensor(), whole.points.grad(),
                     "gradient of points");
      }
    }
  }
});

TEST(ShardedNeighborsTest, EveryPlacementFindsTheSame) { run_in_worlds("sharded", {4}, {"ucx"}); }

}  // namespace
}  // namespace meshrun
