#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/state_machine/state_machine.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CoordinatorRestartTest : public ::testing::Test {
 protected:
  Harness h;
};

TEST_F(CoordinatorRestartTest, ARunningGenerationIsAdoptedAsItIs) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 2));
  const size_t commands = worker.received.size();
  h.StartCoordinator();
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Connect(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 1u);
  // Welcome, and nothing else: the ranks notice nothing.
  EXPECT_EQ(worker.received.size(), commands + 1);
  EXPECT_EQ(h.node(worker).slots_used(), 2u);
  h.Say(worker, worker.ExitAll(id, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(CoordinatorRestartTest, TheProgressOfAnEarlierTermIsNotShownAsThePresentOne) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 1));
  const auto report = [&](int64_t step, double loss) {
    v1::OpenSessionRequest message = worker.Message({id, 1});
    v1::Progress& progress = (*message.mutable_progress_report()->mutable_progress())[0];
    progress.set_step(step);
    progress.set_loss(loss);
    h.Say(worker, {message});
  };
  // The first one is written with the job, later ones are not.
  report(30, 0.9962);
  report(3020, 0.03163);
  ASSERT_EQ(h.job(id).progress().step(), 3020);
  h.StartCoordinator();
  EXPECT_FALSE(h.job(id).has_progress());
  h.Connect(worker);
  EXPECT_FALSE(h.job(id).has_progress());
  report(3350, 0.03);
  EXPECT_EQ(h.job(id).progress().step(), 3350);
  // Ranks that end without another report leave the last one that is known, over two restarts too.
  h.StartCoordinator();
  h.Connect(worker);
  h.StartCoordinator();
  h.Connect(worker);
  h.Say(worker, worker.Exit(id, 0, 3));
  EXPECT_EQ(h.job(id).state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(h.job(id).has_progress());
}

TEST_F(CoordinatorRestartTest, JobsThatAreAsTheyWereAreNotWrittenAgain) {
  v1::JobSpec held = MakeSpec(1, 1);
  held.set_hold(true);
  const std::string is_held = h.Submit(held);
  FakeWorker& worker = h.AddWorker("node1");
  h.Submit(MakeSpec(1, 8));
  const std::string waits = h.Submit(MakeSpec(1, 2));
  const auto revisions = [&] {
    return std::pair(h.job(is_held).revision(), h.job(waits).revision());
  };
  const auto before = revisions();
  h.StartCoordinator();
  h.Connect(worker);
  EXPECT_EQ(revisions(), before);
}

// The rows of nodes come early, and what may be large comes after them.
TEST_F(CoordinatorRestartTest, AStateThatIsReadForLongerThanALeaseLosesNoNode) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 2));
  h.part_takes = seconds(6);
  h.StartCoordinator();
  h.Advance(seconds(4));
  h.Connect(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 1u);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_HEALTHY);
}

TEST_F(CoordinatorRestartTest, ExitsThatNobodyHeardAreTakenFromHello) {
  FakeWorker& worker = h.AddWorker("node1");
  FakeWorker& peer = h.AddWorker("node2");
  const std::string id = h.Submit(MakeSpec(2, 1));
  h.StartCoordinator();
  worker.Exit(id, 0, 7);
  h.Connect(worker);
  EXPECT_EQ(h.job(id).failure().exit().exit_code(), 7);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  h.Connect(peer);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
}

TEST_F(CoordinatorRestartTest, AStartThatWasNotHeardIsSaidAgain) {
  FakeWorker& worker = h.AddWorker("node1");
  FakeWorker& other = h.AddWorker("node2");
  other.deaf = true;
  const std::string id = h.Submit(MakeSpec(2, 1));
  other.deaf = false;
  const v1::OpenSessionResponse prepare = other.received.back();
  worker.deaf = true;
  h.Say(other, other.OnMessage(prepare));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(worker.Running(id).empty());
  worker.deaf = false;
  h.StartCoordinator();
  h.Connect(worker);
  EXPECT_THAT(worker.Running(id), ElementsAre(0));
}

