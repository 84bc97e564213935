// Every operator on drawn cases, for one to four ranks that share one GPU (one_gpu.h): operands and
// results lie there, and what moves goes by NCCL. And what a wrong index does there.
//
// A rank that aborts says last which case it was in. With CUDA_LAUNCH_BLOCKING=1 an error of the
// GPU comes from the call that made it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/manager/device_choice.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_cases.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/one_gpu.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

class OperatorsOnOneGpuTest : public testing::TestWithParam<int> {};

TEST_P(OperatorsOnOneGpuTest, EqualLibTorchsOnTheWholeTensors) {
  if (gpu_count() == 0) GTEST_SKIP() << "this process sees no GPU (nvidia-smi -L lists them)";
  std::vector<Variables> ranks = ranks_on_one_gpu(GetParam(), GpuSharing::kAsHosts);
  // Ranks that take turns on a GPU need milliseconds for each call of NCCL.
  if (GetParam() > 1) {
    for (Variables& variables : ranks) variables["MESHRUN_SHARD_CASES"] = "10";
  }
  // CUDA does not outlive a fork.
  run_drawn_cases("operators", std::move(ranks), RankStart::kExec);
}

INSTANTIATE_TEST_SUITE_P(Worlds, OperatorsOnOneGpuTest, testing::Values(1, 2, 3, 4));

// After a failed assertion the process can do nothing more on the device, so it ends without
// leaving the world.
void look_up_a_wrong_index() {
  const JoinedWorld world;
  const c10::Device device = world.manager.device();
  const SpecPtr rows = make_spec(mesh_of_world({1}), ShardLayout::split({1}, {Shard(0)}, {6, 2}));
  ASSERT_TRUE(rows->is_sharded(0)) << "the lookup of a cut dimension is not reached";
  const ShardTensor table(at::ones({6, 2}, device), rows);
  const at::Tensor wrong = at::tensor({0, 9}, at::kLong).to(device);
  try {
    // Whatever comes after the assertion may be the first to hear of it, the lookup itself too.
    ShardTensor(at::embedding(table, wrong)).full_tensor().cpu();
  } catch (const std::exception& error) {
    std::puts(error.what());
    std::fflush(stdout);
    const std::string_view text(error.what());
    std::_Exit(text.find("device-side assert") == std::string_view::npos ? 1 : 0);
  }
  ADD_FAILURE() << "the wrong index was looked up without an error";
}

const bool kRegistered = register_rank_function("look up a wrong index", look_up_a_wrong_index);

TEST(WrongIndexOnOneGpuTest, FailsAnAssertionOfTheDeviceAndIsNotReadAsZeros) {
  if (gpu_count() == 0) GTEST_SKIP() << "this process sees no GPU (nvidia-smi -L lists them)";
  expect_success(run_ranks("look up a wrong index", ranks_on_one_gpu(1, GpuSharing::kAsHosts),
                           RankStart::kExec));
}

}  // namespace
}  // namespace meshrun
