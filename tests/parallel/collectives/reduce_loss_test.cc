#include "parallel/collectives/reduce_loss.h"

#include <gtest/gtest.h>

#include "parallel/base/errors.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

const bool kReduceLoss = register_rank_function("reduce_loss", [] {
  const JoinedWorld world;
  for (int dst = 0; dst < world.size; ++dst) {
    // Closed forms: the sum is P, the mean 1; nothing elsewhere.
    const std::optional<double> sum = reduce_loss(1.0, dst, /*mean=*/false);
    const std::optional<double> mean = reduce_loss(1.0, dst);
    EXPECT_EQ(sum.has_value(), world.rank == dst);
    EXPECT_EQ(mean.has_value(), world.rank == dst);
    if (sum) {
      EXPECT_EQ(*sum, world.size);
    }
    if (mean) {
      EXPECT_EQ(*mean, 1.0);
    }
  }
  // Float32 has no such number.
  const std::optional<double> fine = reduce_loss(1 + 1e-9);
  if (world.rank == 0) {
    EXPECT_NEAR(*fine - 1, 1e-9, 1e-15);
  }
});

TEST(ReduceLossTest, IsTheSumOrTheMeanAtItsDestinationInFloat64) { run_in_worlds("reduce_loss"); }

const bool kSubgroup = register_rank_function("reduce_loss_subgroup", [] {
  const JoinedWorld world;
  DistributedManager::create_process_subgroup("pair", 2);
  const int first = world.rank / 2 * 2;
  const auto sum = reduce_loss(world.rank, /*dst_rank=*/1, /*mean=*/false, "pair");
  EXPECT_EQ(sum.has_value(), world.rank == first + 1);
  if (sum) {
    EXPECT_EQ(*sum, 2 * first + 1);
  }
});

TEST(ReduceLossTest, TheDestinationIsARankOfTheGroup) {
  run_in_worlds("reduce_loss_subgroup", {4}, {"ucx"});
}

const bool kWrong = register_rank_function("reduce_loss_wrong", [] {
  const JoinedWorld world;
  // On one rank, and on all.
  expect_error_on_all_ranks([&] { reduce_loss(1, world.rank == 1 ? 7 : 0); }, "dst_rank is 7");
  expect_error_on_all_ranks([&] { reduce_loss(1, -1); }, "dst_rank is -1");
  expect_error_on_all_ranks([&] { reduce_loss(1, world.rank == 1 ? 1 : 0); },
                            "rank 1 called reduce_loss (reduce of float64 [1], sum, root 1)");
  const auto mean = reduce_loss(3);
  if (world.rank == 0) {
    EXPECT_EQ(*mean, 3);
  }
});

TEST(ReduceLossTest, AWrongDestinationIsAnErrorOnAllRanks) {
  run_in_worlds("reduce_loss_wrong", {2, 3}, {"ucx"});
}

TEST(ReduceLossTest, NeedsTheManager) { EXPECT_THROW(reduce_loss(1), UninitializedError); }

}  // namespace
}  // namespace meshrun
