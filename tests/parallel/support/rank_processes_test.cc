// A rank whose expectation fails fails its test.
#include "tests/parallel/support/rank_processes.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace meshrun {
namespace {

const bool kFails = register_rank_function("expectation_fails", [] { EXPECT_EQ(1, 2); });
const bool kThrows =
    register_rank_function("exception_escapes", [] { throw std::runtime_error("escaped"); });
const bool kHolds = register_rank_function("expectation_holds", [] { EXPECT_EQ(1, 1); });

TEST(RankProcessesTest, ARankFailsWhereAnExpectationFailsOrAnExceptionEscapes) {
  for (const RankStart start : {RankStart::kForkAtMain, RankStart::kFork, RankStart::kExec}) {
    const auto run = [&](const char* function) {
      return run_ranks(function, env_ranks(2), std::chrono::minutes(1), start);
    };
    for (const RankResult& rank : run("expectation_fails")) EXPECT_EQ(rank.exit_code, 1);
    for (const RankResult& rank : run("exception_escapes")) EXPECT_EQ(rank.exit_code, 1);
    for (const RankResult& rank : run("expectation_holds")) EXPECT_EQ(rank.exit_code, 0);
  }
}

}  // namespace
}  // namespace meshrun
