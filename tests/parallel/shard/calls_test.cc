// What parameters of public functions of parallel/shard take, asked of the compiler.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/shard/attention/ring_attention.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/neighbors/sharded_neighbors.h"
#include "parallel/shard/random/random_operation.h"
#include "parallel/shard/scatter_tensor.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/support/parameters.h"

namespace meshrun {

// Declared to be named in calls that are never made.
namespace given {
extern const at::Tensor x;
extern const ShardTensor sharded;
extern const SpecPtr spec;
extern const DeviceMesh mesh;
extern const Placement placement;
extern const Placements placements;
extern const ShardLayout layout;
extern const std::vector<int64_t> extents;
}  // namespace given

namespace {

using namespace given;

TEST(ShardCallsTest, TensorsTakeEachForItself) {
  EXPECT_TAKES_BOOL_ONLY(ShardTensor(x, spec, value));
  EXPECT_TAKES_BOOL_ONLY(sharded.redistribute(mesh, placements, value));
  EXPECT_TAKES_INTEGERS_ONLY(sharded.offsets(value));
  EXPECT_TAKES_BOOL_ONLY(ShardTensorPatchesGuard(value));
  EXPECT_TAKES_INTEGERS_ONLY(scatter_tensor(x, value, mesh, placements));
  EXPECT_TAKES_BOOL_ONLY(scatter_tensor(x, 0, mesh, placements, std::nullopt, std::nullopt, value));
}

TEST(ShardCallsTest, LayoutsTakeEachForItself) {
  EXPECT_TAKES_INTEGERS_ONLY(Shard(value));
  EXPECT_TAKES_INTEGERS_ONLY(Placement::shard(value));
  EXPECT_TAKES_INTEGERS_ONLY(Placement::held_by(value));
  EXPECT_TAKES_INTEGERS_ONLY(placement.is_shard(value));
  EXPECT_TAKES_INTEGERS_ONLY(layout.is_sharded(value));
  EXPECT_TAKES_INTEGERS_ONLY(layout.piece(value, extents));
  EXPECT_TAKES_INTEGERS_ONLY(spec->is_sharded(value));
  EXPECT_TAKES_INTEGERS_ONLY(spec->offset(value));
  EXPECT_TAKES_INTEGERS_ONLY(spec->shard_sizes(value));
  EXPECT_TAKES_INTEGERS_ONLY(spec->mesh()->axis_group(value));
}

TEST(ShardCallsTest, WhatHandlersAreMadeOfTakesEachForItself) {
  EXPECT_TAKES_INTEGERS_ONLY(with_placement(spec, value, placement));
  EXPECT_TAKES_BOOL_ONLY(RedistributeForm{.own_memory = value});
  EXPECT_TAKES_BOOL_ONLY(RedistributeForm{.async = value});
  EXPECT_TAKES_INTEGERS_ONLY(reseed(value));
}

TEST(ShardCallsTest, AttentionAndNeighborsTakeEachForItself) {
  EXPECT_TAKES_BOOL_ONLY(AttentionOptions{.is_causal = value});
  EXPECT_TAKES_BOOL_ONLY(AttentionOptions{.enable_gqa = value});
  EXPECT_TAKES_INTEGERS_ONLY(AttentionOptions{.first_query = value});
  EXPECT_TAKES_INTEGERS_ONLY(nearest_neighbors(x, x, value));
  EXPECT_TAKES_INTEGERS_ONLY(radius_search(x, x, 0.5, value));
  EXPECT_TAKES_INTEGERS_ONLY(ring_neighbors(x, x, extents, value));
  EXPECT_TAKES_INTEGERS_ONLY(local_neighbors(x, x, value));
}

}  // namespace
}  // namespace meshrun
