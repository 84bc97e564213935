// Generations that go on in process, fence times, checkpoint commits, growing.
#include "coordinator/state_machine/continuation.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "coordinator/state_machine/growth.h"
#include "coordinator/state_machine/hangs.h"
#include "core/proto_time.h"
#include "tests/coordinator/state_machine/continuation_fixture.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(ContinuationTest, SurvivorsGoOnInProcessWithoutTheLostNode) {
  Add("node1");
  FakeWorker& lost = Add("node2");
  FakeWorker& last = Add("node3");
  const std::string id = Run(Elastic(2, 3));
  Lose(lost);
  h.Advance(seconds(6));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  ASSERT_EQ(h.job(id).world_size(), 2u);
  // Rank 2 is rank 1 now, in the process that was started as rank 2 of generation 1.
  const v1::RankAssignment& moved = h.job(id).ranks(1).assignment();
  EXPECT_EQ(moved.process_generation(), 1u);
  EXPECT_EQ(moved.process_rank(), 2);
  EXPECT_EQ(moved.node_id(), last.node_id());
  EXPECT_EQ(Count(last, &v1::OpenSessionResponse::has_stop), 0);
  EXPECT_EQ(h.job(id).restarts_charged(), 1u);
}

TEST(ContinuationValuesTest, RanksGoOnIfAllThatRunCanAndNoneHasFinished) {
  Job job;
  job.view.set_state(v1::JOB_STATE_RUNNING);
  job.view.set_generation(2);
  EXPECT_FALSE(TakesGenerations(job)) << "nothing runs";
  for (int rank = 0; rank < 3; ++rank) {
    v1::RankStatus& status = *job.view.add_ranks();
    status.mutable_assignment()->set_rank(rank);
    status.set_state(v1::RANK_STATE_RUNNING);
    status.set_in_process(true);
  }
  EXPECT_TRUE(TakesGenerations(job));
  EXPECT_TRUE(StandsStillWhenAsked(job));
  job.view.mutable_ranks(2)->set_in_process(false);
  EXPECT_FALSE(TakesGenerations(job)) << "rank 2 cannot";
  job.view.mutable_ranks(0)->mutable_assignment()->set_process_generation(1);
  EXPECT_TRUE(TakesGenerations(job)) << "rank 0 lives on, and rank 2 has not come so far";
  EXPECT_FALSE(StandsStillWhenAsked(job)) << "rank 2 cannot be asked";
  job.view.mutable_ranks(2)->set_state(v1::RANK_STATE_ASSIGNED);
  EXPECT_TRUE(TakesGenerations(job)) << "rank 2 is being started";
  EXPECT_FALSE(StandsStillWhenAsked(job));
  job.view.mutable_ranks(2)->set_state(v1::RANK_STATE_RUNNING);
  job.view.mutable_ranks(2)->mutable_assignment()->set_process_generation(1);
  EXPECT_FALSE(TakesGenerations(job)) << "rank 2 lives on, and cannot any more";
  job.view.mutable_ranks(2)->mutable_assignment()->clear_process_generation();
  job.view.mutable_ranks(0)->mutable_assignment()->clear_process_generation();
  job.view.mutable_ranks(2)->set_state(v1::RANK_STATE_EXITED);
  EXPECT_FALSE(TakesGenerations(job)) << "rank 2 has finished";
  job.view.mutable_ranks(2)->mutable_exit()->set_exit_code(1);
  EXPECT_TRUE(TakesGenerations(job));
  job.view.mutable_spec()->set_recovery(v1::RECOVERY_RESPAWN);
  EXPECT_FALSE(TakesGenerations(job));
}

TEST(ContinuationValuesTest, OnlyRanksThatRunAreCounted) {
  Job job;
  job.view.set_generation(2);
  for (int rank = 0; rank < 3; ++rank) {
    v1::RankStatus& status = *job.view.add_ranks();
    status.mutable_assignment()->set_rank(rank);
    status.set_state(rank == 0 ? v1::RANK_STATE_EXITED : v1::RANK_STATE_RUNNING);
  }
  job.quiesced = {0, 2};
  EXPECT_EQ(CountStandingStill(job).still, 1);
  EXPECT_EQ(CountStandingStill(job).running, 2);
  EXPECT_FALSE(HasSurvivors(job));
  job.view.mutable_ranks(1)->mutable_assignment()->set_process_generation(1);
  EXPECT_TRUE(HasSurvivors(job));
}

TEST_F(ContinuationTest, ARankThatDiesIsStartedAnewBesideTheOthers) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2, 2));
  h.Say(second, second.Exit(id, 3, 0, SIGKILL));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).ranks(3).assignment().process_generation(), 2u);
  EXPECT_EQ(h.job(id).ranks(2).assignment().process_generation(), 1u);
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_stop), 0);
  EXPECT_EQ(Count(second, &v1::OpenSessionResponse::has_stop), 0);
  EXPECT_EQ(h.node(second).slots_used(), 2u);
}

TEST_F(ContinuationTest, RanksGoOnInProcessOnAHostThatIsNotWell) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  first.problems = {"less than 32.0 MiB free in /var/lib/meshrun-worker"};
  h.Say(first, {first.HealthReport()});
  ASSERT_EQ(h.node(first).state(), v1::NODE_STATE_UNHEALTHY);
  h.Say(second, second.Exit(id, 1, 0, SIGKILL));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_stop), 0);
}

