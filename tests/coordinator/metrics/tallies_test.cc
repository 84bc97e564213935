#include "coordinator/state_machine/tallies.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

class TalliesTest : public ::testing::Test {
 protected:
  // A report of a step from a rank of the job.
  void Report(FakeWorker& worker, const std::string& job, int64_t step, int rank = 0) {
    v1::OpenSessionRequest message = worker.Message({job, h.job(job).generation()});
    (*message.mutable_progress_report()->mutable_progress())[rank].set_step(step);
    h.Say(worker, {message});
  }
  double stepping() { return h.machine().Measure().tallies.stepping_rank_seconds(); }

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
