#include "coordinator/state_machine/tallies.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using std::chrono::hours;
using std::chrono::minutes;

class TalliesTest : public ::testing::Test {
 protected:
  // A report of a step from a rank of the job.
  void Report(FakeWorker& worker, const std::string& job, int64_t step, int rank = 0) {
    v1::OpenSessionRequest message = worker.Message({job, h.job(job).generation()});
    (*message.mutable_progress_report()->mutable_progress())[rank].set_step(step);
    h.Say(worker, {message});
  }
  double stepping() { return h.machine().Measure().tallies.stepping_rank_seconds(); }
  metrics::Buckets waits() { return h.machine().Measure().tallies.queue_wait(); }
  // Another coordinator leads; the workers come to it.
  void FailOver(std::vector<FakeWorker*> workers) {
    h.StartCoordinator();
    for (FakeWorker* worker : workers) h.Connect(*worker);
  }
  void Steps(FakeWorker& worker, const std::string& job, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      Report(worker, job, step);
      worker.steps[0] = step;
      h.Advance(milliseconds(100));
    }
  }
  void Signal(const std::string& job, int signal, const std::vector<int>& ranks = {}) {
    v1::StateEvent event;
    event.mutable_signal_job()->set_job_id(job);
    event.mutable_signal_job()->set_signal(signal);
    event.mutable_signal_job()->mutable_ranks()->Add(ranks.begin(), ranks.end());
    ASSERT_TRUE(h.answer(h.Call(std::move(event))).status.ok());
  }
  // Steps 1 to 5, and then none until people are told of a hang. Nobody may end the job.
  std::string Hang(FakeWorker& worker) {
    const std::string job = h.Submit(MakeSpec(1, 8));
    Steps(worker, job, 1, 5);
    h.Advance(minutes(20));
    EXPECT_NE(h.job(job).hang(), "");
    return job;
  }
  static v1::JobSpec Restartable(uint32_t nodes, uint32_t procs) {
    v1::JobSpec spec = MakeSpec(nodes, procs);
    spec.set_max_restarts(5);
    return spec;
  }

  Harness h;
};

TEST_F(TalliesTest, JobsAreCountedByUserAndStateUntilTheyEnd) {
  FakeWorker& worker = h.AddWorker("node1", 2);
  const std::string first = h.SubmitAs("ada", MakeSpec(1, 2));
  const std::string second = h.SubmitAs("bob", MakeSpec(1, 2));
  Measures now = h.machine().Measure();
  EXPECT_EQ(now.tallies.jobs().at("ada")[v1::JOB_STATE_RUNNING], 1u);
  EXPECT_EQ(now.tallies.jobs().at("bob")[v1::JOB_STATE_QUEUED], 1u);
  EXPECT_EQ(now.queued_jobs, 1u);
  EXPECT_EQ(now.slots, 2u);
  EXPECT_EQ(now.slots_used, 2u);
  EXPECT_EQ(now.nodes.at("healthy"), 1u);
  EXPECT_EQ(now.tallies.held_ranks(), 2u);
  h.Say(worker, worker.ExitAll(first, 0));
  now = h.machine().Measure();
  EXPECT_FALSE(now.tallies.jobs().contains("ada"));
  EXPECT_EQ(now.tallies.ended().at(v1::JOB_STATE_SUCCEEDED), 1u);
  EXPECT_EQ(now.tallies.jobs().at("bob")[v1::JOB_STATE_RUNNING], 1u);
}

TEST_F(TalliesTest, UsersBeyondTheFirstAreCountedTogether) {
  for (int i = 0; i < 80; ++i) h.SubmitAs(fmt::format("user{}", i), MakeSpec(1, 1));
  const Tallies tallies = h.machine().Measure().tallies;
  EXPECT_EQ(tallies.jobs().size(), Tallies::kMostUsers + 1);
  EXPECT_EQ(tallies.jobs().at(Tallies::kOthers)[v1::JOB_STATE_QUEUED], 80 - Tallies::kMostUsers);
}

TEST_F(TalliesTest, ARankThatReportsLaterThanAnotherCostsNoTrainingTime) {
  FakeWorker& worker = h.AddWorker("node1", 2);
  const std::string job = h.SubmitAs("ada", MakeSpec(1, 2));
  for (int step = 1; step <= 4; ++step) {
    Report(worker, job, step, 0);
    h.Advance(milliseconds(500));
    Report(worker, job, step, 1);
    h.Advance(milliseconds(500));
  }
  // From the first report of step 1 to that of step 4, of two ranks.
  EXPECT_DOUBLE_EQ(stepping(), 2 * 3.0);
}

