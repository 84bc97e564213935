// A rank whose expectation fails fails its test.
#include "tests/parallel/support/rank_processes.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>

namespace meshrun {
namespace {

const bool kFails = register_rank_function("expectation_fails", [] { EXPECT_EQ(1, 2); });
const bool kThrows =
    register_rank_function("exception_escapes", [] { throw std::runtime_error("escaped"); });
const bool kHolds = register_rank_function("expectation_holds", [] { EXPECT_EQ(1, 1); });

const bool kReads = register_rank_function("reads_its_variable", [] {
  EXPECT_STREQ(std::getenv("OF_RANK_PROCESSES_TEST"), "the rank's");
});

TEST(RankProcessesTest, ARanksVariablesReplaceTheProgramsOwn) {
  setenv("OF_RANK_PROCESSES_TEST", "the program's", /*overwrite=*/1);
  std::vector<Variables> ranks = env_ranks(1);
  ranks[0]["OF_RANK_PROCESSES_TEST"] = "the rank's";
  for (const RankStart start : {RankStart::kForkAtMain, RankStart::kFork, RankStart::kExec}) {
    expect_success(run_ranks("reads_its_variable", ranks, std::chrono::minutes(1), start));
  }
}

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
