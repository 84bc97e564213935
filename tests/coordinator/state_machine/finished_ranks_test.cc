// What ends after a rank has reported that the generation's work is finished ends without a
// restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/coordinator/state_machine/continuation_fixture.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::HasSubstr;

class FinishedRanksTest : public ContinuationTest {
 protected:
  absl::Status Report(const std::string& job_id, int rank, uint64_t generation = 1,
                      const std::string& node_id = "") {
    v1::StateEvent event;
    v1::ReportFinishedRequest& request = *event.mutable_report_finished();
    request.mutable_fence()->set_job_id(job_id);
    request.mutable_fence()->set_generation(generation);
    request.mutable_fence()->set_node_id(node_id);
    request.set_rank(rank);
    return h.answer(h.Call(std::move(event))).status;
  }
  Harness::Answer& Ask(const std::string& job_id, uint64_t generation = 1) {
    v1::StateEvent event;
    event.mutable_get_finished()->mutable_fence()->set_job_id(job_id);
    event.mutable_get_finished()->mutable_fence()->set_generation(generation);
    return h.answer(h.Call(std::move(event)));
  }
  void ExpectSucceededOnce(const std::string& id) {
    EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED) << h.job(id).reason();
    EXPECT_EQ(h.job(id).generation(), 1u);
    EXPECT_EQ(h.job(id).restarts(), 0u);
    EXPECT_FALSE(h.job(id).has_failure());
  }
};

TEST_F(FinishedRanksTest, ARankThatIsKilledAfterItsReportLeavesTheJobSucceeded) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  ASSERT_TRUE(Report(id, 1).ok());
  EXPECT_TRUE(h.HasEvent("RanksFinished"));
  EXPECT_TRUE(h.job(id).ranks(1).finished());
  EXPECT_FALSE(h.job(id).ranks(0).finished());
  h.Say(second, second.Exit(id, 1, 0, SIGKILL));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_TRUE(h.HasEvent("EndedAfterFinish"));
  // The other one goes on to its own end: nothing stops it.
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_stop), 0);
  h.Say(first, first.Exit(id, 0, 0));
  ExpectSucceededOnce(id);
  EXPECT_THAT(h.job(id).reason(), HasSubstr("rank 1 on node2 was killed by signal 9 (SIGKILL)"));
}

TEST_F(FinishedRanksTest, OneReportIsEnoughForAllRanks) {
  for (const v1::Recovery recovery : {v1::RECOVERY_UNSPECIFIED, v1::RECOVERY_RESPAWN}) {
    FakeWorker& first = Add("node1-" + std::to_string(recovery));
    FakeWorker& second = Add("node2-" + std::to_string(recovery));
    v1::JobSpec spec = Elastic(2, 2, 8);
    spec.set_recovery(recovery);
    const std::string id = Run(spec);
    ASSERT_TRUE(Report(id, 0).ok());
    for (FakeWorker* const worker : {&second, &first}) {
      for (const int rank : worker->Running(id)) {
        h.Say(*worker, worker->Exit(id, rank, 0, SIGKILL));
      }
    }
    ExpectSucceededOnce(id);
    // Their slots are free for the next round.
    EXPECT_EQ(h.node(first).slots_used(), 0u);
    h.Say(first, {first.Goodbye()});
    h.Say(second, {second.Goodbye()});
  }
}

TEST_F(FinishedRanksTest, ALossBeforeAnyReportRefusesTheReportsThatFollow) {
  Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  EXPECT_FALSE(Ask(id).As<v1::GetFinishedResponse>().finished());
  h.Say(second, second.Exit(id, 1, 0, SIGKILL));
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(Report(id, 0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ask(id).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Ask(id, 2).As<v1::GetFinishedResponse>().finished());
  EXPECT_TRUE(Report(id, 0, 2).ok());
  EXPECT_TRUE(Ask(id, 2).As<v1::GetFinishedResponse>().finished());
}

TEST_F(FinishedRanksTest, WhereTheRanksAreBeingStoppedForAFailureAReportIsRefused) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  first.in_process = false;
  first.stubborn = true;
  const std::string id = Run(Elastic(2, 2));
  h.Say(second, second.Exit(id, 1, 0, SIGKILL));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  const absl::Status refused = Report(id, 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 1 on node2 was killed"));
  EXPECT_EQ(Ask(id).status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(FinishedRanksTest, AReportOutlivesTheCoordinator) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  ASSERT_TRUE(Report(id, 0).ok());
  h.StartCoordinator();
  h.Connect(first);
  h.Connect(second);
  EXPECT_TRUE(Ask(id).As<v1::GetFinishedResponse>().finished());
  EXPECT_TRUE(h.job(id).ranks(0).finished());
  // The answer was lost: said again.
  EXPECT_TRUE(Report(id, 0).ok());
  h.Say(first, first.Exit(id, 0, 0, SIGKILL));
  h.StartCoordinator();
  h.Connect(first);
  h.Connect(second);
  h.Say(second, second.Exit(id, 1, 0));
  ExpectSucceededOnce(id);
}

TEST_F(FinishedRanksTest, ALostHostIsNoFailureEither) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  Add("node3");
  const std::string id = Run(Elastic(2, 2));
  ASSERT_TRUE(Report(id, 0).ok());
  Lose(second);
  h.Advance(seconds(6));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_TRUE(h.HasEvent("EndedAfterFinish"));
  h.Say(first, first.Exit(id, 0, 0));
  ExpectSucceededOnce(id);
  EXPECT_THAT(h.job(id).reason(), HasSubstr("rank 1 was lost with node2"));
}

TEST_F(FinishedRanksTest, AWorkerThatLeavesOrForgetsItsRanksIsNoFailureEither) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  ASSERT_TRUE(Report(id, 0).ok());
  second.Reboot(/*ranks_survive=*/false);
  h.Connect(second);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  h.Say(first, {first.Goodbye()});
  ExpectSucceededOnce(id);
}