TEST_F(TalliesTest, ARestartedCoordinatorCountsTheJobsThatItFinds) {
  h.AddWorker("node1", 2);
  h.SubmitAs("ada", MakeSpec(1, 2));
  h.SubmitAs("bob", MakeSpec(1, 2));
  h.StartCoordinator();
  const Tallies tallies = h.machine().Measure().tallies;
  EXPECT_EQ(tallies.jobs().at("ada")[v1::JOB_STATE_RUNNING], 1u);
  EXPECT_EQ(tallies.jobs().at("bob")[v1::JOB_STATE_QUEUED], 1u);
  EXPECT_EQ(tallies.held_ranks(), 2u);
}

TEST_F(TalliesTest, RepeatedStepsDoNotCountAfterAChangeOfTheLeader) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(Restartable(1, 2));
  Steps(worker, job, 1, 106);
  h.Say(worker, worker.Exit(job, 0, 0, 9));
  worker.steps.clear();
  h.Advance(seconds(1));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  Steps(worker, job, 20, 61);
  FailOver({&worker});
  Steps(worker, job, 62, 106);
  EXPECT_EQ(stepping(), 0);
  Steps(worker, job, 107, 108);
  EXPECT_NEAR(stepping(), 2 * 0.2, 1e-9);
}

TEST_F(TalliesTest, StepsThatAGenerationReachedBeforeItAndTheLeaderDiedAreKnown) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(Restartable(1, 2));
  Steps(worker, job, 1, 90);
  // Nobody hears of the rank's end but the next leader.
  worker.Exit(job, 0, 0, 9);
  FailOver({&worker});
  worker.steps.clear();
  h.Advance(seconds(6));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(h.job(job).generation(), 2u);
  Steps(worker, job, 21, 90);
  EXPECT_EQ(stepping(), 0);
  Steps(worker, job, 91, 91);
  EXPECT_NEAR(stepping(), 2 * 0.1, 1e-9);
}

TEST_F(TalliesTest, StepsBeforeAnEndAtNoChargeAreRepeatedForTheNextLeaderToo) {
  FakeWorker& worker = h.AddWorker("node1", 2);
  const std::string job = h.Submit(Restartable(1, 2));
  Steps(worker, job, 1, 50);
  v1::JobSpec urgent = MakeSpec(1, 2);
  urgent.set_priority(1);
  const std::string other = h.Submit(urgent);
  ASSERT_EQ(h.state(job), v1::JOB_STATE_WAITING);
  worker.steps.clear();
  h.Say(worker, worker.ExitAll(other, 0));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  Steps(worker, job, 10, 20);
  FailOver({&worker});
  Steps(worker, job, 21, 50);
  EXPECT_EQ(stepping(), 0);
  EXPECT_EQ(h.job(job).restarts_charged(), 0u);
}

TEST_F(TalliesTest, EpochsThatAreCountedAnewCountWhoeverLeads) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(MakeSpec(1, 1));
  Steps(worker, job, 1, 10);
  FailOver({&worker});
  Steps(worker, job, 11, 30);
  Steps(worker, job, 1, 4);
  FailOver({&worker});
  EXPECT_EQ(stepping(), 0);
  Steps(worker, job, 5, 7);
  EXPECT_NEAR(stepping(), 0.2, 1e-9);
}

TEST_F(TalliesTest, EpochsAfterAChargedRestartCountWhoeverLeads) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(Restartable(1, 1));
  Steps(worker, job, 1, 10);
  h.Say(worker, worker.Exit(job, 0, 0, 9));
  worker.steps.clear();
  h.Advance(seconds(1));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  Steps(worker, job, 1, 20);
  Steps(worker, job, 1, 5);
  FailOver({&worker});
  Steps(worker, job, 6, 8);
  EXPECT_NEAR(stepping(), 0.2, 1e-9);
}

TEST_F(TalliesTest, StepsWhileASessionIsAwayCount) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(MakeSpec(1, 1));
  Steps(worker, job, 1, 10);
  h.Disconnect(worker);
  h.Advance(seconds(3));
  worker.steps[0] = 40;
  h.Connect(worker);
  Report(worker, job, 40);
  EXPECT_NEAR(stepping(), 4, 1e-9);
}

