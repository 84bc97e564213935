#include "coordinator/state_machine/restart_budget.h"

#include <gtest/gtest.h>

#include "core/exit_codes.h"

namespace meshrun::coordinator::testing {
namespace {

// A job in its first generation, which has failed.
Job Failed(uint32_t max_restarts, v1::FailureCause cause = v1::FAILURE_CAUSE_RANK_SIGNALED) {
  Job job;
  job.view.set_job_id("train-1");
  job.view.mutable_spec()->set_max_restarts(max_restarts);
  job.view.set_generation(1);
  v1::Failure& failure = *job.view.mutable_failure();
  failure.set_generation(1);
  failure.set_cause(cause);
  failure.set_message("it died");
  return job;
}

void Commit(Job& job, int64_t step) { job.view.add_checkpoints()->set_step(step); }

TEST(RestartBudgetTest, EachFailureIsChargedUntilNoneIsLeft) {
  Job job = Failed(2);
  RestartBudget budget(job, SteadyNanos(0));
  EXPECT_TRUE(budget.MayRestart());
  EXPECT_EQ(budget.Charge(), "restart 1 of 2 after: it died");
  EXPECT_TRUE(budget.MayRestart());
  EXPECT_EQ(budget.Charge(), "restart 2 of 2 after: it died");
  EXPECT_FALSE(budget.MayRestart());
  EXPECT_EQ(job.view.restarts(), 2u);
  EXPECT_FALSE(budget.LacksProgress()) << "it reports no steps";
}

TEST(RestartBudgetTest, APlannedEndIsFreeWhereTheJobMayRunAgain) {
  Job job = Failed(1, v1::FAILURE_CAUSE_NODE_LOST);
  job.view.mutable_failure()->set_planned(true);
  job.view.set_restarts_charged(1);
  RestartBudget budget(job, SteadyNanos(0));
  EXPECT_TRUE(budget.MayRestart());
  EXPECT_EQ(budget.Charge(), "restart at no charge after: it died");
  EXPECT_EQ(job.view.restarts(), 0u);
  job.view.mutable_spec()->set_max_restarts(0);
  EXPECT_FALSE(budget.MayRestart());
  job.view.mutable_failure()->set_cause(v1::FAILURE_CAUSE_MOVED);
  EXPECT_TRUE(budget.MayRestart());
}

TEST(RestartBudgetTest, ACheckpointRefillsTheBudget) {
  Job job = Failed(1);
  RestartBudget budget(job, SteadyNanos(0));
  budget.Charge();
  EXPECT_FALSE(budget.MayRestart());
  Commit(job, 5);
  EXPECT_TRUE(budget.MayRestart());
  EXPECT_EQ(budget.Charge(), "restart 1 of 1 after: it died");
  EXPECT_EQ(job.checkpoint_at_failure(), 5);
  EXPECT_FALSE(budget.MayRestart()) << "the same checkpoint counts once";
}

TEST(RestartBudgetTest, ALongRunWithAStepRefillsTheBudget) {
  Job job = Failed(1);
  job.view.set_restarts_charged(1);
  job.view.mutable_progress()->set_step(3);
  job.running_since = SteadyNanos(0);
  EXPECT_FALSE(RestartBudget(job, std::chrono::minutes(9)).MayRestart());
  EXPECT_TRUE(RestartBudget(job, std::chrono::minutes(10)).MayRestart());
}

TEST(RestartBudgetTest, TheThirdFailureWithoutAStepEndsTheJob) {
  Job job = Failed(9);
  job.view.mutable_progress()->set_step(4);
  RestartBudget budget(job, SteadyNanos(0));
  budget.Charge();
  EXPECT_EQ(job.record.progress_step(), 4);
  EXPECT_EQ(job.record.failures_without_progress(), 0u) << "step 4 was progress";
  budget.Charge();
  EXPECT_FALSE(budget.LacksProgress());
  budget.Charge();
  EXPECT_TRUE(budget.LacksProgress());
  EXPECT_FALSE(budget.MayRestart());
  job.record.set_step_beyond(5);
  EXPECT_FALSE(budget.LacksProgress());
  EXPECT_TRUE(budget.MayRestart());
}

TEST(RestartBudgetTest, ALossWithoutAStepIsNoProgress) {
  Job job = Failed(9);
  job.record.set_progress_step(-1);
  job.former_progress.emplace().set_loss(0.5);
  RestartBudget(job, SteadyNanos(0)).Charge();
  EXPECT_EQ(job.record.progress_step(), -1);
}

// Else a job that fails at steps 10, 5, 10, 5 would make progress with every second failure, and
// never end.
TEST(RestartBudgetTest, OnlyAStepBeyondTheHighestOneIsProgress) {
  Job job = Failed(9);
  RestartBudget budget(job, SteadyNanos(0));
  const auto fail_at = [&](int64_t step) {
    job.view.mutable_progress()->set_step(step);
    budget.Charge();
  };
  fail_at(10);
  EXPECT_EQ(job.record.failures_without_progress(), 0u);
  fail_at(5);
  EXPECT_EQ(job.record.progress_step(), 10);
  EXPECT_EQ(job.record.failures_without_progress(), 1u);
  fail_at(10);
  EXPECT_EQ(job.record.progress_step(), 10);
  EXPECT_EQ(job.record.failures_without_progress(), 2u);
  job.view.mutable_progress()->set_step(5);
  EXPECT_TRUE(budget.LacksProgress());
  EXPECT_FALSE(budget.MayRestart());
  // A generation that fails before its first step is not progress either.
  job.view.clear_progress();
  EXPECT_TRUE(budget.LacksProgress());
  job.view.mutable_progress()->set_step(11);
  EXPECT_FALSE(budget.LacksProgress());
}

TEST(RestartBudgetTest, SomeEndsAreFollowedByNothing) {
  Job finished = Failed(3);
  finished.record.set_finished_generation(1);
  EXPECT_FALSE(RestartBudget(finished, SteadyNanos(0)).MayRestart());
  Job refuses = Failed(3, v1::FAILURE_CAUSE_RANK_EXITED);
  refuses.view.mutable_failure()->mutable_exit()->set_exit_code(kExitDoNotRequeue);
  EXPECT_FALSE(RestartBudget(refuses, SteadyNanos(0)).MayRestart());
  refuses.view.mutable_failure()->mutable_exit()->set_exit_code(1);
  EXPECT_TRUE(RestartBudget(refuses, SteadyNanos(0)).MayRestart());
}

}  // namespace
}  // namespace meshrun::coordinator::testing
