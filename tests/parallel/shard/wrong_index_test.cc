// Indices out of bounds into a cut dimension: what the ranks that have them raise, and what the
// others hear. What a GPU does: operators_nccl_test.cc.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/base/collective_errors.h"
#include "parallel/shard/operators/lookup.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/library.h"

namespace meshrun {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// [4, 6] cut both ways by 2 x 2 ranks, and two columns of each row. Ranks 2 and 3 have the last
// row, which asks for column 9.
at::Tensor gather_a_wrong_column() {
  const ShardMesh::Ptr mesh = mesh_of_world({2, 2});
  const SpecPtr fields = make_spec(mesh, ShardLayout::split({2, 2}, {Shard(0), Shard(1)}, {4, 6}));
  const SpecPtr rows = make_spec(mesh, ShardLayout::split({2, 2}, {Shard(0), Replicate()}, {4, 2}));
  const at::Tensor columns = at::tensor({0, 5, 1, 4, 2, 3, 0, 9}, at::kLong).view({4, 2});
  return at::gather(ShardTensor(at::ones(fields->local_shape()), fields), 1,
                    ShardTensor(part_of(columns, *rows), rows));
}

bool has_the_wrong_column(const JoinedWorld& world) { return world.rank >= 2; }

template <typename Error>
void expect_soon(const std::function<void()>& call) {
  const Clock::time_point start = Clock::now();
  EXPECT_THROW(call(), Error);
  EXPECT_LT(Clock::now() - start, seconds(20));
}

void leave_after_a_wrong_index() {
  const JoinedWorld world;
  if (has_the_wrong_column(world)) {
    gather_a_wrong_column();
    return;
  }
  expect_soon<PeerLeftError>([] { gather_a_wrong_column().sum().item<double>(); });
}

void go_on_after_a_wrong_index() {
  const JoinedWorld world;
  if (has_the_wrong_column(world)) {
    EXPECT_THROW(gather_a_wrong_column(), c10::IndexError);
    expect_soon<CollectiveDeadlockError>([&] { world.manager.world()->barrier()->wait(); });
    return;
  }
  expect_soon<CollectiveDeadlockError>([] { gather_a_wrong_column().sum().item<double>(); });
}

const bool kRegistered =
    register_rank_function("leave after a wrong index", leave_after_a_wrong_index) &&
    register_rank_function("go on after a wrong index", go_on_after_a_wrong_index);

TEST(WrongIndexTest, RanksThatWaitForTheOneThatRaisedHearThatItLeft) {
  std::vector<Variables> ranks = env_ranks(4);
  for (Variables& rank : ranks) rank["MESHRUN_BACKEND"] = "ucx";
  const std::vector<RankResult> results =
      run_ranks("leave after a wrong index", ranks, std::chrono::minutes(1));
  for (const int rank : {0, 1}) EXPECT_EQ(results[rank].exit_code, 0) << results[rank].output;
  for (const int rank : {2, 3}) {
    EXPECT_EQ(results[rank].exit_code, 1);
    EXPECT_NE(results[rank].output.find("index 9 is out of bounds for a dimension with size 6"),
              std::string::npos)
        << results[rank].output;
  }
}

TEST(WrongIndexTest, RanksThatWaitForTheOneThatWentOnHearOfADeadlock) {
  run_in_worlds("go on after a wrong index", {4}, {"ucx"});
}

std::vector<std::string>& queued_assertions() {
  static auto* queued = new std::vector<std::string>;
  return *queued;
}

void note_assertion(const at::Tensor& holds, c10::string_view message) {
  EXPECT_EQ(holds.numel(), 1);
  EXPECT_TRUE(holds.is_meta());
  queued_assertions().emplace_back(message);
}

// LibTorch has it in Python alone.
at::Tensor where_without_values(const at::Tensor& condition, const at::Tensor&, const at::Tensor&) {
  return at::empty_like(condition, at::kLong);
}

// The device "meta" stands for a GPU: it has no values, so whatever waited for one would raise.
TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_assert_async.msg", &note_assertion);
  library.impl("where.self", &where_without_values);
}

TEST(WrongIndexTest, OnADeviceTheCheckIsQueuedAndTheHostDoesNotWait) {
  const auto indices = [](int64_t count) {
    return at::empty({count}, at::device(at::kMeta).dtype(at::kLong));
  };
  const PieceOf piece{2, 3, 6};
  const std::string words = "an index is out of bounds for a dimension with size 6";
  queued_assertions().clear();
  lookup(indices(3), piece, false);
  EXPECT_EQ(queued_assertions(), std::vector<std::string>(1, words));
  index_or_spare(indices(3), piece, true);
  EXPECT_EQ(queued_assertions(), std::vector<std::string>(2, words));
  lookup(indices(0), piece, false);
  EXPECT_EQ(queued_assertions().size(), 2U) << "no index, nothing to assert";
}

TEST(WrongIndexTest, TheQueuedCheckHoldsForIndicesOfTheWholeRangeAlone) {
  const auto check = [](std::vector<int64_t> from_front) {
    assert_in_range(at::tensor(from_front, at::kLong), 6);
  };
  EXPECT_NO_THROW(check({0, 5, 3}));
  EXPECT_NO_THROW(check({}));
  EXPECT_THROW(check({0, 6}), c10::Error);
  EXPECT_THROW(check({-1, 5}), c10::Error);
}

}  // namespace
}  // namespace meshrun
