// What operators on sharded tensors cost the host must not grow unnoticed: instructions as a
// multiple of the plain addition's. callgrind counts them: the machine's load does not matter.
#include <gtest/gtest.h>

#include "tests/bench/host_cost/counted.h"

namespace meshrun::bench {
namespace {

TEST(ShardCostTest, InstructionsAreWithinFivePercentOfTheRecordedMultipleOfAnAddition) {
  auto counted = count_under_callgrind("tests/bench/shard/shard_host_cost");
  expect_recorded_ratios(counted, "add, plain", "tests/bench/shard/recorded.json");
}

}  // namespace
}  // namespace meshrun::bench
