// What a coordinator decides about a job does not depend on whether it was restarted meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/coordinator/state_machine/continuation_fixture.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::HasSubstr;

using std::chrono::minutes;

class TermsTest : public ContinuationTest {
 protected:
  void ReportStep(FakeWorker& worker, const std::string& id, int rank, int64_t step) {
    v1::OpenSessionRequest report = worker.Heartbeat();
    report.clear_heartbeat();
    report.mutable_fence()->set_job_id(id);
    report.mutable_fence()->set_generation(h.job(id).generation());
    (*report.mutable_progress_report()->mutable_progress())[rank].set_step(step);
    h.Say(worker, {report});
  }
  // A Hello from a worker of this name.
  void KnowsHigherTerm(const std::string& name, uint64_t by) {
    v1::StateEvent event;
    event.mutable_session_message()->set_session_id(1'000'000 + by);
    *event.mutable_session_message()->mutable_message() = FakeWorker({.name = name}).Hello();
    event.mutable_session_message()->mutable_message()->mutable_fence()->set_term(h.term() + by);
    h.Call(std::move(event));
  }
  // A job that ends at its next failure, unless it goes beyond step 5 before.
  std::string FailAtStepFive(FakeWorker& worker) {
    v1::JobSpec spec = Elastic(1, 1);
    spec.set_max_restarts(9);
    const std::string id = Run(spec);
    for (int i = 0; i < 3; ++i) {
      ReportStep(worker, id, 0, 5);
      h.Say(worker, worker.Exit(id, 0, 1));
      if (h.state(id) == v1::JOB_STATE_WAITING) h.Advance(seconds(2));
    }
    EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
    return id;
  }
};

TEST_F(TermsTest, AStepBeyondTheHighestOneIsProgressAlsoAfterARestart) {
  FakeWorker& worker = Add("node1");
  const std::string id = FailAtStepFive(worker);
  ReportStep(worker, id, 0, 6);
  h.StartCoordinator();
  worker.Exit(id, 0, 1);
  h.Connect(worker);
  EXPECT_NE(h.state(id), v1::JOB_STATE_FAILED) << h.job(id).reason();
  EXPECT_EQ(h.job(id).restarts_charged(), 4u);
}

// A copy of the state that nobody started with --restored. Its workers try again without end.
TEST_F(TermsTest, AWorkerThatKnowsAHigherTermIsRefusedAndPeopleAreToldOnce) {
  KnowsHigherTerm("n9", 1);
  KnowsHigherTerm("n9", 2);
  v1::StateEvent event;
  event.mutable_list_events();
  size_t told = 0;
  for (const auto& each :
       h.answer(h.Call(std::move(event))).As<v1::ListEventsResponse>().events()) {
    if (each.kind() != "HigherTerm") continue;
    ++told;
    EXPECT_THAT(each.message(), HasSubstr("n9 knows term"));
    EXPECT_THAT(each.message(), HasSubstr("--restored"));
  }
  EXPECT_EQ(told, 1u);
  EXPECT_EQ(h.machine().nodes().all().count("id-n9"), 0u);
}

// Whoever restarts such a coordinator again and again raises its term above the one that the
// workers know; it would then end what runs.
TEST_F(TermsTest, AStateIsOutdatedWhereMostOfItsWorkersKnowAHigherTerm) {
  FakeWorker& worker = Add("node1");
  for (const char* name : {"node2", "node3"}) Add(name);
  const std::string id = Run(Elastic(1, 1));
  const auto answer = [this, &id] {
    v1::StateEvent event;
    event.mutable_get_job()->set_job_id(id);
    return h.answer(h.Call(std::move(event))).status;
  };
  h.StartCoordinator();
  KnowsHigherTerm("node1", 1);
  KnowsHigherTerm("node1", 2);
  EXPECT_TRUE(answer().ok()) << "one may be wrong";
  KnowsHigherTerm("node2", 1);
  for (int starts = 0; starts < 12; ++starts) {
    EXPECT_THAT(std::string(answer().message()), HasSubstr("must be started with --restored"));
    EXPECT_TRUE(absl::IsUnavailable(answer()));
    h.Connect(worker);
    EXPECT_FALSE(h.connected(worker));
    h.Advance(std::chrono::minutes(1));
    EXPECT_EQ(worker.Running(id).size(), 1u);
    h.StartCoordinator();
  }
  h.RestoreCopy(h.rows());
  EXPECT_TRUE(answer().ok());
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(worker.Running(id).size(), 1u);
  h.StartCoordinator();
  EXPECT_TRUE(answer().ok());
}