TEST_F(CoordinatorRestartTest, ARendezvousBeginsAnewUnderAnotherGeneration) {
  FakeWorker& worker = h.AddWorker("node1");
  FakeWorker& slow = h.AddWorker("node2");
  slow.deaf = true;
  const std::string id = h.Submit(MakeSpec(2, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  h.StartCoordinator();
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(h.job(id).reason(), HasSubstr("waits up to 5s for 2 of 2 nodes to report"));
  slow.deaf = false;
  h.Connect(worker);
  h.Connect(slow);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 2u);
}

TEST_F(CoordinatorRestartTest, ANodeThatDoesNotReturnIsLostAfterOneLease) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.StartCoordinator();
  h.Advance(milliseconds(4999));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Advance(milliseconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_LOST);
}

TEST_F(CoordinatorRestartTest, JobsAndEventsAreThereAfterwards) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string done = h.Submit(MakeSpec(1, 1));
  h.Say(worker, worker.Exit(done, 0, 3));
  const std::string queued = h.Submit(MakeSpec(5, 1));
  const v1::Job before = h.job(done);
  h.StartCoordinator();
  EXPECT_EQ(h.job(done).failure().DebugString(), before.failure().DebugString());
  EXPECT_EQ(h.job(done).ranks(0).exit().DebugString(), before.ranks(0).exit().DebugString());
  EXPECT_EQ(h.state(queued), v1::JOB_STATE_QUEUED);
  EXPECT_TRUE(h.HasEvent("RankFailed"));
  EXPECT_EQ(h.term(), 2u);
}

TEST_F(CoordinatorRestartTest, AStopUnderWayGoesOn) {
  FakeWorker& worker = h.AddWorker("node1");
  worker.stubborn = true;
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.Cancel(id);
  h.StartCoordinator();
  worker.stubborn = false;
  h.Connect(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
}

TEST_F(CoordinatorRestartTest, AGenerationThatNobodyKnowsIsForgotten) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 1));
  Harness other;
  other.Connect(worker);
  EXPECT_FALSE(worker.Carries(id));
}

TEST(WorkerRestartTest, RanksThatSurviveAreAdopted) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 2));
  h.Disconnect(worker);
  worker.Reboot(/*ranks_survive=*/true);
  h.Connect(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 1u);
  EXPECT_EQ(h.node(worker).incarnation(), 2u);
  h.Say(worker, worker.ExitAll(id, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED);
}

TEST(WorkerRestartTest, RanksThatAreGoneAreAFailureAtOnce) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 2));
  worker.Reboot(/*ranks_survive=*/false);
  h.Connect(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_NODE_LOST);
  EXPECT_EQ(h.node(worker).slots_used(), 0u);
}

TEST(WorkerRestartTest, APrepareThatWasLostIsSaidAgain) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  worker.deaf = true;
  const std::string id = h.Submit(MakeSpec(1, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  worker.deaf = false;
  h.Disconnect(worker);
  h.Connect(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 1u);
}

TEST(WorkerRestartTest, ALostEndIsTakenFromHello) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.Disconnect(worker);
  worker.Exit(id, 0, 0);
  h.Connect(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED);
}

TEST(WorkerRestartTest, RanksThatTheirWorkerStoppedUnheardAreAFailure) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  h.AddWorker("node2");
  const std::string id = h.Submit(MakeSpec(2, 1));
  h.Disconnect(worker);
  worker.StopRanks(id, /*code=*/0);
  h.Connect(worker);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_NODE_LOST);
}