TEST_F(ContinuationTest, ASpareThatCannotPrepareIsNotAskedForEver) {
  Add("node1");
  const std::string id = Run(Elastic(1, 2));
  ASSERT_EQ(h.job(id).world_size(), 1u);
  FakeWorker& spare = Add("node2");
  spare.prepare_error = "./train: not found";
  spare.bad_command = true;
  std::optional<int64_t> last;
  for (int64_t step = 10; step <= 80; step += 10) {
    // After each checkpoint the job may grow.
    EXPECT_TRUE(Commit(id, h.job(id).generation(), step, last).ok());
    last = step;
    h.Advance(seconds(30));
  }
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(Count(spare, &v1::OpenSessionResponse::has_prepare), 2);
  EXPECT_EQ(h.job(id).restarts_charged(), 0u);
}

TEST_F(ContinuationTest, ANodeThatFailedTheJobTwiceIsAvoided) {
  Add("node1");
  FakeWorker& bad = Add("node2");
  FakeWorker& good = Add("node3");
  v1::JobSpec spec = Elastic(2, 2);
  spec.set_max_restarts(5);
  const std::string id = Run(spec);
  h.Say(bad, bad.Exit(id, 1, 1));
  EXPECT_TRUE(bad.Carries(id));
  h.Say(bad, bad.Exit(id, 1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_TRUE(good.Carries(id));
  EXPECT_FALSE(bad.Carries(id)) << h.job(id).ShortDebugString();
}

TEST_F(ContinuationTest, ANodeThatIsAvoidedIsNotTakenWhileItsOtherRanksEnd) {
  Add("node1");
  FakeWorker& bad = Add("node2");
  FakeWorker& good = Add("node3");
  v1::JobSpec spec = Elastic(2, 2, 2);
  spec.set_max_restarts(5);
  const std::string id = Run(spec);
  h.Say(bad, bad.Exit(id, 3, 1));
  EXPECT_TRUE(bad.Carries(id));
  bad.stubborn = true;
  h.Say(bad, bad.Exit(id, 3, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  EXPECT_FALSE(good.Carries(id)) << "a rank computes on node2";
  bad.stubborn = false;
  const auto stop = std::find_if(bad.received.rbegin(), bad.received.rend(),
                                 [](const auto& message) { return message.has_stop(); });
  ASSERT_NE(stop, bad.received.rend());
  h.Say(bad, bad.OnMessage(v1::OpenSessionResponse(*stop)));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_TRUE(good.Carries(id));
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
}

TEST_F(ContinuationTest, OneRankThatCannotTakeAGenerationMeansARestartForAll) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  second.in_process = false;
  const std::string id = Run(Elastic(2, 2));
  h.Say(first, first.Exit(id, 0, 3));
  EXPECT_EQ(Count(second, &v1::OpenSessionResponse::has_stop), 1);
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).ranks(1).assignment().process_generation(), 2u);
}

TEST_F(ContinuationTest, APrepareThatIsRepeatedAfterARestartHasTheSameDigest) {
  Add("node1");
  FakeWorker& slow = Add("node2");
  FakeWorker& lost = Add("node3");
  const std::string id = Run(Elastic(2, 3));
  Lose(lost);
  h.Advance(milliseconds(4'900));
  slow.deaf = true;
  h.Advance(milliseconds(200));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS) << h.job(id).reason();
  const auto digest = [&] {
    std::string last;
    for (const auto& message : slow.received) {
      if (message.has_prepare()) last = message.prepare().world_digest();
    }
    return last;
  };
  const std::string before = digest();
  ASSERT_FALSE(before.empty());
  h.StartCoordinator();
  slow.received.clear();
  h.Connect(slow);
  EXPECT_EQ(digest(), before);
}

TEST_F(ContinuationTest, AnotherHostTakesTheirPlaceOnlyWhenRanksThatAreToldToEndHave) {
  FakeWorker& stays = Add("node1");
  FakeWorker& leaving = Add("node2");
  FakeWorker& failing = Add("node3");
  FakeWorker& spare = Add("node4");
  const std::string id = Run(Elastic(3, 3));
  leaving.stubborn = true;
  leaving.draining = true;
  h.Say(leaving, {leaving.Heartbeat()});
  h.Say(failing, failing.Exit(id, 2, 1));
  EXPECT_TRUE(spare.Running(id).empty()) << h.job(id).ShortDebugString();
  EXPECT_EQ(Count(stays, &v1::OpenSessionResponse::has_stop), 0);
  h.Say(leaving, leaving.ExitAll(id, 1));
  h.Advance(seconds(1));
  EXPECT_EQ(spare.Running(id).size(), 1u) << h.job(id).ShortDebugString();
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
}

TEST_F(ContinuationTest, ASpareTakesTheLostNodesPlaceOnlyAfterItsFenceTime) {
  Add("node1");
  FakeWorker& lost = Add("node2");
  FakeWorker& spare = Add("node3");
  const std::string id = Run(Elastic(2, 2));
  Lose(lost);
  h.Advance(seconds(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  EXPECT_THAT(h.job(id).reason(), HasSubstr("may still compute on node2"));
  EXPECT_FALSE(spare.Carries(id));
  // 20 s, 1 % and 100 ms after its last message.
  h.Advance(seconds(10));
  EXPECT_FALSE(spare.Carries(id));
  h.Advance(seconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_TRUE(spare.Carries(id));
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
}

TEST_F(ContinuationTest, AnEventSaysThatAJobGrowsAfterTheFenceTime) {
  Add("node1");
  FakeWorker& lost = Add("node2");
  FakeWorker& spare = Add("node3");
  v1::JobSpec spec = Elastic(1, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  ASSERT_EQ(h.job(id).world_size(), 2u);
  EXPECT_FALSE(h.HasEvent("GrowthWaits")) << "it has all the nodes that it may have";
  Lose(lost);
  h.Advance(seconds(6));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  ASSERT_EQ(h.job(id).world_size(), 1u);
  h.Advance(seconds(2));
  EXPECT_THAT(h.Said("GrowthWaits"),
              ElementsAre(HasSubstr("could grow from 1 to 2 ranks, but ranks of the job may still "
                                    "compute on node2, for ")));
  EXPECT_FALSE(spare.Carries(id));
  // Jobs that come and go let it look again.
  const std::string other = h.SubmitAs("bob", MakeSpec(1, 1));
  ASSERT_EQ(h.state(other), v1::JOB_STATE_RUNNING);
  h.Cancel(other);
  h.Advance(seconds(2));
  EXPECT_EQ(h.Said("GrowthWaits").size(), 1u);
  h.Advance(seconds(18));
  EXPECT_TRUE(spare.Carries(id));
  EXPECT_EQ(h.job(id).world_size(), 2u);
  EXPECT_EQ(h.Said("GrowthWaits").size(), 1u);
}

// It is a member already, of a generation that never started.
TEST_F(ContinuationTest, ANodeOnWhichNoRankHasRunTakesNobodysPlaceBeforeTheFenceTime) {
  for (const bool restarts : {false, true}) {
    FakeWorker& stays = Add(fmt::format("node1-{}", restarts));
    FakeWorker& lost = Add(fmt::format("node2-{}", restarts));
    FakeWorker& leaves = Add(fmt::format("node3-{}", restarts));
    const std::string id = Run(Elastic(2, 3));
    ASSERT_EQ(h.job(id).world_size(), 3u);
    FakeWorker& newcomer = Add(fmt::format("node4-{}", restarts));
    newcomer.deaf = true;
    h.Say(leaves, {leaves.Goodbye()});
    ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS) << h.job(id).reason();
    ASSERT_EQ(h.job(id).world_size(), 3u);
    newcomer.deaf = false;
    Lose(lost);
    if (restarts) {
      newcomer.deaf = true;
      h.StartCoordinator();
      h.Connect(stays);
      h.Connect(newcomer);
      newcomer.deaf = false;
    }
    h.Advance(seconds(10));
    EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING) << h.job(id).reason();
    EXPECT_THAT(h.job(id).reason(), HasSubstr("may still compute on node2"));
    EXPECT_TRUE(newcomer.Running(id).empty());
    h.Advance(seconds(15));
    EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
    EXPECT_EQ(newcomer.Running(id).size(), 1u);
    EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
    for (FakeWorker* const worker : {&stays, &newcomer}) h.Say(*worker, {worker->Goodbye()});
  }
}

TEST_F(ContinuationTest, AJobWithFencedWritesDoesNotWait) {
  Add("node1");
  FakeWorker& lost = Add("node2");
  FakeWorker& spare = Add("node3");
  const std::string id = Run(Elastic(2, 2));
  EXPECT_TRUE(Commit(id, 1, 100, std::nullopt).ok());
  Lose(lost);
  h.Advance(seconds(6));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_TRUE(spare.Carries(id));
  // The lost node's ranks may run on, and commit nothing.
  EXPECT_THAT(Commit(id, 1, 200, 100).ToString(), HasSubstr("FAILED_PRECONDITION"));
  EXPECT_TRUE(Commit(id, 2, 200, 100).ok());
}

TEST_F(ContinuationTest, WithoutSurvivorsTheJobWaitsForTheFenceInTheQueue) {
  FakeWorker& lost = Add("node1");
  FakeWorker& spare = Add("node2");
  spare.deaf = false;
  v1::JobSpec spec = Elastic(1, 1, 8);
  const std::string id = Run(spec);
  ASSERT_TRUE(lost.Carries(id));
  Lose(lost);
  h.Advance(seconds(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  EXPECT_THAT(h.job(id).reason(), HasSubstr("no other node takes their place before"));
  h.Advance(seconds(12));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(spare.Carries(id));
}

TEST_F(ContinuationTest, WhatALostNodeHeldIsFreeOnlyWhenItHasSaidSo) {
  FakeWorker& lost = Add("node1");
  const std::string id = Run(Elastic(1, 1, 8));
  h.Disconnect(lost);
  h.Advance(seconds(40));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  EXPECT_EQ(h.node(lost).slots_used(), 8u);
  lost.deaf = true;  // Forget is on its way.
  h.Connect(lost);
  EXPECT_EQ(h.node(lost).slots_used(), 8u);
  lost.deaf = false;
  h.Disconnect(lost);
  h.Connect(lost);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.node(lost).slots_used(), 8u);
}

TEST_F(ContinuationTest, ASecondDeathDuringTheChangeLeadsToOneMoreGeneration) {
  Add("node1");
  FakeWorker& second = Add("node2");
  FakeWorker& third = Add("node3");
  const std::string id = Run(Elastic(1, 3));
  second.deaf = true;
  h.Say(third, third.Exit(id, 2, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  h.Disconnect(second);
  h.Advance(seconds(6));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 3u);
  EXPECT_EQ(h.job(id).world_size(), 2u);
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
}

TEST_F(ContinuationTest, ASecondDeathBeforeANewProcessHasComeLeavesTheOthersTheirMemory) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2, 2));
  second.in_process = false;  // what starts here now has not come so far
  second.joins = false;
  h.Say(second, second.Exit(id, 3, 0, SIGKILL));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  ASSERT_EQ(h.job(id).generation(), 2u);
  h.Say(second, second.Exit(id, 2, 0, SIGKILL));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 3u);
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
  EXPECT_EQ(h.job(id).ranks(1).assignment().process_generation(), 1u);
  EXPECT_EQ(h.job(id).ranks(2).assignment().process_generation(), 3u);
  EXPECT_EQ(h.job(id).ranks(3).assignment().process_generation(), 3u) << "it is replaced";
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_stop), 0);
  EXPECT_EQ(h.job(id).restarts_charged(), 1u) << "both died of the same";
  // A new process that fails is charged each time, and so is one that had joined.
  h.Say(second, second.Exit(id, 3, 1));
  EXPECT_EQ(h.job(id).restarts_charged(), 2u);
  EXPECT_EQ(h.job(id).generation(), 4u);
  h.Say(first, first.Exit(id, 0, 0, SIGKILL));
  EXPECT_EQ(h.job(id).restarts_charged(), 3u);
  EXPECT_EQ(h.job(id).generation(), 5u);
  EXPECT_EQ(h.job(id).ranks(1).assignment().process_generation(), 1u);
}

