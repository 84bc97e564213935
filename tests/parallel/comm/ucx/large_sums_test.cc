// The sums that were wrong: 2^31 float32 on two ranks. Takes 17 GiB of memory.
#include "tests/parallel/comm/ucx/large_sums.h"

#include <gtest/gtest.h>

namespace meshrun::ucx {
namespace {

TEST(LargeSumsTest, AnAllReduceOfTwoToThe31ElementsIsRight) {
  LargeSums sums;
  sums.count = int64_t{1} << 31;
  sums.heap_bytes = 64 << 20;
  sums.prints = true;
  EXPECT_EQ(run_forked(sums.size, std::chrono::minutes(10), sums), "");
}

}  // namespace
}  // namespace meshrun::ucx
