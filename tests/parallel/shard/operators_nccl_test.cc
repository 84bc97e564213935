// Every operator on drawn cases, for one to four ranks that share one GPU (one_gpu.h): operands and
// results lie there, and what moves goes by NCCL.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "parallel/manager/device_choice.h"
#include "tests/parallel/shard/drawn_cases.h"
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

}  // namespace
}  // namespace meshrun