TEST_F(ContinuationTest, ANewProcessThatFailsBeforeItHasJoinedIsChargedEachTime) {
  Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  second.in_process = false;
  second.new_ones_join = false;
  for (uint32_t failures = 1; failures <= 3; ++failures) {
    h.Say(second, second.Exit(id, 1, 1));
    EXPECT_EQ(h.job(id).restarts_charged(), failures);
    EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
  }
  h.Say(second, second.Exit(id, 1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED) << "its restarts are used up";
}

TEST_F(ContinuationTest, ARankThatDoesNotJoinIsHungAndAllAreStartedAnew) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  first.joins = false;
  h.Say(second, second.Exit(id, 1, 1));
  EXPECT_EQ(h.job(id).generation(), 2u);
  h.Advance(seconds(31));
  EXPECT_EQ(h.job(id).generation(), 3u);
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 3u);
  EXPECT_TRUE(h.HasEvent("RankHung"));
}

TEST_F(ContinuationTest, ARestartedCoordinatorFinishesTheChange) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  first.deaf = true;
  h.Say(second, second.Exit(id, 1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  h.StartCoordinator();
  first.deaf = false;
  h.Connect(first);
  h.Connect(second);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_forget), 0);
  EXPECT_EQ(h.node(first).slots_used(), 1u);
}