TEST_F(TalliesTest, RanksThatLiveOnFromAnEarlierStepRepeatIt) {
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  FakeWorker& third = h.AddWorker("node3");
  for (FakeWorker* worker : {&first, &second, &third}) worker->in_process = true;
  v1::JobSpec spec = Restartable(2, 1);
  spec.set_max_nodes(3);
  const std::string job = h.Submit(spec);
  h.Advance(seconds(3));
  ASSERT_EQ(h.job(job).world_size(), 3u);
  for (int64_t step = 1; step <= 20; ++step) {
    Report(first, job, step, 0);
    Report(second, job, step, 1);
    h.Advance(seconds(1));
  }
  ASSERT_EQ(h.job(job).generation(), 1u);
  third.deaf = true;
  h.Disconnect(third);
  h.Advance(seconds(10));
  ASSERT_EQ(h.job(job).generation(), 2u);
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  const double before = stepping();
  for (int64_t step = 16; step <= 20; ++step) {
    Report(first, job, step, 0);
    Report(second, job, step, 1);
    h.Advance(seconds(1));
  }
  EXPECT_EQ(stepping(), before);
}

TEST_F(TalliesTest, AChangeOfTheLeaderStartsNoRanks) {
  FakeWorker& worker = h.AddWorker("node1");
  h.Submit(MakeSpec(1, 2));
  h.Advance(hours(1));
  EXPECT_EQ(h.machine().Measure().tallies.start().count(), 1u);
  FailOver({&worker});
  h.Advance(seconds(10));
  EXPECT_EQ(h.machine().Measure().tallies.start().count(), 0u);
}

TEST_F(TalliesTest, AWaitThatBeganUnderAnotherLeaderIsWhole) {
  const std::string job = h.Submit(MakeSpec(1, 1));
  h.Advance(seconds(50));
  h.StartCoordinator();
  h.Advance(seconds(7));
  h.AddWorker("node1");
  h.Advance(seconds(5));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(waits().count(), 1u);
  EXPECT_GE(waits().sum(), 57);
  EXPECT_LE(waits().sum(), 63);
}

TEST_F(TalliesTest, OnlyTheFirstPlacementEndsAWaitInTheQueue) {
  FakeWorker& worker = h.AddWorker("node1", 2);
  const std::string job = h.Submit(Restartable(1, 2));
  for (int i = 0; i < 3; ++i) {
    h.Say(worker, worker.Exit(job, 0, 3));
    h.Advance(seconds(120));
  }
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  v1::JobSpec urgent = MakeSpec(1, 2);
  urgent.set_priority(1);
  const std::string other = h.Submit(urgent);
  h.Advance(seconds(60));
  FailOver({&worker});
  h.Say(worker, worker.ExitAll(other, 0));
  h.Advance(seconds(5));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(waits().count(), 0u) << "preempted and placed again, under this leader";
  EXPECT_EQ(waits().sum(), 0);
}

TEST_F(TalliesTest, AHeldJobWaitsFromItsReleaseOn) {
  FakeWorker& worker = h.AddWorker("node1", 1);
  const std::string first = h.Submit(MakeSpec(1, 1));
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.set_hold(true);
  const std::string job = h.Submit(spec);
  h.Advance(seconds(100));
  v1::StateEvent event;
  event.mutable_update_job()->set_job_id(job);
  event.mutable_update_job()->set_hold(false);
  h.Call(event);
  h.Advance(seconds(20));
  FailOver({&worker});
  h.Advance(seconds(10));
  h.Say(worker, worker.ExitAll(first, 0));
  h.Advance(seconds(5));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(waits().count(), 1u);
  EXPECT_NEAR(waits().sum(), 30, 6);
}

TEST_F(TalliesTest, TheQueueIsWaitedInUntilAPlacement) {
  const std::string job = h.Submit(MakeSpec(1, 1));
  h.Advance(seconds(30));
  h.AddWorker("node1");
  h.Advance(seconds(5));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  const Tallies tallies = h.machine().Measure().tallies;
  EXPECT_EQ(tallies.queue_wait().count(), 1u);
  EXPECT_GE(tallies.queue_wait().sum(), 29);
  EXPECT_LE(tallies.queue_wait().sum(), 36);
  EXPECT_EQ(tallies.prepare().count(), 1u);
  EXPECT_EQ(tallies.start().count(), 1u);
  EXPECT_EQ(tallies.committed(), 1u);
}

