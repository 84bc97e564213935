#include "parallel/comm/ucx/engine/execution/wait_reports.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/comm/ucx/executor_cases.h"

namespace meshrun::ucx {
namespace {

using ::testing::ElementsAre;

TEST(WaitReportsTest, AReportOfAWaitSaysWhatWasCalled) {
  Simulation ranks(3, options());
  ranks.add_world();
  ranks.add_group("pair", {2, 1});
  barrier(ranks);
  ranks.settle();
  const auto handle = ranks.submit(1, "pair", barrier_spec());
  WaitReport report = ranks.executor(1).wait_report({handle.get()});
  EXPECT_EQ(report.rank, 1);
  const WaitCall expected{"pair", {2, 1}, 1, {}, "barrier number 1 of group \"pair\"", false};
  EXPECT_THAT(report.calls, ElementsAre(expected));
  EXPECT_EQ(report.called.at("world"), 1u);
  Bytes memory = bytes(4, 0);
  const auto receive = ranks.submit(1, "pair", point_to_point_spec(false, 0, memory));
  // Two threads wait for the receive.
  report = ranks.executor(1).wait_report({receive.get(), handle.get(), receive.get()});
  ASSERT_EQ(report.calls.size(), 2u);
  EXPECT_THAT(report.calls[0].peers, ElementsAre(2));
  EXPECT_EQ(report.calls[1], expected);
}

TEST(WaitReportsTest, AReportOfAWaitTellsOfTheMessagesUnderWayInAllGroups) {
  Simulation ranks(3, options());
  ranks.add_world();
  ranks.add_group("pair", {2, 1});
  Bytes a = bytes(1 << 20, 1), b = bytes(4, 0), c = bytes(4, 0);
  ranks.submit(1, "pair", point_to_point_spec(true, 0, a));
  ranks.submit(1, "world", point_to_point_spec(false, 0, b));
  const auto handle = ranks.submit(1, "world", barrier_spec());
  WaitReport report = ranks.executor(1).wait_report({handle.get()});
  EXPECT_THAT(report.sending_to, ElementsAre(2));
  EXPECT_THAT(report.receiving_from, ElementsAre(0));
  ranks.submit(1, "world", point_to_point_spec(false, -1, c));
  report = ranks.executor(1).wait_report({handle.get()});
  EXPECT_THAT(report.receiving_from, ElementsAre(0, 2));
}

}  // namespace
}  // namespace meshrun::ucx