TEST_F(TermsTest, WithoutSuchAStepARestartedCoordinatorEndsTheJobToo) {
  FakeWorker& worker = Add("node1");
  const std::string id = FailAtStepFive(worker);
  ReportStep(worker, id, 0, 5);
  h.StartCoordinator();
  worker.steps[0] = 5;
  worker.Exit(id, 0, 1);
  h.Connect(worker);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_NO_PROGRESS);
}

TEST_F(TermsTest, StepsThatNoCoordinatorHasHeardCountBeforeTheExit) {
  FakeWorker& worker = Add("node1");
  const std::string id = FailAtStepFive(worker);
  h.StartCoordinator();
  worker.steps[0] = 6;
  worker.Exit(id, 0, 1);
  h.Connect(worker);
  EXPECT_NE(h.state(id), v1::JOB_STATE_FAILED) << h.job(id).reason();
}

TEST_F(TermsTest, OfTheRanksStepsTheHighestCounts) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1, 2);
  spec.set_max_restarts(9);
  const std::string id = Run(spec);
  for (int i = 0; i < 3; ++i) {
    ReportStep(worker, id, 0, 5);
    h.Say(worker, worker.Exit(id, 0, 1));
    if (h.state(id) == v1::JOB_STATE_WAITING) h.Advance(seconds(2));
  }
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  h.StartCoordinator();
  worker.steps = {{0, 6}, {1, 4}};
  worker.Exit(id, 0, 1);
  h.Connect(worker);
  EXPECT_NE(h.state(id), v1::JOB_STATE_FAILED) << h.job(id).reason();
  // Before anything else is written.
  h.StartCoordinator();
  EXPECT_EQ(h.machine().jobs().all().at(id).step_beyond(), 6);
}

TEST_F(TermsTest, StepsAreWrittenOnceForEachGeneration) {
  FakeWorker& worker = Add("node1");
  const std::string id = FailAtStepFive(worker);
  // The third one tells the pace of the job, which is written too.
  for (int step = 6; step < 9; ++step) ReportStep(worker, id, 0, step);
  const auto texts = [&] {
    std::vector<std::string> out;
    for (const v1::StateRow& row : h.rows()) out.push_back(row.SerializeAsString());
    return out;
  };
  const std::vector<std::string> before = texts();
  for (int step = 9; step < 20; ++step) ReportStep(worker, id, 0, step);
  EXPECT_EQ(texts(), before);
  ASSERT_EQ(h.job(id).progress().step(), 19);
}

TEST_F(TermsTest, ALongRunRefillsTheBudgetAlsoAfterARestart) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_max_restarts(1);
  const std::string id = Run(spec);
  ReportStep(worker, id, 0, 5);
  h.Say(worker, worker.Exit(id, 0, 1));
  ASSERT_EQ(h.job(id).restarts_charged(), 1u);
  ReportStep(worker, id, 0, 6);
  h.Advance(minutes(11));
  h.StartCoordinator();
  worker.Exit(id, 0, 1);
  h.Connect(worker);
  EXPECT_NE(h.state(id), v1::JOB_STATE_FAILED) << h.job(id).reason();
  EXPECT_EQ(h.job(id).restarts(), 2u);
  EXPECT_EQ(h.job(id).restarts_charged(), 1u);
}

TEST_F(TermsTest, AWorkerThatBeganToStopMeanwhileIsLeftWithACheckpoint) {
  FakeWorker& stops = Add("node1");
  FakeWorker& stays = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  FakeWorker& spare = Add("node3");
  h.StartCoordinator();
  h.Connect(spare);
  stops.draining = true;
  h.Connect(stops);
  EXPECT_EQ(Count(stops, &v1::OpenSessionResponse::has_quiesce), 1);
  h.Connect(stays);
  ASSERT_EQ(Count(stays, &v1::OpenSessionResponse::has_quiesce), 1);
  for (const auto& message : stops.received) {
    EXPECT_TRUE(!message.has_quiesce() || message.quiesce().save());
  }
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).restarts_charged(), 0u);
  EXPECT_TRUE(stops.Running(id).empty());
  EXPECT_FALSE(spare.Running(id).empty());
}

