#include "coordinator/state_machine/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using std::chrono::minutes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class QueueTest : public ::testing::Test {
 protected:
  static v1::JobSpec Limited(v1::JobSpec spec, std::chrono::nanoseconds limit) {
    *spec.mutable_time_limit() = ToProtoDuration(limit);
    return spec;
  }
  static v1::JobSpec Prioritized(v1::JobSpec spec, int priority) {
    spec.set_priority(priority);
    return spec;
  }
  static v1::JobSpec Restartable(v1::JobSpec spec) {
    spec.set_max_restarts(1);
    return spec;
  }
  v1::UpdateJobRequest Update(const std::string& id) {
    v1::UpdateJobRequest request;
    request.set_job_id(id);
    return request;
  }
  Harness::Answer& Send(const v1::UpdateJobRequest& request) {
    v1::StateEvent event;
    *event.mutable_update_job() = request;
    return h.answer(h.Call(std::move(event)));
  }
  Harness::Answer& Hold(const std::string& id, bool hold) {
    v1::UpdateJobRequest request = Update(id);
    request.set_hold(hold);
    return Send(request);
  }
  Harness::Answer& Drain(const std::string& node,
                         std::optional<std::chrono::nanoseconds> deadline = std::nullopt) {
    v1::StateEvent event;
    event.mutable_drain_node()->set_node(node);
    event.mutable_drain_node()->set_reason("a fan");
    if (deadline) *event.mutable_drain_node()->mutable_deadline() = ToProtoDuration(*deadline);
    return h.answer(h.Call(std::move(event)));
  }
  Harness::Answer& Undrain(const std::string& node) {
    v1::StateEvent event;
    event.mutable_undrain_node()->set_node(node);
    return h.answer(h.Call(std::move(event)));
  }
  Harness::Answer& Remove(const std::string& node) {
    v1::StateEvent event;
    event.mutable_remove_node()->set_node(node);
    return h.answer(h.Call(std::move(event)));
  }
  std::string Message(const Harness::Answer& answer) {
    return std::string(answer.status.message());
  }

  Harness h;
};

// --- backfill ---

TEST_F(QueueTest, AShortJobStartsBeforeTheHeadThatCannotStartEarlier) {
  h.AddWorker("node1", 4);
  h.AddWorker("node2", 4);
  const std::string running = h.Submit(Limited(MakeSpec(1, 4), minutes(60)));
  const std::string head = h.Submit(MakeSpec(2, 4));
  ASSERT_EQ(h.state(head), v1::JOB_STATE_QUEUED);
  const std::string shorter = h.Submit(Limited(MakeSpec(1, 4), minutes(30)));
  EXPECT_EQ(h.state(shorter), v1::JOB_STATE_RUNNING);
  EXPECT_TRUE(h.HasEvent("JobBackfilled"));
}

