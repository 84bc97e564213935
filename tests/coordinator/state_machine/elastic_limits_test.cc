// Rare ends of elastic jobs: what must neither wait for ever, nor be charged or given out twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/coordinator/state_machine/continuation_fixture.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ElasticLimitsTest : public ContinuationTest {
 protected:
  void Report(FakeWorker& worker, const std::string& id, int rank, int64_t step) {
    v1::OpenSessionRequest report = worker.Message({id, h.job(id).generation()});
    (*report.mutable_progress_report()->mutable_progress())[rank].set_step(step);
    h.Say(worker, {report});
  }
  // What the worker says to the last message that it was deaf to.
  void Answer(FakeWorker& worker) {
    const v1::OpenSessionResponse message = worker.received.back();
    h.Say(worker, worker.OnMessage(message));
  }
};

TEST_F(ElasticLimitsTest, ARankThatFinishesWhileTheNextGenerationIsPreparedHoldsUpNobody) {
  FakeWorker& first = Add("node1");
  Add("node2");
  FakeWorker& third = Add("node3");
  const std::string id = Run(Elastic(1, 3));
  first.deaf = true;
  h.Say(third, third.Exit(id, 2, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  h.Say(first, first.Exit(id, 0, 0));
  Lose(first);
  h.Advance(seconds(60));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).restarts_charged(), 1u);
}

TEST_F(ElasticLimitsTest, DeathsThatFollowAFailureAreNotChargedAgain) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  FakeWorker& third = Add("node3");
  FakeWorker& fourth = Add("node4");
  v1::JobSpec spec = Elastic(1, 4);
  spec.set_max_restarts(1);
  const std::string id = Run(spec);
  first.deaf = true;
  h.Say(fourth, fourth.Exit(id, 3, 0, SIGKILL));
  h.Say(third, third.Exit(id, 2, 1));
  h.Say(second, second.Exit(id, 1, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS) << h.job(id).reason();
  first.deaf = false;
  Answer(first);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).world_size(), 4u);
  EXPECT_EQ(h.job(id).restarts_charged(), 1u);
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
  // One that runs again has failures of its own.
  h.Say(second, second.Exit(id, 1, 1));
  EXPECT_TRUE(h.HasEvent("RankFailed"));
  h.Advance(seconds(60));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED) << h.job(id).reason();
}