TEST_F(TermsTest, AJobThatIsBeingStartedLeavesAWorkerThatStopsOnceItsRanksHaveJoined) {
  FakeWorker& stops = Add("node1");
  FakeWorker& slow = Add("node2");
  slow.deaf = true;
  const std::string id = h.Submit(Elastic(2, 2));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  const v1::OpenSessionResponse prepare = slow.received.back();
  ASSERT_TRUE(prepare.has_prepare());
  FakeWorker& spare = Add("node3");
  stops.draining = true;
  h.Say(stops, {stops.Heartbeat()});
  slow.deaf = false;
  h.Say(slow, slow.OnMessage(prepare));
  EXPECT_EQ(Count(stops, &v1::OpenSessionResponse::has_quiesce), 1);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_TRUE(stops.Running(id).empty());
  EXPECT_FALSE(spare.Running(id).empty());
}

TEST_F(TermsTest, AnAnnouncedStopIsPlannedAlsoWhereItsSessionHadBroken) {
  h.quarantine.set_absences(5);
  h.quarantine.mutable_window()->set_seconds(3600);
  h.StartCoordinator();
  FakeWorker& stops = h.AddWorker("node1");
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.set_max_restarts(1);
  const std::string id = h.Submit(spec);
  stops.draining = true;
  h.Say(stops, {stops.Heartbeat()});
  h.Disconnect(stops);
  h.StartCoordinator();
  h.Advance(seconds(5));
  ASSERT_EQ(h.node(stops).state(), v1::NODE_STATE_LOST);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  EXPECT_TRUE(h.job(id).failure().planned());
  EXPECT_EQ(h.job(id).restarts(), 0u);
  EXPECT_THAT(h.machine().nodes().all().at(stops.node_id()).absences, ::testing::IsEmpty());
}

TEST_F(TermsTest, AQueueTimeoutRunsOn) {
  v1::JobSpec spec = MakeSpec(1, 1);
  *spec.mutable_queue_timeout() = ToProtoDuration(seconds(10));
  const std::string id = h.Submit(spec);
  h.Advance(seconds(3));
  h.StartCoordinator();
  h.Advance(seconds(1));
  h.StartCoordinator();
  h.Advance(milliseconds(5999));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  h.Advance(milliseconds(1));
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_QUEUE_TIMEOUT);
}

TEST_F(TermsTest, AQueueTimeoutWaitsForTheNodesAfterAnOutage) {
  v1::JobSpec spec = MakeSpec(1, 1);
  *spec.mutable_queue_timeout() = ToProtoDuration(seconds(10));
  const std::string id = h.Submit(spec);
  h.Advance(seconds(9));
  h.StartCoordinator();
  h.Advance(seconds(2));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  h.AddWorker("node1");
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
}

TEST_F(TermsTest, AJobIsPlacedOnceTheLastSilentNodeIsLostThoughItsQueueTimeoutHasPassed) {
  FakeWorker& gone = h.AddWorker("node1");
  h.Disconnect(gone);
  gone.deaf = true;
  v1::JobSpec spec = MakeSpec(1, 1);
  *spec.mutable_queue_timeout() = ToProtoDuration(seconds(2));
  const std::string id = h.Submit(spec);
  h.StartCoordinator();
  h.AddWorker("node2");
  h.Advance(seconds(6));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
}

TEST_F(TermsTest, AQueueTimeoutBeginsAnewWithEachWait) {
  FakeWorker& worker = h.AddWorker("node1");
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.set_max_restarts(3);
  *spec.mutable_queue_timeout() = ToProtoDuration(seconds(10));
  const std::string id = h.Submit(spec);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Advance(seconds(30));
  h.Say(worker, {worker.Goodbye()});
  ASSERT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  h.StartCoordinator();
  h.Advance(milliseconds(9999));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  h.Advance(milliseconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
}

TEST_F(TermsTest, AHangIsFoundThatBeganBeforeTheRestart) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  for (int step = 0; step < 4; ++step) {
    ReportStep(first, id, 0, step);
    h.Advance(seconds(20));
  }
  h.StartCoordinator();
  h.Connect(first);
  h.Connect(second);
  // A worker offers the last reports again.
  ReportStep(first, id, 0, 3);
  h.Advance(seconds(200));
  EXPECT_EQ(Count(second, &v1::OpenSessionResponse::has_dump), 0);
  h.Advance(seconds(200));
  EXPECT_EQ(Count(second, &v1::OpenSessionResponse::has_dump), 1);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_HUNG);
  EXPECT_EQ(h.job(id).generation(), 2u);
}