TEST(WorkerRestartTest, AGenerationThatWasGivenUpUnheardIsNotStarted) {
  Harness h;
  FakeWorker& worker = h.AddWorker("node1");
  FakeWorker& slow = h.AddWorker("node2");
  slow.deaf = true;
  const std::string id = h.Submit(MakeSpec(2, 1));
  const v1::OpenSessionResponse prepare = slow.received.back();
  ASSERT_TRUE(prepare.has_prepare());
  h.Disconnect(worker);
  worker.GiveUp(id);
  h.Connect(worker);
  slow.deaf = false;
  h.Say(slow, slow.OnMessage(prepare));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_TRUE(h.HasEvent("PrepareFailed"));
}

TEST(DamagedStateTest, ARowThatCannotBeReadIsNamed) {
  const auto restore = [](v1::StateTable table, const std::string& key, const std::string& value) {
    v1::StateEvent event;
    event.mutable_restore()->set_term(1);
    v1::StateRow& row = *event.mutable_restore()->add_rows();
    row.set_table(table);
    row.set_key(key);
    row.set_value(value);
    return StateMachine().Step(event).damage;
  };
  const std::string number = "00000000000000000001";
  for (const auto& [table, key] :
       {std::pair(v1::STATE_TABLE_JOBS, std::string("job")),
        std::pair(v1::STATE_TABLE_NODES, std::string("node")),
        std::pair(v1::STATE_TABLE_WORLDS, "job/" + number),
        std::pair(v1::STATE_TABLE_MEMBERS, "job/" + number + "/" + number),
        std::pair(v1::STATE_TABLE_EVENTS, number)}) {
    const absl::Status damage = restore(table, key, "\xff\xff");
    EXPECT_TRUE(absl::IsDataLoss(damage)) << key;
    EXPECT_THAT(std::string(damage.message()), HasSubstr("key '" + key + "'"));
    EXPECT_THAT(std::string(damage.message()), HasSubstr(v1::StateTable_Name(table)));
  }
  // What cannot be read is not always what cannot be parsed.
  EXPECT_TRUE(absl::IsDataLoss(restore(v1::STATE_TABLE_JOBS, "job", "")));
  EXPECT_TRUE(absl::IsDataLoss(restore(v1::STATE_TABLE_NODES, "node", "")));
  EXPECT_TRUE(absl::IsDataLoss(restore(v1::STATE_TABLE_WORLDS, "job/x", "")));
  EXPECT_TRUE(absl::IsDataLoss(restore(v1::STATE_TABLE_MEMBERS, "job/x", "")));
  EXPECT_TRUE(absl::IsDataLoss(restore(v1::STATE_TABLE_MEMBERS, "job/" + number, "")));
  EXPECT_TRUE(absl::IsDataLoss(restore(v1::STATE_TABLE_MEMBERS, "job/" + number + "/1x", "")));
  EXPECT_TRUE(absl::IsDataLoss(restore(v1::STATE_TABLE_VALUES, "job", "")));
  EXPECT_TRUE(absl::IsDataLoss(restore(v1::STATE_TABLE_REQUESTS, "job/x/set/1", "")));
  EXPECT_TRUE(restore(v1::STATE_TABLE_META, "term", "1").ok());
}

TEST(ReplayTest, TheSameEventsGiveTheSameActions) {
  Harness h;
  FakeWorker& a = h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  v1::JobSpec spec = MakeSpec(2, 2);
  spec.set_max_restarts(2);
  const std::string id = h.Submit(spec);
  h.Say(a, a.Exit(id, 1, 1));
  h.StartCoordinator();
  h.Connect(a);
  b.deaf = true;
  h.Connect(b);
  v1::StateEvent finished;
  *finished.mutable_report_finished()->mutable_fence() = h.fence(id);
  h.Call(std::move(finished));
  h.Advance(seconds(12));
  h.Cancel(id);
  ASSERT_GT(h.outcome.size(), 20u);
  StateMachine replayed;
  std::vector<std::string> outcome;
  for (const v1::StateEvent& event : h.history) {
    for (const Action& action : replayed.Step(event).list) outcome.push_back(DebugText(action));
  }
  EXPECT_EQ(outcome, h.outcome);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