TEST_F(ContinuationTest, GrowsAtOnceWhenANodeComes) {
  Add("node1");
  v1::JobSpec spec = Elastic(1, 4);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  FakeWorker& second = Add("node2");
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).world_size(), 2u);
  EXPECT_EQ(h.job(id).restarts(), 0u);
  EXPECT_TRUE(second.Carries(id));
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
}

TEST_F(ContinuationTest, RanksThatCannotGoOnInProcessAreStartedAnewToGrowAtOnce) {
  FakeWorker& first = h.AddWorker("node1");
  v1::JobSpec spec = Elastic(1, 3);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  // Within the first seconds they may still say that they go on.
  h.AddWorker("node2");
  EXPECT_EQ(h.job(id).generation(), 1u);
  h.Advance(Growth::kTimeToSay);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).world_size(), 2u);
  EXPECT_EQ(h.job(id).restarts(), 0u);
  EXPECT_EQ(h.job(id).restarts_charged(), 0u);
  h.Advance(Growth::kTimeToSay);
  h.AddWorker("node3");
  EXPECT_EQ(h.job(id).world_size(), 3u);
  EXPECT_TRUE(h.HasEvent("JobGrows"));
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_stop), 2);
}

TEST_F(ContinuationTest, APausedJobGrowsOnceItsRanksGoOn) {
  for (const bool in_process : {true, false}) {
    const std::string suffix = in_process ? "a" : "b";
    FakeWorker& first = Add("node1" + suffix);
    first.in_process = in_process;
    v1::JobSpec spec = Elastic(1, 2, 8);
    spec.set_growth(v1::GROWTH_AT_ONCE);
    const std::string id = Run(spec);
    Signal(id, SIGSTOP);
    h.Advance(2 * Growth::kTimeToSay);
    FakeWorker& second = Add("node2" + suffix);
    h.Advance(10 * Growth::kTimeToSay);
    EXPECT_EQ(h.job(id).generation(), 1u);
    EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_stop), 0);
    Signal(id, SIGCONT);
    h.Advance(Growth::kTimeToSay);
    h.Advance(seconds(1));
    EXPECT_EQ(h.job(id).world_size(), 16u) << "in process: " << in_process;
    h.Cancel(id);
    for (FakeWorker* worker : {&first, &second}) h.Say(*worker, {worker->Goodbye()});
  }
}

// Where a scheduler takes several hosts back at once.
TEST_F(ContinuationTest, NodesLeaveAJobThatGoesOnWithoutAllOfThem) {
  Add("node1");
  FakeWorker& second = Add("node2");
  FakeWorker& third = Add("node3");
  second.stubborn = third.stubborn = true;
  const std::string id = Run(Elastic(2, 3));
  ASSERT_EQ(h.job(id).world_size(), 3u);
  EXPECT_TRUE(Leave("node2").ok());
  const absl::Status refused = Leave("node3");
  EXPECT_EQ(refused.message(),
            fmt::format("node3 cannot leave: without it job {} cannot go on: it needs at least 2 "
                        "nodes",
                        id));
  EXPECT_FALSE(h.node(third).drained());
  EXPECT_TRUE(h.node(second).drained());
}

