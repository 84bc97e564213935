#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using std::chrono::minutes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

int CountStops(const FakeWorker& worker) {
  int n = 0;
  for (const auto& message : worker.received) n += message.has_stop();
  return n;
}

const v1::Stop& LastStop(const FakeWorker& worker) {
  for (auto it = worker.received.rbegin(); it != worker.received.rend(); ++it) {
    if (it->has_stop()) return it->stop();
  }
  static const v1::Stop kNone;
  ADD_FAILURE() << "no Stop was sent to " << worker.name();
  return kNone;
}

class GenerationTest : public ::testing::Test {
 protected:
  v1::JobSpec Restarting(uint32_t min_nodes, uint32_t max_nodes, uint32_t procs,
                         uint32_t restarts) {
    v1::JobSpec spec = MakeSpec(min_nodes, procs);
    spec.set_max_nodes(max_nodes);
    spec.set_max_restarts(restarts);
    return spec;
  }
  Harness h;
};

TEST_F(GenerationTest, RunsAJobFromSubmitToSuccess) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).ranks(0).state(), v1::RANK_STATE_RUNNING);
  EXPECT_EQ(h.job(id).ranks(0).pid(), 1000);
  EXPECT_EQ(h.node(worker).slots_used(), 1u);
  h.Say(worker, worker.ExitAll(id, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(h.node(worker).slots_used(), 0u);
}

TEST_F(GenerationTest, TheLastHostThatDoesNotSayHowItsRanksEndedEndsTheGenerationAtOnce) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 2));
  v1::OpenSessionRequest ended = worker.Heartbeat();
  ended.mutable_fence()->set_job_id(id);
  ended.mutable_fence()->set_generation(1);
  ended.mutable_generation_ended();
  h.Say(worker, {ended});
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_THAT(h.job(id).reason(), HasSubstr("not how rank 0 did"));
  EXPECT_EQ(h.node(worker).slots_used(), 0u);
}

TEST_F(GenerationTest, StartsNobodyBeforeAllHavePrepared) {
  FakeWorker& quick = h.AddWorker("node1");
  FakeWorker& slow = h.AddWorker("node2");
  slow.deaf = true;
  const std::string id = h.Submit(MakeSpec(2, 2));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  EXPECT_TRUE(quick.Running(id).empty());
  slow.deaf = false;
  const v1::OpenSessionResponse prepare = slow.received.back();
  h.Say(slow, slow.OnMessage(prepare));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(quick.Running(id), ElementsAre(0, 1));
  EXPECT_THAT(slow.Running(id), ElementsAre(2, 3));
  EXPECT_EQ(h.job(id).master_addr(), "127.0.0.1");
  EXPECT_GE(h.job(id).master_port(), 20'000u);
}

TEST_F(GenerationTest, AFailedRankStopsItsPeersAtOnce) {
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  second.stubborn = true;
  const std::string id = h.Submit(MakeSpec(2, 1));
  h.Say(first, first.Exit(id, 0, 3));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  EXPECT_EQ(LastStop(second).grace().seconds(), 5);
  EXPECT_THAT(LastStop(second).reason(), HasSubstr("rank 0 on node1 ended with exit code 3"));
}

TEST_F(GenerationTest, KeepsTheFirstFailureAndMarksTheOthersAsConsequences) {
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  second.stubborn = true;
  const std::string id = h.Submit(MakeSpec(2, 1));
  h.Say(first, first.Exit(id, 0, 0, SIGKILL));
  h.Say(second, second.Exit(id, 1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  const v1::Failure& failure = h.job(id).failure();
  EXPECT_EQ(failure.cause(), v1::FAILURE_CAUSE_RANK_SIGNALED);
  EXPECT_EQ(failure.rank(), 0);
  EXPECT_EQ(failure.node_name(), "node1");
  EXPECT_EQ(failure.message(), "rank 0 on node1 was killed by signal 9 (SIGKILL)");
  EXPECT_THAT(failure.exit().last_lines(), ElementsAre("last line of rank 0"));
  EXPECT_FALSE(h.job(id).ranks(0).exit().teardown());
  EXPECT_TRUE(h.job(id).ranks(1).exit().teardown());
}

TEST_F(GenerationTest, ARankThatEndsWellIsNoFailure) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 2));
  h.Say(worker, worker.Exit(id, 0, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Say(worker, worker.Exit(id, 1, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(GenerationTest, ALostNodeReachesItsPeersWithTheLease) {
  FakeWorker& kept = h.AddWorker("node1");
  FakeWorker& lost = h.AddWorker("node2");
  const std::string id = h.Submit(MakeSpec(2, 1));
  lost.deaf = true;
  h.Advance(milliseconds(4900));
  EXPECT_EQ(CountStops(kept), 0);
  h.Advance(milliseconds(100));
  EXPECT_EQ(CountStops(kept), 1);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_NODE_LOST);
  EXPECT_EQ(h.job(id).ranks(1).state(), v1::RANK_STATE_LOST);
}

TEST_F(GenerationTest, AWorkerThatStopsItsRanksIsTheCauseAndNotTheRank) {
  FakeWorker& worker = h.AddWorker("node1");
  h.AddWorker("node2");
  const std::string id = h.Submit(MakeSpec(2, 1));
  auto requests = worker.Exit(id, 0, 0, SIGTERM);
  requests.front().mutable_rank_exit()->set_teardown(true);
  requests.front().mutable_rank_exit()->set_error_message("the supervisor was sent SIGTERM\nor so");
  h.Say(worker, requests);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_NODE_LOST);
  EXPECT_EQ(h.job(id).failure().message(),
            "the worker on node1 stopped its ranks: the supervisor was sent SIGTERM");
}

TEST_F(GenerationTest, ARankThatItsWorkerStoppedHasNotFinishedHoweverItEnded) {
  FakeWorker& worker = h.AddWorker("node1");
  FakeWorker& peer = h.AddWorker("node2");
  const std::string id = h.Submit(MakeSpec(2, 1));
  h.Say(worker, worker.StopRanks(id, /*code=*/0));
  EXPECT_EQ(CountStops(peer), 1);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_NODE_LOST);
}

TEST_F(GenerationTest, APrepareThatAStoppingWorkerRefusesOnlyPlacesTheJobAnew) {
  FakeWorker& worker = h.AddWorker("node1");
  worker.draining = true;
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(h.node(worker).state(), v1::NODE_STATE_DRAINING);
  EXPECT_EQ(h.node(worker).slots_used(), 0u);
  h.AddWorker("node2");
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).restarts(), 0u);
}

