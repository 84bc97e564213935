#include "coordinator/state_machine/job_phase.h"

#include <gtest/gtest.h>

#include <set>

namespace meshrun::coordinator::testing {
namespace {

bool HasEnded(JobPhase phase) {
  return phase == JobPhase::kSucceeded || phase == JobPhase::kFailed ||
         phase == JobPhase::kCancelled;
}

// Phases that follow this one, by any number of changes.
std::set<JobPhase> ReachableFrom(JobPhase start) {
  std::set<JobPhase> reached = {start};
  for (size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const PhaseChange& change : kPhaseChanges) {
      if (reached.contains(change.from)) reached.insert(change.to);
    }
  }
  return reached;
}

TEST(JobPhaseTest, APhaseIsReadAsItWasWritten) {
  for (const PhaseOnDisk& row : kPhases) {
    v1::JobRecord record;
    record.set_survivors_wait(row.survivors_wait);
    record.set_quiesce_asked(row.quiesce_asked);
    EXPECT_EQ(PhaseOf(row.state, record), row.phase) << row.name;
    EXPECT_EQ(OnDisk(row.phase).state, row.state) << row.name;
  }
}

TEST(JobPhaseTest, FlagsCountOnlyWhereAPhaseHasThem) {
  v1::JobRecord record;
  record.set_survivors_wait(true);
  record.set_quiesce_asked(true);
  EXPECT_EQ(PhaseOf(v1::JOB_STATE_WAITING, record), JobPhase::kWaiting);
  EXPECT_EQ(PhaseOf(v1::JOB_STATE_FAILED, record), JobPhase::kFailed);
  EXPECT_EQ(PhaseOf(v1::JOB_STATE_RUNNING, record), JobPhase::kFinishing);
  record.set_survivors_wait(false);
  EXPECT_EQ(PhaseOf(v1::JOB_STATE_QUIESCING, record), JobPhase::kStopping);
}

TEST(JobPhaseTest, TheTableNamesEachChangeOnce) {
  std::set<std::pair<JobPhase, JobPhase>> known;
  for (const PhaseChange& change : kPhaseChanges) {
    EXPECT_TRUE(known.insert({change.from, change.to}).second)
        << OnDisk(change.from).name << " to " << OnDisk(change.to).name;
    EXPECT_NE(change.from, change.to) << OnDisk(change.from).name;
    EXPECT_TRUE(MayFollow(change.from, change.to));
  }
}

TEST(JobPhaseTest, AnEndedJobStaysAsItIs) {
  for (const PhaseChange& change : kPhaseChanges) {
    EXPECT_FALSE(HasEnded(change.from)) << change.when;
    EXPECT_NE(change.to, JobPhase::kNew) << change.when;
  }
}

TEST(JobPhaseTest, EveryPhaseIsReachedAndComesToAnEnd) {
  const std::set<JobPhase> reached = ReachableFrom(JobPhase::kNew);
  for (const PhaseOnDisk& row : kPhases) {
    // No job is suspended yet.
    if (row.phase == JobPhase::kSuspended) continue;
    EXPECT_TRUE(reached.contains(row.phase)) << row.name;
    const std::set<JobPhase> next = ReachableFrom(row.phase);
    EXPECT_TRUE(HasEnded(row.phase) ||
                (next.contains(JobPhase::kSucceeded) && next.contains(JobPhase::kFailed) &&
                 next.contains(JobPhase::kCancelled)))
        << row.name;
  }
}

TEST(JobPhaseTest, RanksThatAreStoppedNeitherGoOnNorRunAgain) {
  for (const JobPhase to : {JobPhase::kRunning, JobPhase::kFinishing, JobPhase::kSurvivorsWait,
                            JobPhase::kAskedToQuiesce, JobPhase::kAdmitted, JobPhase::kQueued}) {
    EXPECT_FALSE(MayFollow(JobPhase::kStopping, to)) << OnDisk(to).name;
  }
}

TEST(JobPhaseTest, RanksThatFinishAreNotAskedAgain) {
  EXPECT_FALSE(MayFollow(JobPhase::kFinishing, JobPhase::kAskedToQuiesce));
  EXPECT_FALSE(MayFollow(JobPhase::kFinishing, JobPhase::kSurvivorsWait));
  EXPECT_FALSE(MayFollow(JobPhase::kFinishing, JobPhase::kAdmitted));
}

TEST(JobPhaseTest, OnlyRanksThatRunAreAskedToStandStill) {
  for (const PhaseOnDisk& row : kPhases) {
    EXPECT_EQ(MayFollow(row.phase, JobPhase::kAskedToQuiesce), row.phase == JobPhase::kRunning)
        << row.name;
  }
}

TEST(JobPhaseTest, AGenerationIsPreparedBeforeItRuns) {
  EXPECT_FALSE(MayFollow(JobPhase::kQueued, JobPhase::kRendezvous));
  EXPECT_FALSE(MayFollow(JobPhase::kQueued, JobPhase::kRunning));
  EXPECT_FALSE(MayFollow(JobPhase::kAdmitted, JobPhase::kRunning));
  EXPECT_FALSE(MayFollow(JobPhase::kAskedToQuiesce, JobPhase::kRendezvous));
  EXPECT_TRUE(MayFollow(JobPhase::kAskedToQuiesce, JobPhase::kAdmitted));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