TEST_F(ContinuationTest, ANodeStaysWhereTheMeshNeedsIt) {
  Add("node1");
  Add("node2");
  v1::JobSpec spec = Elastic(1, 2);
  v1::MeshAxis& axis = *spec.add_mesh();
  axis.set_name("spatial");
  axis.set_size(2);
  const std::string id = Run(spec);
  EXPECT_EQ(Leave("node2").message(),
            fmt::format("node2 cannot leave: without it job {} cannot go on: it needs at least 1 "
                        "node, in the mesh spatial=2",
                        id));
  Add("node3");
  EXPECT_TRUE(Leave("node2").ok()) << "another one takes its place";
  h.Advance(seconds(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
}

TEST_F(ContinuationTest, AJobOfWhichARankHasFinishedIsNotStartedAnewToGrow) {
  FakeWorker& first = h.AddWorker("node1", 2);
  v1::JobSpec spec = Elastic(1, 3, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  h.Advance(Growth::kTimeToSay);
  h.Say(first, {first.Exit(id, 0, 0)});
  h.AddWorker("node2", 2);
  h.Advance(Growth::kTimeToSay);
  EXPECT_EQ(h.job(id).generation(), 1u);
}

TEST_F(ContinuationTest, GrowsAtTheNextCheckpointByDefault) {
  Add("node1");
  const std::string id = Run(Elastic(1, 4));
  Add("node2");
  EXPECT_EQ(h.job(id).world_size(), 1u);
  EXPECT_TRUE(Commit(id, 1, 10, std::nullopt).ok());
  h.Advance(seconds(1));
  EXPECT_EQ(h.job(id).world_size(), 2u);
}

// To stand still costs steps: it must be for a larger generation.
TEST_F(ContinuationTest, AFreeNodeThatCannotTakeTheJobDoesNotMakeItStandStill) {
  for (const v1::Growth growth : {v1::GROWTH_AT_ONCE, v1::GROWTH_AT_CHECKPOINT}) {
    FakeWorker& first = Add(fmt::format("node1-{}", static_cast<int>(growth)));
    first.quiesces = false;
    v1::JobSpec spec = Elastic(1, 2, 8);
    spec.set_growth(growth);
    const std::string id = Run(spec);
    ASSERT_TRUE(first.Carries(id));
    // It has a free slot, and the job needs 8 on a node.
    FakeWorker& small = h.AddWorker(fmt::format("node2-{}", static_cast<int>(growth)), 1);
    EXPECT_TRUE(Commit(id, 1, 10, std::nullopt).ok());
    h.Advance(seconds(1));
    EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
    EXPECT_EQ(h.job(id).generation(), 1u);
    EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_quiesce), 0);
    for (FakeWorker* worker : {&first, &small}) h.Say(*worker, {worker->Goodbye()});
    h.Cancel(id);
  }
}

TEST_F(ContinuationTest, AJobThatCouldNeverRunDoesNotKeepOthersFromGrowing) {
  Add("node1");
  v1::JobSpec spec = Elastic(1, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  const std::string too_large = h.Submit(MakeSpec(1, 9));
  ASSERT_EQ(h.state(too_large), v1::JOB_STATE_QUEUED);
  Add("node2");
  EXPECT_EQ(h.job(id).world_size(), 2u) << h.job(id).reason();
}

TEST_F(ContinuationTest, AJobThatWaitsForNodesGetsThemBeforeOthersGrow) {
  Add("node1");
  v1::JobSpec spec = Elastic(1, 2, 8);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  // It could run on three hosts, and two are there.
  const std::string other = h.Submit(MakeSpec(1, 9));
  v1::JobSpec head = MakeSpec(2, 8);
  const std::string waits = h.Submit(head);
  const std::string holder = h.Submit(MakeSpec(1, 8));
  ASSERT_EQ(h.state(waits), v1::JOB_STATE_QUEUED);
  FakeWorker& second = Add("node2");
  ASSERT_EQ(h.state(waits), v1::JOB_STATE_QUEUED) << h.job(waits).reason();
  EXPECT_EQ(h.job(id).world_size(), 8u) << "node2 is the waiting job's";
  EXPECT_EQ(h.node(second).slots_used(), 0u);
  // Whoever waited is gone: nothing else changes, and the job grows.
  h.Cancel(waits);
  h.Cancel(holder);
  EXPECT_EQ(h.job(id).world_size(), 16u) << h.job(id).reason();
  h.Cancel(other);
}

TEST_F(ContinuationTest, RanksThatDoNotStandStillAreStoppedAtNoCharge) {
  FakeWorker& first = Add("node1");
  first.quiesces = false;
  v1::JobSpec spec = Elastic(1, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  Add("node2");
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  h.Advance(seconds(61));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).world_size(), 2u);
  EXPECT_EQ(h.job(id).restarts_charged(), 0u);
}

TEST_F(ContinuationTest, RanksThatComeToTheirEndWhenTheyAreAskedSucceed) {
  FakeWorker& first = Add("node1");
  first.quiesces = false;
  v1::JobSpec spec = Elastic(1, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  Add("node2");
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  h.Say(first, first.ExitAll(id, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED) << h.job(id).reason();
}

// Nobody can ask those that stand still to go on in their generation.
TEST_F(ContinuationTest, RanksThatStandStillBesideOneThatFinishedAreStartedAnew) {
  for (const bool restarts : {false, true}) {
    for (const bool finishes_first : {false, true}) {
      FakeWorker& first = Add(fmt::format("node1-{}{}", restarts, finishes_first));
      FakeWorker& second = Add(fmt::format("node2-{}{}", restarts, finishes_first));
      first.quiesces = second.quiesces = false;
      v1::JobSpec spec = Elastic(2, 3);
      spec.set_growth(v1::GROWTH_AT_ONCE);
      const std::string id = Run(spec);
      FakeWorker& third = Add(fmt::format("node3-{}{}", restarts, finishes_first));
      ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
      if (finishes_first) h.Say(first, first.Exit(id, 0, 0));
      h.Say(second, second.StandStill(id));
      if (restarts) {
        second.quiesces = true;
        h.StartCoordinator();
        for (FakeWorker* worker : {&first, &second, &third}) h.Connect(*worker);
      }
      if (!finishes_first) h.Say(first, first.Exit(id, 0, 0));
      h.Advance(seconds(7));
      EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
      EXPECT_EQ(h.job(id).generation(), 2u);
      EXPECT_EQ(h.job(id).world_size(), 3u);
      EXPECT_EQ(h.job(id).restarts_charged(), 0u);
      h.Cancel(id);
      for (FakeWorker* worker : {&first, &second, &third}) Lose(*worker);
    }
  }
}

TEST_F(ContinuationTest, AHostThatIsTwoGenerationsBehindKeepsItsProcesses) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  FakeWorker& third = Add("node3");
  const std::string id = Run(Elastic(1, 3));
  first.deaf = true;
  h.Say(third, third.Exit(id, 2, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  // Before it has heard of generation 2, another host dies.
  h.Disconnect(first);
  h.Say(second, second.Exit(id, 1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  first.deaf = false;
  h.Connect(first);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).ranks(0).assignment().process_generation(), 1u);
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_forget), 0);
}

TEST_F(ContinuationTest, CancelDuringTheChangeStopsTheProcesses) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  first.deaf = true;
  h.Say(second, second.Exit(id, 1, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  h.Cancel(id);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  first.deaf = false;
  h.Say(first, first.OnMessage(first.received.back()));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(first.Running(id).empty());
  EXPECT_EQ(h.node(first).slots_used(), 0u);
  EXPECT_EQ(h.node(second).slots_used(), 0u);
}

TEST_F(ContinuationTest, AJobLeavesAWorkerThatStopsWithACheckpoint) {
  FakeWorker& stops = Add("node1");
  FakeWorker& stays = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  FakeWorker& spare = Add("node3");
  stops.draining = true;
  h.Say(stops, {stops.Heartbeat()});
  // Its ranks are told to save and to stand still before any of them is told to end.
  ASSERT_EQ(Count(stays, &v1::OpenSessionResponse::has_quiesce), 1);
  for (const auto& message : stops.received) {
    EXPECT_TRUE(!message.has_quiesce() || message.quiesce().save());
  }
  EXPECT_EQ(Count(stops, &v1::OpenSessionResponse::has_quiesce), 1);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).restarts_charged(), 0u);
  EXPECT_TRUE(stops.Running(id).empty());
  EXPECT_FALSE(stays.Running(id).empty());
  EXPECT_FALSE(spare.Running(id).empty());
  // Said with each heartbeat, heard once.
  h.Say(stops, {stops.Heartbeat()});
  EXPECT_EQ(Count(stays, &v1::OpenSessionResponse::has_quiesce), 1);
}

TEST_F(ContinuationTest, AJobThatCannotGoOnInProcessIsLeftToTheWorkerThatStops) {
  FakeWorker& stops = Add("node1");
  stops.in_process = false;
  const std::string id = Run(Elastic(1, 1));
  stops.draining = true;
  h.Say(stops, {stops.Heartbeat()});
  EXPECT_EQ(Count(stops, &v1::OpenSessionResponse::has_quiesce), 0);
  EXPECT_EQ(Count(stops, &v1::OpenSessionResponse::has_stop), 0);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
}

// They stand still, and none of them can go on where it is.
TEST_F(ContinuationTest, AJobThatMovesAsAWholeHasNotFailed) {
  FakeWorker& node = Add("node1");
  const std::string id = Run(Elastic(1, 1));
  h.Say(node, node.Exit(id, 0, 3));
  h.Advance(seconds(10));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_RANK_EXITED);
  const uint64_t generation = h.job(id).generation();
  Add("node2");
  v1::StateEvent event;
  event.mutable_drain_node()->set_node("node1");
  event.mutable_drain_node()->mutable_deadline();
  ASSERT_TRUE(h.answer(h.Call(std::move(event))).status.ok());
  h.Say(node, node.StandStill(id));
  h.Advance(seconds(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), generation + 1);
  EXPECT_EQ(h.job(id).ranks(0).node_name(), "node2");
  EXPECT_EQ(h.job(id).restarts(), 1u);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_RANK_EXITED) << "as it was";
  EXPECT_TRUE(h.HasEvent("JobRequeued"));
  EXPECT_EQ(h.machine().Measure().tallies.generations().at("planned"), 1u);
}