TEST_F(GenerationTest, ARefusalOfAStoppingWorkerIsNotTheFirstOfTheTwoThatEndAJob) {
  h.AddWorker("node1").draining = true;
  h.AddWorker("node2").prepare_error = "no free port";
  FakeWorker& third = h.AddWorker("node3");
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(third.Running(id), ElementsAre(0));
}

TEST_F(GenerationTest, AGenerationThatAStoppingWorkerGivesUpOnlyPlacesTheJobAnew) {
  FakeWorker& worker = h.AddWorker("node1");
  FakeWorker& mute = h.AddWorker("node2");
  mute.deaf = true;
  const std::string id = h.Submit(MakeSpec(2, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  worker.draining = true;
  h.Say(worker, {worker.Heartbeat()});
  h.Say(worker, worker.GiveUp(id));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
}

TEST_F(GenerationTest, APlannedEndIsNotChargedAlsoWithTheBudgetSpent) {
  FakeWorker& a = h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  const std::string id = h.Submit(Restarting(2, 2, 1, 1));
  h.Say(b, b.Exit(id, 1, 1));
  ASSERT_EQ(h.job(id).restarts(), 1u);
  FakeWorker& c = h.AddWorker("c");
  FakeWorker& d = h.AddWorker("d");
  a.draining = true;
  h.Say(a, {a.Heartbeat()});
  h.Say(a, a.StopRanks(id, /*code=*/1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 3u);
  EXPECT_EQ(h.job(id).restarts(), 1u);
  EXPECT_THAT(c.Running(id), ElementsAre(0));
  h.Say(b, {b.Goodbye()});
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 4u);
  EXPECT_EQ(h.job(id).restarts(), 1u);
  h.Say(d, d.Exit(id, 1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
}

TEST_F(GenerationTest, RanksThatEndForWantOfACoordinatorAreNotCharged) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(Restarting(1, 1, 1, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  FakeWorker::Requests requests = worker.StopRanks(id, /*code=*/1);
  for (v1::OpenSessionRequest& request : requests) {
    if (request.has_rank_exit()) request.mutable_rank_exit()->set_orphaned(true);
  }
  h.Say(worker, std::move(requests));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).restarts(), 0u);
  EXPECT_THAT(h.job(id).failure().message(), ::testing::HasSubstr("had lost its coordinator"));
}

TEST_F(GenerationTest, WhyAWorkerStoppedItsRanksIsTheReason) {
  FakeWorker& a = h.AddWorker("a");
  const std::string id = h.Submit(MakeSpec(1, 1));
  FakeWorker::Requests requests = a.StopRanks(id, /*code=*/1);
  for (v1::OpenSessionRequest& request : requests) {
    if (!request.has_rank_exit()) continue;
    request.mutable_rank_exit()->set_error_message(
        "the 'meshrun run' of node rank 1 on gpu1 has ended");
  }
  h.Say(a, std::move(requests));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().message(),
            "the worker on a stopped its ranks: the 'meshrun run' of node rank 1 on gpu1 has "
            "ended");
}

TEST_F(GenerationTest, ALostNodeThatWasSilentIsToldFromOneWhoseConnectionBroke) {
  for (const bool breaks : {true, false}) {
    FakeWorker& a = h.AddWorker(breaks ? "a" : "c");
    const std::string id = h.Submit(MakeSpec(1, 1));
    ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
    if (breaks) {
      h.Disconnect(a);
    } else {
      h.heartbeats = false;
    }
    h.Advance(std::chrono::seconds(5));
    EXPECT_EQ(h.job(id).failure().message(),
              breaks ? "a is lost: its connection broke, and it did not come back within its lease "
                       "of 5s"
                     : "c is lost: silent for its lease of 5s");
  }
}

TEST_F(GenerationTest, ALostNodeOfTheFormerTermOnlyDidNotComeBack) {
  h.AddWorker("a");
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.StartCoordinator();
  h.Advance(std::chrono::seconds(5));
  EXPECT_EQ(h.job(id).failure().message(),
            "a is lost: it did not come back within its lease of 5s");
}

TEST_F(GenerationTest, ARankThatEndsForWantOfAnotherHostIsToldWithIt) {
  FakeWorker& a = h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  const std::string id = h.Submit(MakeSpec(2, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  FakeWorker& stays = a.Running(id).contains(0) ? a : b;
  FakeWorker& goes = &stays == &a ? b : a;
  h.Disconnect(goes);
  h.Say(stays, stays.Exit(id, 0, 1));
  EXPECT_THAT(h.job(id).failure().message(),
              ::testing::EndsWith("; the connection to " + goes.name() + " broke before it"));
}

TEST_F(GenerationTest, APlannedEndIsRememberedOverARestart) {
  FakeWorker& a = h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  b.stubborn = true;
  const std::string id = h.Submit(Restarting(2, 2, 1, 1));
  h.Say(a, {a.Goodbye()});
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  h.StartCoordinator();
  b.stubborn = false;
  h.Connect(b);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  EXPECT_EQ(h.job(id).restarts(), 0u);
}

TEST_F(GenerationTest, AJobWithoutRestartsFailsAlsoByAPlannedEnd) {
  FakeWorker& worker = h.AddWorker("node1");
  h.AddWorker("node2");
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.Say(worker, {worker.Goodbye()});
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
}

TEST_F(GenerationTest, CancelNowIsRememberedOverAReconnectAndARestart) {
  FakeWorker& worker = h.AddWorker("node1");
  worker.stubborn = true;
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.Disconnect(worker);
  h.Cancel(id, /*now=*/true);
  h.Connect(worker);
  EXPECT_EQ(LastStop(worker).grace().seconds(), 0);
  worker.received.clear();
  h.StartCoordinator();
  h.Connect(worker);
  EXPECT_EQ(LastStop(worker).grace().seconds(), 0);
}

TEST_F(GenerationTest, CancelGivesTheGraceAndCancelNowTakesIt) {
  FakeWorker& worker = h.AddWorker("node1");
  worker.stubborn = true;
  v1::JobSpec spec = MakeSpec(1, 2);
  *spec.mutable_kill_grace() = ToProtoDuration(seconds(20));
  const std::string id = h.Submit(spec);
  h.Cancel(id);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  EXPECT_EQ(LastStop(worker).grace().seconds(), 20);
  worker.stubborn = false;
  h.Cancel(id, /*now=*/true);
  EXPECT_EQ(LastStop(worker).grace().seconds(), 0);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
  EXPECT_FALSE(h.job(id).has_failure());
}

TEST_F(GenerationTest, TheFirstCancelsSignalGoesFirstAlsoAfterAReconnectAndARestart) {
  FakeWorker& worker = h.AddWorker("node1");
  worker.stubborn = true;
  const std::string id = h.Submit(MakeSpec(1, 2));
  v1::StateEvent event;
  event.mutable_cancel_job()->set_job_id(id);
  event.mutable_cancel_job()->set_first_signal(SIGINT);
  EXPECT_TRUE(h.answer(h.Call(event)).status.ok());
  EXPECT_EQ(LastStop(worker).first_signal(), SIGINT);
  event.mutable_cancel_job()->set_first_signal(SIGUSR1);
  EXPECT_TRUE(h.answer(h.Call(event)).status.ok());
  h.Disconnect(worker);
  worker.received.clear();
  h.StartCoordinator();
  h.Connect(worker);
  EXPECT_EQ(LastStop(worker).first_signal(), SIGINT);
  event.mutable_cancel_job()->set_first_signal(65);
  EXPECT_EQ(h.answer(h.Call(event)).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GenerationTest, WhatEndsRanksOtherwiseIsSigtermAlone) {
  FakeWorker& worker = h.AddWorker("node1");
  FakeWorker& other = h.AddWorker("node2");
  worker.stubborn = true;
  const std::string id = h.Submit(MakeSpec(2, 1));
  h.Say(other, other.ExitAll(id, 1));
  EXPECT_EQ(LastStop(worker).first_signal(), 0);
  h.Cancel(h.Submit(MakeSpec(1, 1)));
  EXPECT_EQ(LastStop(worker).first_signal(), 0);
}

TEST_F(GenerationTest, CancelDuringRendezvousLeavesNothing) {
  FakeWorker& worker = h.AddWorker("node1");
  FakeWorker& slow = h.AddWorker("node2");
  slow.deaf = true;
  const std::string id = h.Submit(MakeSpec(2, 1));
  h.Cancel(id);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
  EXPECT_FALSE(worker.Carries(id));
  EXPECT_EQ(h.node(worker).slots_used(), 0u);
}

TEST_F(GenerationTest, CancelKeepsAFailingJobFromRestarting) {
  FakeWorker& worker = h.AddWorker("node1");
  worker.stubborn = true;
  const std::string id = h.Submit(Restarting(1, 1, 2, 3));
  h.Say(worker, worker.Exit(id, 0, 1));
  h.Cancel(id);
  h.Say(worker, worker.Exit(id, 1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
}

TEST_F(GenerationTest, AWorkerThatNeverSaysThatItEndedIsGivenUp) {
  FakeWorker& worker = h.AddWorker("node1");
  worker.stubborn = true;
  const std::string id = h.Submit(MakeSpec(1, 1));
  h.Cancel(id);
  h.Advance(seconds(34));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  h.Advance(seconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
  EXPECT_FALSE(worker.Carries(id));
}

TEST_F(GenerationTest, ABadCommandIsNotTriedAgainWhereNoOtherHostCouldKnowBetter) {
  FakeWorker& worker = h.AddWorker("node1");
  h.AddWorker("node2", 1);
  worker.prepare_error = "./train: no such file";
  worker.bad_command = true;
  const std::string id = h.Submit(MakeSpec(1, 2));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_BAD_COMMAND);
  EXPECT_EQ(h.job(id).failure().message(), "node1: ./train: no such file");
  EXPECT_EQ(h.job(id).generation(), 1u);
}

TEST_F(GenerationTest, AHostThatCannotPrepareIsLeftOutForTheJob) {
  FakeWorker& bad = h.AddWorker("node1");
  FakeWorker& good = h.AddWorker("node2");
  bad.prepare_error = "no space left on device";
  const std::string first = h.Submit(MakeSpec(1, 8));
  EXPECT_EQ(good.Running(first).size(), 8u);
  const std::string second = h.Submit(MakeSpec(1, 8));
  EXPECT_EQ(h.state(second), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(h.job(second).reason(),
              HasSubstr("could not be prepared on node1: no space left on device"));
  h.Advance(minutes(10));
  EXPECT_EQ(h.job(second).generation(), 1u) << "it waits for the host that can take it";
  h.StartCoordinator();
  h.Connect(bad);
  h.Connect(good);
  h.Say(good, good.ExitAll(first, 0));
  EXPECT_EQ(good.Running(second).size(), 8u);
  EXPECT_EQ(h.job(second).restarts(), 0u);
}

TEST_F(GenerationTest, WhereAllHostsRefuseAJobItIsTriedAgainEverLater) {
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  first.prepare_error = second.prepare_error = "no space left on device";
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  h.Advance(minutes(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(h.job(id).generation(), ::testing::AllOf(::testing::Ge(10u), ::testing::Le(40u)));
  // Whichever of them is mended.
  first.prepare_error.clear();
  h.Advance(minutes(3));
  EXPECT_THAT(first.Running(id), ElementsAre(0));
  EXPECT_EQ(h.job(id).restarts(), 0u);
  first.prepare_error = second.prepare_error;
  const std::string other = h.Submit(MakeSpec(1, 1));
  h.Advance(minutes(1));
  second.prepare_error.clear();
  h.Advance(minutes(3));
  EXPECT_THAT(second.Running(other), ElementsAre(0));
}

TEST_F(GenerationTest, TheQueueTimeoutOfAJobThatAllHostsRefuseEndsIt) {
  h.AddWorker("node1").prepare_error = "no space left on device";
  h.AddWorker("node2").prepare_error = "no space left on device";
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.mutable_queue_timeout()->set_seconds(300);
  const std::string id = h.Submit(spec);
  h.Advance(minutes(4));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  h.Advance(minutes(2));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_QUEUE_TIMEOUT);
}

TEST_F(GenerationTest, AHostWithAnotherTroubleDoesNotAgreeThatTheCommandIsWrong) {
  FakeWorker& full = h.AddWorker("node1");
  FakeWorker& bad = h.AddWorker("node2");
  full.prepare_error = "no space left on device";
  bad.prepare_error = "./train: not found";
  bad.bad_command = true;
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED) << "node1 may have the program";
  full.prepare_error.clear();
  h.Advance(minutes(3));
  EXPECT_THAT(full.Running(id), ElementsAre(0));
}

TEST_F(GenerationTest, AJobThatHasRunWaitsWhereTheOnlyOtherHostRefusesIt) {
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  v1::JobSpec spec = MakeSpec(2, 1);
  spec.set_max_restarts(1);
  spec.set_replace_at_once(true);
  const std::string id = h.Submit(spec);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  FakeWorker& spare = h.AddWorker("node3");
  spare.prepare_error = "./train: not found";
  spare.bad_command = true;
  h.Disconnect(second);
  h.Advance(minutes(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING) << h.job(id).reason();
  second.Reboot(/*ranks_survive=*/false);
  h.Connect(second);
  h.Advance(minutes(3));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_THAT(first.Running(id), ElementsAre(0));
}

TEST_F(GenerationTest, GpusThatNoRankHasHadBindTheJobToNothing) {
  FakeWorker& with_gpu = h.AddWorkerWith({.name = "node1", .gpus = 1});
  FakeWorker& without = h.AddWorkerWith({.name = "node2"});
  with_gpu.prepare_error = "no space left on device";
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_THAT(without.Running(id), ElementsAre(0)) << h.job(id).reason();
}

TEST_F(GenerationTest, AHostThatIsWellAgainMayHaveTheJobAgain) {
  h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  h.Submit(MakeSpec(1, 8));
  second.prepare_error = "no space left on device";
  const std::string id = h.Submit(MakeSpec(1, 8));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  second.prepare_error.clear();
  second.problems = {"less than 32.0 MiB free"};
  h.Say(second, {second.HealthReport()});
  second.problems.clear();
  h.Say(second, {second.HealthReport()});
  EXPECT_EQ(second.Running(id).size(), 8u);
}

TEST_F(GenerationTest, AHostThatStartsAnewMayHaveTheJobAgain) {
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  const std::string busy = h.Submit(MakeSpec(1, 8));
  ASSERT_EQ(first.Running(busy).size(), 8u);
  second.prepare_error = "no space left on device";
  const std::string id = h.Submit(MakeSpec(1, 8));
  second.prepare_error.clear();
  h.Advance(minutes(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED) << "node1 could take it";
  second.Reboot(/*ranks_survive=*/false);
  h.Connect(second);
  EXPECT_EQ(second.Running(id).size(), 8u);
}

TEST_F(GenerationTest, AJobFailsOnAHostThatCannotPrepareAndThatNoOtherCanReplace) {
  FakeWorker& worker = h.AddWorker("node1");
  worker.prepare_error = "no space left on device";
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  h.Advance(seconds(2));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).generation(), 3u);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_PREPARE_FAILED);
  EXPECT_EQ(h.job(id).failure().message(), "node1: no space left on device");
}

TEST_F(GenerationTest, AProgramThatOneHostLacksIsNotTheJobsFault) {
  FakeWorker& bad = h.AddWorker("node1");
  FakeWorker& good = h.AddWorker("node2");
  bad.prepare_error = "./train: not found";
  bad.bad_command = true;
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_THAT(good.Running(id), ElementsAre(0));
  good.prepare_error = bad.prepare_error;
  good.bad_command = true;
  const std::string wrong = h.Submit(MakeSpec(1, 1));
  EXPECT_EQ(h.state(wrong), v1::JOB_STATE_FAILED) << "two hosts agree";
  EXPECT_EQ(h.job(wrong).failure().cause(), v1::FAILURE_CAUSE_BAD_COMMAND);
  EXPECT_EQ(h.job(wrong).failure().message(), "node2: ./train: not found; so says node1");
}

TEST_F(GenerationTest, AHostThatIsLostIsReplacedByOneThatHasNotRefused) {
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  first.prepare_error = "no free port";
  second.deaf = true;
  const std::string id = h.Submit(MakeSpec(1, 1));
  ASSERT_EQ(h.job(id).generation(), 2u);
  FakeWorker& third = h.AddWorker("node3");
  h.Disconnect(second);
  h.Advance(seconds(5));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(third.Running(id), ElementsAre(0));
  EXPECT_EQ(h.job(id).generation(), 3u);
}

TEST_F(GenerationTest, AHostThatCouldNotPrepareIsBetterThanNone) {
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  first.deaf = true;
  const std::string id = h.Submit(MakeSpec(1, 8));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS);
  v1::JobSpec wide = MakeSpec(2, 8);
  wide.set_priority(1);
  const std::string other = h.Submit(wide);
  v1::OpenSessionRequest refusal = first.Message({id, h.job(id).generation()});
  refusal.mutable_prepare_result()->set_error("no free port");
  first.deaf = false;
  h.Say(first, {refusal});
  // The second node could take the job, and the other one was faster.
  ASSERT_EQ(h.state(other), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUEUED);
  h.Say(second, {second.Goodbye()});
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(first.Running(id).size(), 8u);
}

TEST_F(GenerationTest, WhatAHostHasPreparedForAJobThatItHasNoPartInIsForgotten) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(MakeSpec(1, 1));
  v1::OpenSessionRequest prepared = worker.Message({id, h.job(id).generation()});
  prepared.mutable_prepare_result()->set_ok(true);
  const auto forgets = [&] {
    return std::count_if(worker.received.begin(), worker.received.end(),
                         [](const auto& message) { return message.has_forget(); });
  };
  h.Say(worker, {prepared});
  EXPECT_EQ(forgets(), 0) << "the job runs there";
  h.Say(worker, worker.ExitAll(id, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  const auto before = forgets();
  // It reached the host beside its newer session.
  h.Say(worker, {prepared});
  EXPECT_EQ(forgets(), before + 1);
}

TEST_F(GenerationTest, AHostThatDoesNotAnswerPrepareIsNamed) {
  h.AddWorker("node1");
  FakeWorker& mute = h.AddWorker("node0");
  mute.deaf = true;
  const std::string id = h.Submit(MakeSpec(2, 1));
  for (int i = 0; i < 95; ++i) {
    h.Say(mute, {mute.Heartbeat()});
    h.Advance(seconds(1));
  }
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED) << "no other host could take its place";
  EXPECT_THAT(h.job(id).failure().message(), HasSubstr("node0: no answer to Prepare"));
}

TEST_F(GenerationTest, RestartsWithinItsBudgetAndKeepsRanksWhereTheyWere) {
  FakeWorker& a = h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  const std::string id = h.Submit(Restarting(2, 2, 2, 1));
  h.Say(b, b.Exit(id, 3, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).restarts(), 1u);
  EXPECT_THAT(a.Running(id), ElementsAre(0, 1));
  EXPECT_THAT(b.Running(id), ElementsAre(2, 3));
  h.Say(b, b.Exit(id, 3, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().generation(), 2u);
}

TEST_F(GenerationTest, ARankThatExitsWith93IsNotRunAgain) {
  h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  const std::string id = h.Submit(Restarting(2, 2, 1, 5));
  h.Say(b, b.Exit(id, 1, 93));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).restarts(), 0u);
}

TEST_F(GenerationTest, ASpareTakesThePlaceOfALostNode) {
  FakeWorker& a = h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  FakeWorker& spare = h.AddWorker("c");
  const std::string id = h.Submit(Restarting(2, 2, 1, 1));
  ASSERT_THAT(a.Running(id), ElementsAre(0));
  a.deaf = true;
  h.Advance(seconds(5));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  // The fence time of a.
  h.Advance(seconds(16));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(b.Running(id), ElementsAre(1));
  EXPECT_THAT(spare.Running(id), ElementsAre(0));
}

TEST_F(GenerationTest, ShrinksToItsMinimumAndWaitsBelowIt) {
  FakeWorker& a = h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  const std::string id = h.Submit(Restarting(1, 2, 1, 5));
  EXPECT_EQ(h.job(id).world_size(), 2u);
  b.deaf = true;
  h.Advance(seconds(5));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).world_size(), 1u);
  a.deaf = true;
  h.Advance(seconds(5));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  EXPECT_EQ(h.job(id).reason(), "needs 1 node, and no worker is connected");
  a.deaf = false;
  h.Connect(a);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).generation(), 3u);
}

TEST_F(GenerationTest, ALostNodeThatReturnsIsToldToForget) {
  FakeWorker& a = h.AddWorker("a");
  h.AddWorker("b");
  const std::string id = h.Submit(MakeSpec(2, 1));
  h.Disconnect(a);
  h.Advance(seconds(6));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(a.Carries(id));
  h.Connect(a);
  EXPECT_FALSE(a.Carries(id));
}

TEST_F(GenerationTest, MeshAxesAreGroupsOfTheirNames) {
  h.AddWorker("node1");
  v1::JobSpec spec = MakeSpec(1, 4);
  for (const auto& [name, size] : {std::pair("dp", -1), std::pair("spatial", 2)}) {
    v1::MeshAxis& axis = *spec.add_mesh();
    axis.set_name(name);
    axis.set_size(size);
  }
  const std::string id = h.Submit(spec);
  const v1::Job& job = h.job(id);
  ASSERT_EQ(job.groups_size(), 4);
  EXPECT_EQ(job.groups(0).name(), "dp");
  EXPECT_THAT(job.groups(0).ranks(), ElementsAre(0, 2));
  EXPECT_THAT(job.groups(1).ranks(), ElementsAre(1, 3));
  EXPECT_EQ(job.groups(2).name(), "spatial");
  EXPECT_THAT(job.groups(2).ranks(), ElementsAre(0, 1));
  EXPECT_THAT(job.ranks(3).assignment().mesh_coordinates(), ElementsAre(1, 1));
  // Announced by its ranks, an axis gets its backend and stays where it is.
  v1::StateEvent event;
  v1::RegisterGroupRequest& announced = *event.mutable_register_group();
  *announced.mutable_fence() = h.fence(id);
  announced.set_name("dp");
  announced.add_ranks(1);
  announced.add_ranks(3);
  announced.set_backend("ucx");
  ASSERT_TRUE(h.answer(h.Call(event)).status.ok());
  ASSERT_EQ(job.groups_size(), 4);
  EXPECT_EQ(job.groups(0).backend(), "");
  EXPECT_EQ(job.groups(1).name(), "dp");
  EXPECT_EQ(job.groups(1).backend(), "ucx");
  EXPECT_EQ(job.mesh(0).size(), 2);
  // The others have the backend of the world, which alone is announced by ranks of a mesh.
  announced.set_name("world");
  announced.clear_ranks();
  for (int rank = 0; rank < 4; ++rank) announced.add_ranks(rank);
  announced.set_backend("nccl");
  ASSERT_TRUE(h.answer(h.Call(event)).status.ok());
  ASSERT_EQ(job.groups_size(), 5);
  EXPECT_EQ(job.groups(0).backend(), "nccl");
  EXPECT_EQ(job.groups(1).backend(), "ucx");
}

}  // namespace
}  // namespace meshrun::coordinator::testing