TEST_F(ElasticLimitsTest, ACoordinatorThatStoodStillReadsAnswersBeforeItJudges) {
  FakeWorker& worker = Add("node1");
  const std::string id = Run(Elastic(1, 1));
  worker.deaf = true;
  h.Cancel(id);
  h.clock.Advance(seconds(600));
  h.Advance(milliseconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  worker.deaf = false;
  Answer(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED) << h.job(id).reason();
  EXPECT_FALSE(h.HasEvent("MemberStuck"));
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
}

TEST_F(ElasticLimitsTest, RanksThatAreToldToLeaveAndDoNotEndDrainTheirNode) {
  Add("node1");
  FakeWorker& parked = Add("node2");
  FakeWorker& third = Add("node3");
  const std::string id = Run(Elastic(1, 3));
  parked.draining = true;
  parked.stubborn = true;
  parked.forgets = false;
  h.Say(parked, {parked.Heartbeat()});
  h.Say(third, third.Exit(id, 2, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  ASSERT_EQ(h.job(id).world_size(), 2u);
  EXPECT_EQ(h.node(parked).slots_used(), 1u);
  h.Advance(seconds(100));
  EXPECT_THAT(h.node(parked).drain_reason(), HasSubstr("do not end"));
  EXPECT_EQ(h.node(parked).slots_used(), 1u);
  h.StartCoordinator();
  h.Connect(parked);
  EXPECT_THAT(h.node(parked).drain_reason(), HasSubstr("do not end"));
  parked.forgets = true;
  Answer(parked);
  EXPECT_EQ(h.node(parked).slots_used(), 0u);
  EXPECT_EQ(h.node(parked).drain_reason(), "");
}

TEST_F(ElasticLimitsTest, AHostThatMayNotHaveHeardOfTheStopIsNotTakenForAStuckOne) {
  FakeWorker& stubborn = Add("node1");
  FakeWorker& spare = Add("node2");
  v1::JobSpec spec = Elastic(1, 1, 8);
  spec.set_recovery(v1::RECOVERY_RESPAWN);
  *spec.mutable_kill_grace() = ToProtoDuration(seconds(5));
  const std::string id = Run(spec);
  stubborn.stubborn = true;
  h.Say(stubborn, stubborn.Exit(id, 0, 1));
  h.Advance(seconds(33));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  Lose(stubborn);
  h.Advance(seconds(10));
  EXPECT_FALSE(spare.Carries(id)) << "its ranks may compute until its fence time";
  EXPECT_EQ(h.node(stubborn).drain_reason(), "");
  h.Advance(seconds(20));
  EXPECT_TRUE(spare.Carries(id)) << h.job(id).reason();
}

TEST_F(ElasticLimitsTest, ACheckpointIsProgressWhereStepsAreNot) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_max_restarts(2);
  const std::string id = Run(spec);
  for (int i = 0; i < 8; ++i) {
    Report(worker, id, 0, 5);
    ASSERT_TRUE(Commit(id, h.job(id).generation(), 10 + i,
                       i == 0 ? std::nullopt : std::optional<int64_t>(9 + i))
                    .ok());
    h.Say(worker, worker.Exit(id, 0, 1));
    ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).failure().message();
  }
  EXPECT_EQ(h.job(id).restarts(), 8u);
}

TEST_F(ElasticLimitsTest, TablesOfOldGenerationsAreDropped) {
  FakeWorker& worker = Add("node1");
  const std::string id = Run(Elastic(1, 1));
  for (int i = 0; i < 120; ++i) {
    ASSERT_TRUE(
        Commit(id, h.job(id).generation(), i, i == 0 ? std::nullopt : std::optional<int64_t>(i - 1))
            .ok());
    h.Say(worker, worker.Exit(id, 0, 1));
    ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).failure().message();
  }
  EXPECT_EQ(h.job(id).generation(), 121u);
  h.StartCoordinator();
  const auto& worlds = h.machine().jobs().all().at(id).worlds;
  EXPECT_EQ(worlds.size(), 100u);
  EXPECT_TRUE(worlds.contains(121));
}

// The session may be broken, and nobody have noticed: the worker says nothing to a signal.
TEST_F(ElasticLimitsTest, APauseThatMayBeLostWithASessionIsToldAgain) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2, 2));
  Signal(id, SIGSTOP);
  ASSERT_EQ(Signalled(second, SIGSTOP).size(), 1u);
  h.Disconnect(second);
  h.Connect(second);
  EXPECT_THAT(Signalled(second, SIGSTOP), ElementsAre(ElementsAre(), ElementsAre(2, 3)));
  // The leader may have ended between the answer and the message.
  h.StartCoordinator();
  h.Connect(first);
  h.Connect(second);
  EXPECT_THAT(Signalled(first, SIGSTOP), ElementsAre(ElementsAre(), ElementsAre(0, 1)));
  EXPECT_EQ(Signalled(second, SIGSTOP).size(), 3u);
  EXPECT_EQ(Signalled(second, SIGCONT).size(), 0u);
  Signal(id, SIGCONT);
  h.Disconnect(second);
  h.Connect(second);
  EXPECT_EQ(Signalled(second, SIGSTOP).size(), 3u);
  EXPECT_THAT(Signalled(second, SIGCONT), ElementsAre(ElementsAre(), ElementsAre(2, 3)));
  EXPECT_FALSE(h.job(id).has_paused_since());
  // Long after that nothing is repeated: a person may have stopped a rank.
  h.Advance(seconds(30));
  h.Disconnect(second);
  h.Connect(second);
  EXPECT_EQ(Signalled(second, SIGCONT).size(), 2u);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
}