TEST_F(ContinuationTest, RanksThatDoNotDieKeepTheirSlotsAndDrainTheNode) {
  FakeWorker& stuck = Add("node1");
  const std::string id = Run(Elastic(1, 1, 4));
  stuck.stubborn = true;
  h.Cancel(id);
  h.Advance(seconds(34));
  // The worker hears Forget, and its ranks do not end.
  stuck.forgets = false;
  h.Advance(seconds(6));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(h.node(stuck).slots_used(), 4u);
  EXPECT_EQ(h.node(stuck).state(), v1::NODE_STATE_DRAINING);
  EXPECT_THAT(h.node(stuck).drain_reason(), HasSubstr("do not end"));
  stuck.forgets = true;
  h.Say(stuck, stuck.OnMessage(stuck.received.back()));
  EXPECT_EQ(h.node(stuck).slots_used(), 0u);
  EXPECT_EQ(h.node(stuck).state(), v1::NODE_STATE_HEALTHY);
}

TEST_F(ContinuationTest, ThreeGenerationsWithoutProgressEndTheJob) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_max_restarts(10);
  const std::string id = Run(spec);
  for (int i = 0; i < 4 && h.state(id) == v1::JOB_STATE_RUNNING; ++i) {
    v1::OpenSessionRequest report;
    report.mutable_fence()->set_term(h.term());
    report.mutable_fence()->set_incarnation(1);
    report.mutable_fence()->set_job_id(id);
    report.mutable_fence()->set_generation(h.job(id).generation());
    (*report.mutable_progress_report()->mutable_progress())[0].set_step(5);
    h.Say(worker, {report});
    h.Say(worker, worker.Exit(id, 0, 1));
    // Restarts follow each other more slowly.
    if (h.state(id) == v1::JOB_STATE_WAITING) h.Advance(seconds(1));
  }
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_NO_PROGRESS);
  EXPECT_EQ(h.job(id).generation(), 4u);
}