TEST_F(QueueTest, AJobThatWouldDelayTheHeadWaits) {
  h.AddWorker("node1", 4);
  h.AddWorker("node2", 4);
  h.Submit(Limited(MakeSpec(1, 4), minutes(60)));
  const std::string head = h.Submit(MakeSpec(2, 4));
  const std::string longer = h.Submit(Limited(MakeSpec(1, 4), minutes(60)));
  EXPECT_EQ(h.state(longer), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(h.job(longer).reason(), HasSubstr("behind job " + head + ", which needs 2 nodes"));
  EXPECT_EQ(h.state(h.Submit(MakeSpec(1, 1))), v1::JOB_STATE_QUEUED) << "without a limit";
}

TEST_F(QueueTest, WithoutATimeLimitAJobStartsOnlyWhereTheHeadIsNotNeeded) {
  h.AddWorker("node1", 4);
  h.AddWorker("node2", 4);
  FakeWorker& labelled = h.AddWorkerWith({.name = "node3", .slots = 4, .labels = {{"zone", "b"}}});
  h.Submit(Limited(MakeSpec(1, 4), minutes(60)));
  v1::JobSpec head = MakeSpec(2, 4);
  head.add_constraints("zone!=b");
  ASSERT_EQ(h.state(h.Submit(head)), v1::JOB_STATE_QUEUED);
  const std::string elsewhere = h.Submit(MakeSpec(1, 4));
  EXPECT_EQ(h.state(elsewhere), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(labelled.Running(elsewhere), ElementsAre(0, 1, 2, 3));
}

TEST_F(QueueTest, WhileNobodyKnowsWhenTheHeadCanStartNothingTakesItsNodes) {
  h.AddWorker("node1", 4);
  h.AddWorker("node2", 4);
  h.Submit(MakeSpec(1, 4));
  h.Submit(MakeSpec(2, 4));
  EXPECT_EQ(h.state(h.Submit(Limited(MakeSpec(1, 1), minutes(1)))), v1::JOB_STATE_QUEUED);
}

TEST_F(QueueTest, TheHeadStartsAtItsReservedTimeWhateverWasBackfilled) {
  h.AddWorker("node1", 4);
  h.AddWorker("node2", 4);
  h.Submit(Limited(MakeSpec(1, 4), minutes(60)));
  const std::string head = h.Submit(MakeSpec(2, 4));
  for (int i = 0; i < 40; ++i) h.Submit(Limited(MakeSpec(1, 1 + i % 4), minutes(3 + i)));
  for (int minute = 0; minute < 61; ++minute) {
    h.Advance(minutes(1));
    h.Submit(Limited(MakeSpec(1, 2), minutes(5)));
  }
  EXPECT_EQ(h.state(head), v1::JOB_STATE_RUNNING);
}

// --- time limits ---

TEST_F(QueueTest, AtItsTimeLimitAJobIsStoppedWithItsGraceAndFails) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(Limited(Restartable(MakeSpec(1, 1)), minutes(2)));
  h.Advance(minutes(2) - milliseconds(1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  worker.received.clear();
  h.Advance(milliseconds(1));
  ASSERT_FALSE(worker.received.empty());
  EXPECT_EQ(worker.received[0].stop().grace().seconds(), 5);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_TIME_LIMIT);
  EXPECT_EQ(h.job(id).reason(), "TIMED OUT: it ran for its time limit of 2m");
  EXPECT_EQ(h.job(id).restarts(), 0u);
}

TEST_F(QueueTest, TimeInTheQueueAndOutagesOfTheCoordinatorDoNotShiftTheLimit) {
  FakeWorker& worker = h.AddWorker("node1", 4);
  const std::string first = h.Submit(MakeSpec(1, 4));
  const std::string id = h.Submit(Limited(MakeSpec(1, 4), minutes(2)));
  h.Advance(minutes(5));
  h.Say(worker, worker.ExitAll(first, 0));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Advance(minutes(1));
  h.StartCoordinator();
  h.Connect(worker);
  h.Advance(seconds(59));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Advance(seconds(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
}

TEST_F(QueueTest, TheTimeLimitStandsStillWhileRanksArePaused) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string id = h.Submit(Limited(MakeSpec(1, 2), minutes(2)));
  const auto send = [&](int signal, std::vector<int> ranks) {
    v1::StateEvent event;
    event.mutable_signal_job()->set_job_id(id);
    event.mutable_signal_job()->set_signal(signal);
    event.mutable_signal_job()->mutable_ranks()->Add(ranks.begin(), ranks.end());
    ASSERT_TRUE(h.answer(h.Call(std::move(event))).status.ok());
  };
  h.Advance(minutes(1));
  send(SIGSTOP, {});
  EXPECT_TRUE(h.job(id).has_paused_since());
  h.Advance(minutes(10));
  // A restarted coordinator knows of the pause.
  h.StartCoordinator();
  h.Connect(worker);
  h.Advance(minutes(10));
  send(SIGCONT, {1});
  h.Advance(minutes(10));
  EXPECT_TRUE(h.job(id).has_paused_since());
  send(SIGCONT, {0});
  EXPECT_FALSE(h.job(id).has_paused_since());
  h.Advance(seconds(59));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.Advance(seconds(1));
  EXPECT_EQ(h.job(id).failure().cause(), v1::FAILURE_CAUSE_TIME_LIMIT);
  EXPECT_FALSE(h.job(id).has_paused_since());
}

TEST_F(QueueTest, AJobThatFinishesWhileItIsStoppedHasSucceeded) {
  FakeWorker& worker = h.AddWorker("node1");
  worker.stubborn = true;
  const std::string id = h.Submit(Limited(MakeSpec(1, 1), minutes(1)));
  h.Advance(minutes(1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  h.Say(worker, worker.ExitAll(id, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED);
}

// --- hold, priorities, preemption ---

TEST_F(QueueTest, AHeldJobWaitsUntilItIsReleased) {
  h.AddWorker("node1");
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.set_hold(true);
  *spec.mutable_queue_timeout() = ToProtoDuration(seconds(10));
  const std::string id = h.Submit(spec);
  EXPECT_EQ(h.job(id).reason(), "held: 'meshrun release " + id + "' lets it go on");
  h.StartCoordinator();
  h.Advance(minutes(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUEUED) << "a held job has no queue timeout";
  EXPECT_EQ(Hold(id, false).As<v1::UpdateJobResponse>().job().state(), v1::JOB_STATE_QUEUED);
  h.AddWorker("node2");
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
}

TEST_F(QueueTest, HoldingTheHeadLetsTheNextOneGo) {
  h.AddWorker("node1", 4);
  h.Submit(MakeSpec(1, 3));
  const std::string head = h.Submit(MakeSpec(1, 4));
  const std::string next = h.Submit(MakeSpec(1, 1));
  ASSERT_EQ(h.state(next), v1::JOB_STATE_QUEUED);
  Hold(head, true);
  EXPECT_EQ(h.state(next), v1::JOB_STATE_RUNNING);
}

TEST_F(QueueTest, AChangedPriorityMovesAJobInTheQueue) {
  FakeWorker& worker = h.AddWorker("node1", 4);
  const std::string running = h.Submit(MakeSpec(1, 4));
  const std::string first = h.Submit(MakeSpec(1, 4));
  const std::string second = h.Submit(MakeSpec(1, 4));
  v1::UpdateJobRequest request = Update(second);
  request.set_priority(5);
  EXPECT_EQ(Send(request).As<v1::UpdateJobResponse>().job().spec().priority(), 5);
  h.Say(worker, worker.ExitAll(running, 0));
  EXPECT_EQ(h.state(second), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.state(first), v1::JOB_STATE_QUEUED);
}

TEST_F(QueueTest, UpdatesThatChangeNothingOrComeTooLateAreErrors) {
  const std::string id = h.Submit(MakeSpec(1, 1));
  EXPECT_TRUE(absl::IsInvalidArgument(Send(Update(id)).status));
  EXPECT_TRUE(absl::IsNotFound(Hold("nope", true).status));
  h.Cancel(id);
  EXPECT_TRUE(absl::IsFailedPrecondition(Hold(id, true).status));
}

TEST_F(QueueTest, AJobOfHigherPriorityTakesTheNodesOfOneThatMayRunAgain) {
  FakeWorker& worker = h.AddWorker("node1", 4);
  const std::string low = h.Submit(Restartable(MakeSpec(1, 4)));
  ASSERT_EQ(h.state(low), v1::JOB_STATE_RUNNING);
  const std::string high = h.Submit(Prioritized(MakeSpec(1, 4), 1));
  EXPECT_EQ(h.state(high), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.state(low), v1::JOB_STATE_WAITING);
  EXPECT_EQ(h.job(low).restarts(), 0u) << "at no charge";
  EXPECT_THAT(h.job(low).reason(),
              HasSubstr("preempted by " + high + ", whose priority is 1; needs 1 node"));
  h.Say(worker, worker.ExitAll(high, 0));
  EXPECT_EQ(h.state(low), v1::JOB_STATE_RUNNING);
}

TEST_F(QueueTest, AJobKeepsTheGpusPerRankOfItsFirstPlacement) {
  FakeWorker& worker = h.AddWorkerWith({.name = "node1", .slots = 8, .gpus = 2});
  const auto gpus = [&](const std::string& id) {
    return h.job(id).ranks(0).assignment().gpus_size();
  };
  const std::string on_gpus = h.Submit(Restartable(MakeSpec(1, 2)));
  ASSERT_EQ(gpus(on_gpus), 1);
  const std::string on_slots = h.Submit(Restartable(MakeSpec(1, 2)));
  ASSERT_EQ(gpus(on_slots), 0);
  v1::JobSpec spec = Prioritized(MakeSpec(1, 1), 1);
  spec.set_gpus_per_proc(2);
  const std::string high = h.Submit(spec);
  EXPECT_EQ(h.state(high), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.state(on_gpus), v1::JOB_STATE_WAITING) << "free slots are no GPUs";
  EXPECT_THAT(h.job(on_gpus).reason(), HasSubstr("2 GPUs, and 0 of 2 are free"));
  h.StartCoordinator();
  h.Connect(worker);
  EXPECT_EQ(h.state(on_gpus), v1::JOB_STATE_WAITING);
  h.Say(worker, worker.ExitAll(high, 0));
  EXPECT_EQ(h.state(on_gpus), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(gpus(on_gpus), 1);
  h.Say(worker, worker.ExitAll(on_gpus, 0));
  // GPUs are free now; the job has run without.
  h.Say(worker, worker.Exit(on_slots, 0, 1));
  h.Advance(seconds(1));
  EXPECT_EQ(h.state(on_slots), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(on_slots).generation(), 2u);
  EXPECT_EQ(gpus(on_slots), 0);
}

TEST_F(QueueTest, ASpareWithoutAFreeGpuTakesNoPlaceInAJobOnGpus) {
  FakeWorker& first = h.AddWorkerWith({.name = "node1", .gpus = 1});
  h.AddWorkerWith({.name = "node2", .gpus = 1});
  FakeWorker& spare = h.AddWorkerWith({.name = "node3", .gpus = 1});
  const std::string id = h.Submit(Restartable(MakeSpec(2, 1)));
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.set_gpus_per_proc(1);
  const std::string other = h.Submit(spec);
  ASSERT_THAT(spare.Running(other), ElementsAre(0));
  h.Disconnect(first);
  h.Advance(minutes(1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  h.Say(spare, spare.ExitAll(other, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.job(id).ranks(1).assignment().gpus_size(), 1);
}

TEST_F(QueueTest, OnlyTheJobsThatAreNeededMakeRoomAndNoneOfEqualPriority) {
  h.AddWorker("node1", 4);
  h.AddWorker("node2", 4);
  const std::string old_low = h.Submit(Restartable(MakeSpec(1, 4)));
  h.Advance(seconds(10));
  const std::string new_low = h.Submit(Restartable(MakeSpec(1, 4)));
  EXPECT_EQ(h.state(h.Submit(MakeSpec(1, 4))), v1::JOB_STATE_QUEUED);
  h.Submit(Prioritized(MakeSpec(1, 4), 3));
  EXPECT_EQ(h.state(old_low), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.state(new_low), v1::JOB_STATE_WAITING);
}

TEST_F(QueueTest, AJobThatMustNotRunTwiceIsNotPreempted) {
  h.AddWorker("node1", 4);
  const std::string low = h.Submit(MakeSpec(1, 4));
  EXPECT_EQ(h.state(h.Submit(Prioritized(MakeSpec(1, 4), 1))), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(h.state(low), v1::JOB_STATE_RUNNING);
}

TEST_F(QueueTest, ACoordinatorThatRestartsDuringAPreemptionEndsItAsItBegan) {
  FakeWorker& worker = h.AddWorker("node1", 4);
  const std::string low = h.Submit(Restartable(MakeSpec(1, 4)));
  worker.deaf = true;
  const std::string high = h.Submit(Prioritized(MakeSpec(1, 4), 1));
  ASSERT_EQ(h.state(low), v1::JOB_STATE_QUIESCING);
  EXPECT_THAT(h.job(high).reason(), HasSubstr("a job of lower priority is stopped for it: " + low));
  h.StartCoordinator();
  worker.deaf = false;
  h.Connect(worker);
  EXPECT_EQ(h.state(high), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(h.state(low), v1::JOB_STATE_WAITING);
  EXPECT_EQ(h.job(low).restarts(), 0u);
}

TEST_F(QueueTest, ANewJobIsBackfilledWhileTheHeadWaitsForItsVictims) {
  FakeWorker& worker = h.AddWorker("node1", 4);
  h.AddWorker("node2", 4);
  const std::string low = h.Submit(Restartable(MakeSpec(1, 4)));
  worker.stubborn = true;
  ASSERT_EQ(h.state(h.Submit(Prioritized(MakeSpec(2, 4), 1))), v1::JOB_STATE_QUEUED);
  ASSERT_EQ(h.state(low), v1::JOB_STATE_QUIESCING);
  EXPECT_EQ(h.state(h.Submit(Limited(MakeSpec(1, 1), minutes(10)))), v1::JOB_STATE_QUEUED);
}

// --- labels, constraints, exclusion ---

TEST_F(QueueTest, ConstraintsAndExclusionsLimitTheNodesOfAJob) {
  FakeWorker& a = h.AddWorkerWith({.name = "a", .labels = {{"zone", "x"}}});
  FakeWorker& b = h.AddWorkerWith({.name = "b", .labels = {{"zone", "y"}, {"nvlink", ""}}});
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.add_constraints("zone=y");
  EXPECT_THAT(b.Running(h.Submit(spec)), ElementsAre(0));
  spec.set_constraints(0, "!nvlink");
  EXPECT_THAT(a.Running(h.Submit(spec)), ElementsAre(0));
  spec.add_exclude_nodes("a");
  const std::string never = h.Submit(spec);
  EXPECT_EQ(h.job(never).reason(),
            "needs 1 node, and 0 of 2 can take it: a is excluded by the job");
  spec.set_constraints(0, "zone=");
  spec.set_constraints(0, "=y");
  EXPECT_TRUE(absl::IsInvalidArgument(h.TrySubmit(spec).status));
}

// --- drain, undrain, removal ---

TEST_F(QueueTest, ADrainedNodeKeepsItsRanksAndTakesNothingNew) {
  FakeWorker& a = h.AddWorker("a");
  FakeWorker& b = h.AddWorker("b");
  const std::string id = h.Submit(Restartable(MakeSpec(1, 1)));
  ASSERT_THAT(a.Running(id), ElementsAre(0));
  EXPECT_TRUE(Drain("a").As<v1::DrainNodeResponse>().node().drained());
  h.Advance(minutes(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(b.Running(h.Submit(MakeSpec(1, 1))), ElementsAre(0));
  h.StartCoordinator();
  h.Connect(a);
  h.Connect(b);
  EXPECT_THAT(a.Running(h.Submit(MakeSpec(1, 1))), IsEmpty()) << "a drain is durable";
  Undrain("a");
  EXPECT_THAT(a.Running(h.Submit(MakeSpec(1, 1))), ElementsAre(0));
}

TEST_F(QueueTest, AtItsDeadlineADrainMovesWhatMayRunElsewhere) {
  FakeWorker& a = h.AddWorker("a");
  const std::string moving = h.Submit(Restartable(MakeSpec(1, 1)));
  const std::string staying = h.Submit(MakeSpec(1, 1));
  FakeWorker& b = h.AddWorker("b");
  const v1::DrainNodeResponse answer = Drain("a", minutes(1)).As<v1::DrainNodeResponse>();
  EXPECT_THAT(answer.moving(), ElementsAre(moving));
  EXPECT_THAT(answer.staying(), ElementsAre(staying));
  h.Advance(seconds(59));
  ASSERT_THAT(a.Running(moving), ElementsAre(0));
  h.StartCoordinator();
  h.Connect(a);
  h.Connect(b);
  h.Advance(seconds(1));
  EXPECT_THAT(b.Running(moving), ElementsAre(0));
  EXPECT_THAT(a.Running(staying), ElementsAre(0));
  EXPECT_EQ(h.job(moving).restarts(), 0u);
}

TEST_F(QueueTest, ADrainNowMovesAtOnceAndUnknownNodesAreNamed) {
  h.AddWorker("a");
  const std::string id = h.Submit(Restartable(MakeSpec(1, 1)));
  FakeWorker& b = h.AddWorker("b");
  Drain("a", seconds(0));
  EXPECT_THAT(b.Running(id), ElementsAre(0));
  const auto& unknown = Drain("c");
  EXPECT_TRUE(absl::IsNotFound(unknown.status));
  EXPECT_THAT(Message(unknown), HasSubstr("no node 'c' among the 2 that are known"));
}

TEST_F(QueueTest, OnlyALostNodeCanBeRemoved) {
  FakeWorker& a = h.AddWorker("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(Remove("a").status));
  h.Say(a, {a.Goodbye()});
  EXPECT_TRUE(Remove("a").status.ok());
  EXPECT_THAT(h.machine().nodes().all(), IsEmpty());
  h.StartCoordinator();
  EXPECT_THAT(h.machine().nodes().all(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(Remove("a").status));
}

// --- work ---

TEST_F(QueueTest, ASubmitToAQueueOfTenThousandCostsOnePlacement) {
  FakeWorker& worker = h.AddWorker("node1", 4);
  const std::string running = h.Submit(MakeSpec(1, 4));
  for (int i = 0; i < 10'000; ++i) h.Submit(MakeSpec(1, 1 + i % 4));
  const size_t before = h.machine().queue().placements();
  h.Submit(MakeSpec(1, 3));
  EXPECT_LE(h.machine().queue().placements() - before, 1u);
  // A job's end is answered by one placement for each job that starts, and a few more.
  const size_t at_end = h.machine().queue().placements();
  h.Say(worker, worker.ExitAll(running, 0));
  EXPECT_LE(h.machine().queue().placements() - at_end, 20u);
}

TEST_F(QueueTest, TenThousandDifferentJobsAreEachLookedAtOnce) {
  h.AddWorker("node1", 4);
  h.Submit(MakeSpec(1, 4));
  const size_t before = h.machine().queue().placements();
  for (int i = 0; i < 10'000; ++i) {
    v1::JobSpec spec = MakeSpec(1, 4);
    spec.set_memory_bytes(i);
    h.Submit(spec);
  }
  EXPECT_LE(h.machine().queue().placements() - before, 10'010u);
}

TEST_F(QueueTest, JobsThatCouldNeverRunHereHoldUpNobody) {
  FakeWorker& worker = h.AddWorker("node1", 4);
  const std::string running = h.Submit(MakeSpec(1, 4));
  std::string impossible;
  for (int i = 0; i < 1000; ++i) {
    v1::JobSpec spec = Prioritized(MakeSpec(1, 5), i % 2);
    spec.set_memory_bytes(i);
    impossible = h.Submit(spec);
  }
  const std::string fits = h.Submit(MakeSpec(1, 1));
  EXPECT_THAT(h.job(fits).reason(), HasSubstr("node1 would have to give 1 slot, and 0 of 4"));
  EXPECT_THAT(h.job(impossible).reason(),
              HasSubstr("node1 would have to give 5 slots, and 4 of 4"));
  const size_t at_end = h.machine().queue().placements();
  h.Say(worker, worker.ExitAll(running, 0));
  EXPECT_EQ(h.state(fits), v1::JOB_STATE_RUNNING);
  EXPECT_LE(h.machine().queue().placements() - at_end, 20u);
  // A node that can take them.
  h.AddWorker("node2", 5);
  h.Advance(milliseconds(1));
  EXPECT_THAT(h.job(impossible).reason(), HasSubstr("behind job "));
}

TEST_F(QueueTest, APassGoesOnWhereItStoppedHoweverOftenNodesChange) {
  h.AddWorker("node1", 4);
  h.AddWorker("node2", 4);
  h.Submit(Limited(MakeSpec(1, 4), minutes(60)));
  ASSERT_EQ(h.state(h.Submit(MakeSpec(2, 4))), v1::JOB_STATE_QUEUED);
  for (int i = 0; i < 3000; ++i) h.Submit(Limited(MakeSpec(1, 4), minutes(61 + i)));
  v1::JobSpec elsewhere = MakeSpec(1, 1);
  elsewhere.add_constraints("zone=b");
  const std::string last = h.Submit(elsewhere);
  h.AddWorkerWith({.name = "node3", .slots = 1, .labels = {{"zone", "b"}}});
  EXPECT_EQ(h.state(last), v1::JOB_STATE_QUEUED) << "one step looks at a part of the queue";
  for (int i = 0; i < 8; ++i) i % 2 == 0 ? Drain("node2") : Undrain("node2");
  EXPECT_EQ(h.state(last), v1::JOB_STATE_QUEUED);
  for (int i = 0; i < 8; ++i) i % 2 == 0 ? Drain("node2") : Undrain("node2");
  EXPECT_EQ(h.state(last), v1::JOB_STATE_RUNNING);
}

TEST_F(QueueTest, ASignalGoesToTheHostsOfTheNamedRanks) {
  FakeWorker& first = h.AddWorker("a");
  FakeWorker& second = h.AddWorker("b");
  const std::string id = h.Submit(MakeSpec(2, 2));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  const auto send = [&](int signal, std::vector<int> ranks) -> Harness::Answer& {
    v1::StateEvent event;
    event.mutable_signal_job()->set_job_id(id);
    event.mutable_signal_job()->set_signal(signal);
    event.mutable_signal_job()->mutable_ranks()->Add(ranks.begin(), ranks.end());
    return h.answer(h.Call(std::move(event)));
  };
  const auto told = [](const FakeWorker& worker) {
    std::vector<v1::SignalRanks> out;
    for (const v1::OpenSessionResponse& message : worker.received) {
      if (message.has_signal_ranks()) out.push_back(message.signal_ranks());
    }
    return out;
  };
  EXPECT_TRUE(send(10, {3}).status.ok());
  EXPECT_TRUE(told(first).empty());
  ASSERT_EQ(told(second).size(), 1u);
  EXPECT_EQ(told(second)[0].signal(), 10);
  EXPECT_EQ(told(second)[0].ranks(0), 3);
  EXPECT_TRUE(send(12, {}).status.ok());
  EXPECT_EQ(told(first).size(), 1u);
  EXPECT_TRUE(told(second)[1].ranks().empty());
  EXPECT_TRUE(h.HasEvent("JobSignaled"));

  EXPECT_EQ(send(0, {}).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(send(65, {}).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(send(10, {4}).status.code(), absl::StatusCode::kNotFound);
  h.Disconnect(second);
  EXPECT_EQ(send(10, {}).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(told(first).size(), 1u);
  h.Cancel(id);
  EXPECT_EQ(send(10, {}).status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(QueueTest, ASubmitSaysWhereTheJobCouldNeverRunOnThePresentNodes) {
  const auto too_big = [&](uint32_t nodes, uint32_t procs) {
    return h.TrySubmit(MakeSpec(nodes, procs)).As<v1::SubmitJobResponse>().too_big();
  };
  EXPECT_EQ(too_big(1, 1), "");
  h.AddWorker("a", 8);
  EXPECT_EQ(too_big(1, 8), "");
  EXPECT_EQ(too_big(1, 8), "");
  EXPECT_THAT(too_big(2, 1), HasSubstr("needs 2 nodes, and 1 is connected"));
  EXPECT_THAT(too_big(1, 9), HasSubstr("a would have to give 9 slots"));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