TEST_F(TalliesTest, GenerationsAreCountedByWhatEndedTheOneBefore) {
  FakeWorker& worker = h.AddWorker("node1");
  v1::JobSpec spec = MakeSpec(1, 2);
  spec.set_max_restarts(5);
  const std::string job = h.Submit(spec);
  h.Say(worker, worker.Exit(job, 0, 3));
  h.Advance(seconds(120));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  h.Say(worker, worker.Exit(job, 0, 0, 9));
  h.Advance(seconds(120));
  const Tallies tallies = h.machine().Measure().tallies;
  EXPECT_EQ(tallies.generations().at("first"), 1u);
  EXPECT_EQ(tallies.generations().at("rank_exited"), 1u);
  EXPECT_EQ(tallies.generations().at("rank_signaled"), 1u);
}

TEST_F(TalliesTest, EffectiveTimeIsBetweenReportsOfNewSteps) {
  FakeWorker& worker = h.AddWorker("node1");
  v1::JobSpec spec = MakeSpec(1, 2);
  spec.set_max_restarts(5);
  const std::string job = h.Submit(spec);
  h.Advance(seconds(10));
  // Nothing is known of the time before the first step.
  Report(worker, job, 1);
  EXPECT_EQ(stepping(), 0);
  h.Advance(seconds(4));
  Report(worker, job, 3);
  EXPECT_DOUBLE_EQ(stepping(), 8);
  // A hang: the same step again.
  h.Advance(seconds(6));
  Report(worker, job, 3);
  EXPECT_DOUBLE_EQ(stepping(), 8);
  h.Say(worker, worker.Exit(job, 0, 1));
  h.Advance(seconds(100));
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  // From a checkpoint at step 2: step 3 is done again, step 4 is new.
  Report(worker, job, 2);
  h.Advance(seconds(2));
  Report(worker, job, 3);
  EXPECT_DOUBLE_EQ(stepping(), 8);
  h.Advance(seconds(2));
  Report(worker, job, 4);
  EXPECT_DOUBLE_EQ(stepping(), 12);
  EXPECT_GT(h.machine().Measure().held_rank_seconds, 2 * (10 + 4 + 6 + 2 + 2));
}

TEST_F(TalliesTest, APauseIsNoTrainingAndTheStepAroundItIs) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(MakeSpec(1, 8));
  Report(worker, job, 1);
  // All ranks are paused, and one for which the others wait.
  for (const std::vector<int>& ranks : {std::vector<int>(), std::vector<int>{3}}) {
    const double before = stepping();
    const int64_t step = ranks.empty() ? 1 : 3;
    h.Advance(seconds(10));
    Report(worker, job, step + 1);
    EXPECT_DOUBLE_EQ(stepping() - before, 8 * 10);
    h.Advance(seconds(4));
    Signal(job, SIGSTOP, ranks);
    h.Advance(hours(1));
    Signal(job, SIGCONT, ranks);
    h.Advance(seconds(2));
    Signal(job, SIGSTOP);
    h.Advance(minutes(10));
    Signal(job, SIGCONT);
    h.Advance(seconds(5));
    Report(worker, job, step + 2);
    EXPECT_DOUBLE_EQ(stepping() - before, 8 * (10 + 4 + 2 + 5));
  }
  EXPECT_NEAR(h.machine().Measure().held_rank_seconds, 8 * 2 * (21 + 3600 + 600), 8);
}

TEST_F(TalliesTest, AStepThatIsHeardOfDuringAPauseCountsUntilThePause) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(MakeSpec(1, 2));
  Report(worker, job, 1);
  h.Advance(seconds(3));
  Signal(job, SIGSTOP);
  h.Advance(seconds(5));
  Report(worker, job, 2);
  EXPECT_DOUBLE_EQ(stepping(), 2 * 3);
  h.Advance(minutes(5));
  Signal(job, SIGCONT);
  h.Advance(seconds(4));
  Report(worker, job, 3);
  EXPECT_DOUBLE_EQ(stepping(), 2 * (3 + 4));
}

TEST_F(TalliesTest, APauseIsNoTrainingWhoeverLeads) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(MakeSpec(1, 8));
  Steps(worker, job, 1, 10);
  Signal(job, SIGSTOP);
  h.Advance(minutes(30));
  FailOver({&worker});
  h.Advance(minutes(30));
  Signal(job, SIGCONT);
  h.Advance(seconds(6));
  Report(worker, job, 11);
  EXPECT_DOUBLE_EQ(stepping(), 8 * 6);
  worker.steps[0] = 11;
  // The session ends during the pause.
  FailOver({&worker});
  Signal(job, SIGSTOP);
  h.Disconnect(worker);
  h.Advance(seconds(3));
  h.Connect(worker);
  h.Advance(minutes(10));
  Signal(job, SIGCONT);
  h.Advance(seconds(2));
  Report(worker, job, 12);
  EXPECT_DOUBLE_EQ(stepping(), 8 * 2);
}