TEST_F(ContinuationTest, ACommittedCheckpointRefillsTheBudget) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_max_restarts(1);
  const std::string id = Run(spec);
  h.Say(worker, worker.Exit(id, 0, 1));
  EXPECT_EQ(h.job(id).restarts_charged(), 1u);
  EXPECT_TRUE(Commit(id, 2, 50, std::nullopt).ok());
  h.StartCoordinator();
  h.Connect(worker);
  h.Say(worker, worker.Exit(id, 0, 1));
  h.Advance(seconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).restarts(), 2u);
  EXPECT_EQ(h.job(id).restarts_charged(), 1u);
  h.StartCoordinator();
  h.Connect(worker);
  h.Say(worker, worker.Exit(id, 0, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
}

// Else a job that fails at the same step for ever would never end.
TEST_F(ContinuationTest, ALongRunThatGoesNoFurtherDoesNotRefillTheBudget) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_max_restarts(1);
  const std::string id = Run(spec);
  const auto fail_at_step_ten = [&] {
    v1::OpenSessionRequest report = worker.Message({id, h.job(id).generation()});
    (*report.mutable_progress_report()->mutable_progress())[0].set_step(10);
    h.Say(worker, {report});
    ASSERT_EQ(h.job(id).progress().step(), 10);
    h.Say(worker, worker.Exit(id, 0, 1));
  };
  fail_at_step_ten();
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  ASSERT_EQ(h.job(id).restarts_charged(), 1u);
  h.Advance(std::chrono::minutes(11));
  ASSERT_EQ(h.job(id).generation(), 2u) << "it ran all that time";
  fail_at_step_ten();
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED) << h.job(id).reason();
  EXPECT_EQ(h.job(id).restarts(), 1u);
}

TEST_F(ContinuationTest, StepsThatStopAreAHangAfterTenTimesTheLongestPause) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Elastic(2, 2));
  const auto report = [&](FakeWorker& worker, int rank, int64_t step) {
    v1::OpenSessionRequest message;
    message.mutable_fence()->set_term(h.term());
    message.mutable_fence()->set_incarnation(1);
    message.mutable_fence()->set_job_id(id);
    message.mutable_fence()->set_generation(1);
    if (step >= 0) {
      (*message.mutable_progress_report()->mutable_progress())[rank].set_step(step);
    } else {
      message.mutable_wait_report()->set_rank(rank);
    }
    h.Say(worker, {message});
  };
  for (int step = 0; step < 4; ++step) {
    report(first, 0, step);
    h.Advance(seconds(20));
  }
  report(first, 0, -1);
  h.Advance(seconds(175));
  EXPECT_EQ(Count(second, &v1::OpenSessionResponse::has_dump), 0);
  h.Advance(seconds(10));
  EXPECT_EQ(Count(second, &v1::OpenSessionResponse::has_dump), 1);
  EXPECT_EQ(h.job(id).generation(), 1u) << "nothing is killed before the dumps";
  h.Advance(seconds(10));
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_HUNG);
  EXPECT_EQ(h.job(id).failure().rank(), 1);
  EXPECT_THAT(h.job(id).failure().message(),
              HasSubstr("rank 0 waits in an operation for the others, rank 1 on node2 does not"));
}

