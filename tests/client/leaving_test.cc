#include "client/cli/leaving.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace meshrun::client {
namespace {

using ::testing::HasSubstr;

v1::Job JobOn(v1::JobState state, const std::vector<std::string>& nodes) {
  v1::Job job;
  job.set_job_id("train-k3x9");
  job.set_state(state);
  job.set_world_size(static_cast<uint32_t>(nodes.size()));
  for (const std::string& node : nodes) job.add_ranks()->set_node_name(node);
  return job;
}

TEST(LeavingTest, ARunHasLeftWhereTheJobGoesOnOrEndsWithoutIt) {
  for (const v1::JobState state :
       {v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_CANCELLED}) {
    EXPECT_TRUE(CheckHasLeft("node1", JobOn(state, {"node0"})).ok()) << state;
    EXPECT_FALSE(CheckHasLeft("node1", JobOn(state, {"node0", "node1"})).ok()) << state;
  }
  // The ranks of its last generation.
  EXPECT_TRUE(CheckHasLeft("node1", JobOn(v1::JOB_STATE_WAITING, {"node0", "node1"})).ok());
  EXPECT_TRUE(CheckHasLeft("node1", JobOn(v1::JOB_STATE_QUEUED, {})).ok());
}

TEST(LeavingTest, ItIsSaidHowARunHasEndedInAnotherWay) {
  const auto why = [](v1::JobState state) {
    return std::string(CheckHasLeft("node1", JobOn(state, {"node0", "node1"})).message());
  };
  EXPECT_EQ(why(v1::JOB_STATE_SUCCEEDED), "train-k3x9 ended before node1 had left it: SUCCEEDED");
  EXPECT_EQ(why(v1::JOB_STATE_RUNNING),
            "the 'meshrun run' of train-k3x9 ended before node1 had left it");
}

TEST(LeavingTest, TheLineSaysHowTheJobGoesOn) {
  EXPECT_THAT(HasLeftLine("node1", JobOn(v1::JOB_STATE_RUNNING, {"node0"})),
              HasSubstr("which goes on with 1 rank"));
  EXPECT_THAT(HasLeftLine("node1", JobOn(v1::JOB_STATE_QUEUED, {})), HasSubstr("which is QUEUED"));
  EXPECT_THAT(HasLeftLine("node1", JobOn(v1::JOB_STATE_FAILED, {})), HasSubstr("which is FAILED"));
}

}  // namespace
}  // namespace meshrun::client
