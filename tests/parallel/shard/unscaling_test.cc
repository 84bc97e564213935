// Gradients unscaled by a gradient scaler: all ranks skip a step, or none.
#include <gtest/gtest.h>

#include <limits>

#include "ATen/ATen.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

const bool kMeshes = register_rank_function("unscaling on two meshes", [] {
  const JoinedWorld world;
  const DeviceMesh both = world.manager.initialize_mesh({2, 2}, {"dp", "domain"});
  for (int bad = -1; bad < world.size; ++bad) {
    SCOPED_TRACE(bad);
    // One rank's part of a gradient that all ranks have parts of; then one of two ranks.
    at::Tensor first = at::full({1, 3}, 4.0);
    if (world.rank == bad) first.fill_(std::numeric_limits<float>::infinity());
    const ShardTensor a = ShardTensor::from_local(first, both, Placements{Shard(0), Shard(0)});
    const ShardTensor b =
        ShardTensor::from_local(at::full({2, 3}, 4.0), both["domain"], Placements{Shard(1)});
    at::Tensor found = at::zeros({1});
    at::_amp_foreach_non_finite_check_and_unscale_({at::Tensor(a), at::Tensor(b)}, found,
                                                   at::full({1}, 0.5));
    EXPECT_EQ(found.item<float>(), bad < 0 ? 0 : 1);
    EXPECT_EQ(local_of(b).sum().item<float>(), 12);
  }
});

TEST(UnscalingTest, AnInfinityOnOneMeshIsKnownOnAllOfThem) {
  run_in_worlds("unscaling on two meshes", {4}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