TEST_F(FinishedRanksTest, AnExitCodeStillFailsTheJobAndDoesNotRestartIt) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  ASSERT_TRUE(Report(id, 0).ok());
  h.Say(second, second.Exit(id, 1, 3));
  // The first one is told to end.
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_stop), 1);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 1u);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_RANK_EXITED);
  EXPECT_EQ(h.job(id).failure().rank(), 1);
  EXPECT_THAT(h.job(id).failure().message(), HasSubstr("exit code 3"));
}

class FinishedRanksCrashTest : public FinishedRanksTest,
                               public ::testing::WithParamInterface<int> {};

TEST_P(FinishedRanksCrashTest, FailsTheJobAndDoesNotRestartIt) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  ASSERT_TRUE(Report(id, 0).ok());
  h.Say(second, second.Exit(id, 1, 0, GetParam()));
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_stop), 1);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 1u);
  EXPECT_EQ(h.job(id).restarts(), 0u);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_RANK_SIGNALED);
  EXPECT_EQ(h.job(id).failure().exit().signal(), GetParam());
  EXPECT_THAT(h.job(id).failure().message(), HasSubstr("after all ranks had finished their work"));
}

INSTANTIATE_TEST_SUITE_P(Signals, FinishedRanksCrashTest,
                         ::testing::Values(SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS,
                                           SIGTRAP));

class FinishedRanksSignalTest : public FinishedRanksTest,
                                public ::testing::WithParamInterface<int> {};

TEST_P(FinishedRanksSignalTest, FromOutsideLeavesTheJobSucceeded) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  ASSERT_TRUE(Report(id, 0).ok());
  h.Say(second, second.Exit(id, 1, 0, GetParam()));
  EXPECT_TRUE(h.HasEvent("EndedAfterFinish"));
  h.Say(first, first.Exit(id, 0, 0));
  ExpectSucceededOnce(id);
}

INSTANTIATE_TEST_SUITE_P(Signals, FinishedRanksSignalTest,
                         ::testing::Values(SIGKILL, SIGTERM, SIGINT, SIGHUP));

TEST_F(FinishedRanksTest, AStopThatComesAfterItFindsTheJobSucceeded) {
  Add("node1");
  Add("node2");
  const std::string id = Run(Elastic(1, 1));
  ASSERT_TRUE(Report(id, 0).ok());
  v1::StateEvent drain;
  drain.mutable_drain_node()->set_node("node1");
  drain.mutable_drain_node()->mutable_deadline();
  h.Call(drain);
  h.Advance(seconds(1));
  ExpectSucceededOnce(id);
}

TEST_F(FinishedRanksTest, RanksThatWereAskedToStandStillAndHadFinishedAreNotWaitedFor) {
  FakeWorker& worker = Add("node1");
  worker.quiesces = false;
  v1::JobSpec spec = Elastic(1, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  Add("node2");
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  ASSERT_TRUE(Report(id, 0).ok());
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  // Beyond the time to stand still.
  h.Advance(seconds(90));
  EXPECT_EQ(Count(worker, &v1::OpenSessionResponse::has_stop), 0);
  h.Say(worker, worker.Exit(id, 0, 0, SIGKILL));
  ExpectSucceededOnce(id);
}

TEST_F(FinishedRanksTest, WrongReportsAreRefused) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  EXPECT_EQ(Report(id, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Report(id, -1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Report(id, 0, 1, second.node_id()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Report(id, 0, 7).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Report("unknown", 0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Ask(id).As<v1::GetFinishedResponse>().finished());
  EXPECT_TRUE(Report(id, 0, 1, first.node_id()).ok());
}

}  // namespace
}  // namespace meshrun::coordinator::testing