TEST_F(ContinuationTest, AHangSaysWhereTheRanksStandBeforeAnythingIsKilled) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  v1::JobSpec spec = Elastic(2, 2);
  *spec.mutable_hang_timeout() = ToProtoDuration(seconds(5));
  const std::string id = Run(spec);
  const auto report = [&](FakeWorker& worker, int rank, int64_t step) {
    v1::OpenSessionRequest message = worker.Message({id, 1});
    (*message.mutable_progress_report()->mutable_progress())[rank].set_step(step);
    h.Say(worker, {message});
  };
  const auto upload = [&](int rank, const std::string& place, bool right_host = true) {
    v1::StateEvent event;
    v1::UploadStackRequest& request = *event.mutable_upload_stack();
    request.mutable_fence()->set_job_id(id);
    request.mutable_fence()->set_generation(1);
    request.mutable_fence()->set_node_id((rank == 0) == right_host ? first.node_id()
                                                                   : second.node_id());
    request.set_request(Hangs::kRequest);
    request.mutable_stack()->set_rank(rank);
    request.mutable_stack()->set_place(place);
    return h.answer(h.Call(std::move(event))).status.code();
  };
  report(first, 0, 1);
  EXPECT_EQ(upload(0, "early"), absl::StatusCode::kNotFound);
  h.Advance(seconds(5));
  ASSERT_EQ(Count(second, &v1::OpenSessionResponse::has_dump), 1);
  EXPECT_THAT(h.job(id).hang(), HasSubstr("no step after step 1 for 5s"));
  EXPECT_EQ(upload(0, "wrong", /*right_host=*/false), absl::StatusCode::kNotFound);
  EXPECT_EQ(upload(0, "wait (train.py:9)"), absl::StatusCode::kOk);
  EXPECT_EQ(upload(0, "twice"), absl::StatusCode::kNotFound);
  EXPECT_FALSE(h.HasEvent("HangStacks"));
  EXPECT_EQ(upload(1, "step (train.py:12)"), absl::StatusCode::kOk);
  EXPECT_TRUE(h.HasEvent("HangStacks")) << "at once, when all are known";
  EXPECT_THAT(h.job(id).hang(),
              HasSubstr("rank 0 is in wait (train.py:9); rank 1 is in step (train.py:12)"));
  EXPECT_EQ(h.job(id).generation(), 1u);
  h.Advance(seconds(10));
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_THAT(h.job(id).failure().message(), HasSubstr("rank 1 is in step (train.py:12)"));
  EXPECT_EQ(h.job(id).hang(), "") << "the next generation takes steps";
}

TEST_F(ContinuationTest, AHangIsToldWithThePlacesThatHaveComeInTime) {
  FakeWorker& first = Add("node1");
  Add("node2");
  v1::JobSpec spec = Elastic(2, 2);
  *spec.mutable_hang_timeout() = ToProtoDuration(seconds(5));
  const std::string id = Run(spec);
  const auto report = [&](int64_t step) {
    v1::OpenSessionRequest message = first.Message({id, 1});
    (*message.mutable_progress_report()->mutable_progress())[0].set_step(step);
    h.Say(first, {message});
  };
  report(1);
  h.Advance(seconds(5));
  v1::StateEvent event;
  v1::UploadStackRequest& request = *event.mutable_upload_stack();
  request.mutable_fence()->set_job_id(id);
  request.mutable_fence()->set_generation(1);
  request.mutable_fence()->set_node_id(first.node_id());
  request.set_request(Hangs::kRequest);
  request.mutable_stack()->set_error("no gdb is installed");
  h.Call(std::move(event));
  h.Advance(milliseconds(3900));
  EXPECT_FALSE(h.HasEvent("HangStacks"));
  h.Advance(milliseconds(200));
  EXPECT_TRUE(h.HasEvent("HangStacks"));
  EXPECT_THAT(h.job(id).hang(), HasSubstr("where rank 0 stands is not known: no gdb is installed"));
  report(2);
  EXPECT_TRUE(h.HasEvent("StepsGoOn"));
  EXPECT_EQ(h.job(id).hang(), "");
  EXPECT_EQ(h.job(id).generation(), 1u);
}

TEST_F(ContinuationTest, ALastCallForNodesThatAreJoining) {
  Add("node1");
  const std::string id = h.Submit(Elastic(1, 3));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  h.Advance(seconds(1));
  Add("node2");
  h.Advance(seconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  h.Advance(seconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).world_size(), 2u);
  // Nobody is joining any more.
  const std::string next = h.Submit(Elastic(1, 3));
  EXPECT_EQ(h.state(next), v1::JOB_STATE_RUNNING);
}

TEST_F(ContinuationTest, FailuresWithoutProgressAreFollowedByPauses) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_max_restarts(10);
  const std::string id = Run(spec);
  h.Say(worker, worker.Exit(id, 0, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Say(worker, worker.Exit(id, 0, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  h.Advance(seconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
}

TEST_F(ContinuationTest, ACommitIsACompareAndSet) {
  Add("node1");
  const std::string id = Run(Elastic(1, 1));
  EXPECT_TRUE(Commit(id, 1, 10, std::nullopt).ok());
  EXPECT_TRUE(Commit(id, 1, 10, std::nullopt).ok()) << "the same again";
  EXPECT_THAT(Commit(id, 1, 20, std::nullopt).ToString(), HasSubstr("is step 10, not none"));
  EXPECT_THAT(Commit(id, 1, 20, 5).ToString(), HasSubstr("is step 10, not step 5"));
  EXPECT_TRUE(Commit(id, 1, 20, 10).ok());
  h.StartCoordinator();
  EXPECT_EQ(h.job(id).checkpoints(0).step(), 20);
  EXPECT_EQ(h.job(id).checkpoints(0).generation(), 1u);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