TEST_F(TalliesTest, AHangThatEndsIsNoTraining) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = Hang(worker);
  const double before = stepping();
  Report(worker, job, 6);
  EXPECT_TRUE(h.HasEvent("StepsGoOn"));
  EXPECT_EQ(stepping(), before);
  h.Advance(seconds(3));
  Report(worker, job, 7);
  EXPECT_DOUBLE_EQ(stepping() - before, 8 * 3);
}

TEST_F(TalliesTest, AStepThatIsRepeatedDuringAHangDoesNotEndIt) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = Hang(worker);
  const double before = stepping();
  // A rank that is behind, and a session that begins anew.
  Report(worker, job, 5, 1);
  h.Disconnect(worker);
  h.Connect(worker);
  Report(worker, job, 5);
  h.Advance(minutes(20));
  Report(worker, job, 6);
  EXPECT_EQ(stepping(), before);
  h.Advance(seconds(3));
  Report(worker, job, 7);
  EXPECT_DOUBLE_EQ(stepping() - before, 8 * 3);
}

TEST_F(TalliesTest, APauseDuringAHangDoesNotMakeItTraining) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(MakeSpec(1, 8));
  Steps(worker, job, 1, 5);
  h.Advance(minutes(2));
  ASSERT_NE(h.job(job).hang(), "");
  const double before = stepping();
  // People stop the ranks to look at them.
  Signal(job, SIGSTOP);
  h.Advance(minutes(5));
  Signal(job, SIGCONT);
  EXPECT_EQ(h.job(job).hang(), "");
  Report(worker, job, 6);
  EXPECT_EQ(stepping(), before);
  h.Advance(seconds(3));
  Report(worker, job, 7);
  EXPECT_DOUBLE_EQ(stepping() - before, 8 * 3);
}

TEST_F(TalliesTest, AHangIsNoTrainingWhoeverLeads) {
  // The last step before the hang, or the first one after it, is what the next leader hears first.
  for (const int64_t said : {5, 6}) {
    FakeWorker& worker = h.AddWorker(fmt::format("node{}", said));
    const std::string job = Hang(worker);
    worker.steps[0] = said;
    FailOver({&worker});
    Report(worker, job, said);
    h.Advance(minutes(1));
    if (said == 5) Report(worker, job, 6);
    EXPECT_EQ(stepping(), 0) << said;
    h.Advance(seconds(3));
    Report(worker, job, 7);
    EXPECT_DOUBLE_EQ(stepping(), 8 * (said == 5 ? 3 : 63)) << said;
    h.Say(worker, worker.ExitAll(job, 0));
    h.Say(worker, {worker.Goodbye()});
  }
}

TEST_F(TalliesTest, AGenerationAfterAHangCountsFromItsFirstStepOn) {
  FakeWorker& worker = h.AddWorker("node1");
  v1::JobSpec spec = Restartable(1, 8);
  const std::string job = h.Submit(spec);
  Steps(worker, job, 1, 5);
  worker.steps.clear();
  h.Advance(minutes(20));
  ASSERT_TRUE(h.HasEvent("HangSuspected"));
  ASSERT_EQ(h.job(job).generation(), 2u);
  ASSERT_EQ(h.state(job), v1::JOB_STATE_RUNNING);
  const double before = stepping();
  Steps(worker, job, 4, 7);
  // Step 6 follows step 5, and step 7 follows it.
  EXPECT_NEAR(stepping() - before, 8 * 0.2, 1e-9);
}

TEST_F(TalliesTest, ARankThatCountsAnewInEachEpochLosesNothing) {
  FakeWorker& worker = h.AddWorker("node1");
  const std::string job = h.Submit(MakeSpec(1, 1));
  Report(worker, job, 9);
  h.Advance(seconds(1));
  Report(worker, job, 10);
  h.Advance(seconds(1));
  Report(worker, job, 1);
  h.Advance(seconds(1));
  Report(worker, job, 2);
  EXPECT_DOUBLE_EQ(stepping(), 3);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