TEST_F(TermsTest, ThePaceOfAnEarlierGenerationDoesNotCount) {
  FakeWorker& worker = Add("node1");
  const std::string id = Run(Elastic(1, 1));
  for (int step = 0; step < 4; ++step) ReportStep(worker, id, 0, step);
  h.Say(worker, worker.Exit(id, 0, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.StartCoordinator();
  h.Connect(worker);
  ReportStep(worker, id, 0, 0);
  h.Advance(minutes(60));
  EXPECT_FALSE(h.HasEvent("HangSuspected"));
}

TEST_F(TermsTest, RanksThatAreToldToLeaveKeepTheRestOfTheirGrace) {
  FakeWorker& leaves = Add("node1");
  Add("node2");
  v1::JobSpec spec = Elastic(1, 2);
  *spec.mutable_kill_grace() = ToProtoDuration(seconds(20));
  const std::string id = Run(spec);
  leaves.stubborn = true;
  leaves.forgets = false;
  leaves.draining = true;
  h.Say(leaves, {leaves.Heartbeat()});
  ASSERT_EQ(h.job(id).generation(), 2u) << h.job(id).reason();
  ASSERT_EQ(Count(leaves, &v1::OpenSessionResponse::has_stop), 1);
  const auto grace_of_the_last_stop = [&] {
    const v1::OpenSessionResponse& last = leaves.received.back();
    return last.has_stop() ? FromProto(last.stop().grace()) : seconds(-1);
  };
  ASSERT_EQ(grace_of_the_last_stop(), seconds(20));
  h.Disconnect(leaves);
  h.Advance(seconds(3));
  h.Connect(leaves);
  EXPECT_EQ(grace_of_the_last_stop(), seconds(17));
  h.StartCoordinator();
  h.Advance(seconds(2));
  h.Connect(leaves);
  EXPECT_EQ(grace_of_the_last_stop(), seconds(15));
  EXPECT_EQ(Count(leaves, &v1::OpenSessionResponse::has_forget), 0);
  EXPECT_EQ(h.node(leaves).slots_used(), 1u);
  h.Say(leaves, leaves.StopRanks(id, /*code=*/0));
  EXPECT_EQ(h.node(leaves).slots_used(), 0u);
}

TEST_F(TermsTest, RanksThatKeepTheRestOfTheirGraceAreNotStuckBeforeItEnds) {
  FakeWorker& leaves = Add("node1");
  FakeWorker& stays = Add("node2");
  v1::JobSpec spec = Elastic(1, 2);
  *spec.mutable_kill_grace() = ToProtoDuration(seconds(60));
  const std::string id = Run(spec);
  leaves.stubborn = true;
  leaves.forgets = false;
  leaves.draining = true;
  h.Say(leaves, {leaves.Heartbeat()});
  h.StartCoordinator();
  h.Connect(stays);
  h.Connect(leaves);
  h.Advance(seconds(80));
  EXPECT_FALSE(h.HasEvent("MemberStuck"));
  h.Advance(seconds(20));
  EXPECT_TRUE(h.HasEvent("MemberStuck"));
}

TEST_F(TermsTest, RanksThatOutliveTheirGraceAreStuckAlsoAfterARestart) {
  FakeWorker& leaves = Add("node1");
  FakeWorker& stays = Add("node2");
  const std::string id = Run(Elastic(1, 2));
  leaves.stubborn = true;
  leaves.forgets = false;
  leaves.draining = true;
  h.Say(leaves, {leaves.Heartbeat()});
  h.StartCoordinator();
  h.Connect(stays);
  h.Connect(leaves);
  EXPECT_EQ(Count(leaves, &v1::OpenSessionResponse::has_forget), 0);
  h.Advance(seconds(45));
  EXPECT_GT(Count(leaves, &v1::OpenSessionResponse::has_forget), 0);
  EXPECT_TRUE(h.HasEvent("MemberStuck"));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