TEST_F(ElasticLimitsTest, AnotherMachineWithTheIdentityOfALostNodeWaitsForItsFence) {
  FakeWorker& worker = Add("node1");
  worker.machine_id = "first";
  h.Connect(worker);
  const std::string id = Run(Elastic(1, 1, 8));
  h.Disconnect(worker);
  h.Advance(seconds(6));
  ASSERT_EQ(h.node(worker).state(), v1::NODE_STATE_LOST);
  worker.machine_id = "second";
  worker.Reboot(/*ranks_survive=*/false);
  h.Connect(worker);
  EXPECT_TRUE(absl::IsUnavailable(h.closed["node1"])) << h.closed["node1"];
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  h.Advance(seconds(16));
  h.Connect(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
}

TEST_F(ElasticLimitsTest, APauseIsNoHang) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  *spec.mutable_hang_timeout() = ToProtoDuration(seconds(30));
  const std::string id = Run(spec);
  Report(worker, id, 0, 1);
  h.Advance(seconds(20));
  Signal(id, SIGSTOP);
  h.Advance(seconds(600));
  Signal(id, SIGCONT);
  h.Advance(seconds(29));
  EXPECT_FALSE(h.HasEvent("HangSuspected"));
  h.Advance(seconds(1));
  EXPECT_TRUE(h.HasEvent("HangSuspected"));
}

// People stop the ranks of a job that hangs, to look at them.
TEST_F(ElasticLimitsTest, AHangThatIsFoundAgainAfterAPauseHasItsWholeTime) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  *spec.mutable_hang_timeout() = ToProtoDuration(seconds(30));
  const std::string id = Run(spec);
  Report(worker, id, 0, 1);
  h.Advance(seconds(35));
  EXPECT_EQ(Count(worker, &v1::OpenSessionResponse::has_dump), 1);
  EXPECT_NE(h.job(id).hang(), "");
  Signal(id, SIGSTOP);
  h.Advance(seconds(600));
  EXPECT_EQ(h.job(id).hang(), "") << "while it is paused nothing hangs";
  Signal(id, SIGCONT);
  h.Advance(seconds(30));
  ASSERT_EQ(Count(worker, &v1::OpenSessionResponse::has_dump), 2);
  h.Advance(Hangs::kDumpTime - milliseconds(100));
  EXPECT_EQ(h.job(id).generation(), 1u);
  h.Advance(milliseconds(200));
  EXPECT_EQ(h.job(id).generation(), 2u);
}

TEST_F(ElasticLimitsTest, ARankThatStandsStillAfterTheLastStepOfAnotherIsAHang) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1, 2);
  *spec.mutable_hang_timeout() = ToProtoDuration(seconds(30));
  const std::string id = Run(spec);
  const auto report = [&](int rank, int64_t step) {
    v1::OpenSessionRequest message = worker.Message({id, 1});
    v1::Progress& progress = (*message.mutable_progress_report()->mutable_progress())[rank];
    progress.set_step(step);
    progress.set_total_steps(12);
    h.Say(worker, {message});
  };
  report(1, 4);
  report(0, 12);
  // Each step of the one that is behind counts.
  for (int64_t step = 5; step < 8; ++step) {
    h.Advance(seconds(29));
    report(1, step);
  }
  h.Advance(seconds(29));
  EXPECT_FALSE(h.HasEvent("HangSuspected"));
  h.Advance(seconds(1));
  EXPECT_TRUE(h.HasEvent("HangSuspected"));
  report(1, 12);
  EXPECT_EQ(h.job(id).hang(), "");
  h.Advance(seconds(600));
  EXPECT_EQ(h.job(id).generation(), 1u) << "all ranks have taken their last step";
}

TEST_F(ElasticLimitsTest, StepsThatCountAnewInEachEpochAreNoHang) {
  FakeWorker& worker = Add("node1");
  const std::string id = Run(Elastic(1, 1));
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (int step = 0; step < 6; ++step) {
      Report(worker, id, 0, step);
      h.Advance(seconds(20));
    }
  }
  EXPECT_FALSE(h.HasEvent("HangSuspected"));
  EXPECT_EQ(h.job(id).generation(), 1u);
}

TEST_F(ElasticLimitsTest, AJobThatIsAskedToGrowAndCannotStandStillDoesNotFail) {
  FakeWorker& first = Add("node1");
  first.quiesces = false;
  v1::JobSpec spec = Elastic(1, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  spec.set_max_restarts(0);
  const std::string id = Run(spec);
  Add("node2");
  h.Advance(seconds(61));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).world_size(), 2u);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
