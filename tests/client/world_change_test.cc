#include "client/render/world_change.h"

#include <gtest/gtest.h>

namespace meshrun::client {
namespace {

v1::Job Running(uint64_t generation, const std::vector<std::string>& nodes) {
  v1::Job job;
  job.set_job_id("geoid");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_generation(generation);
  job.set_world_size(nodes.size());
  for (const std::string& node : nodes) job.add_ranks()->set_node_name(node);
  return job;
}

v1::Job Stopping(uint64_t generation, const std::string& reason) {
  v1::Job job = Running(generation, {"a"});
  job.set_state(v1::JOB_STATE_QUIESCING);
  job.set_reason(reason);
  return job;
}

TEST(WorldChangesTest, TheFirstWorldAndARestartOnTheSameNodesAreNoChange) {
  WorldChanges changes;
  EXPECT_EQ(changes.Update(Running(1, {"a", "b"})), "");
  EXPECT_EQ(changes.Update(Running(1, {"a", "b"})), "");
  EXPECT_EQ(changes.Update(Stopping(1, "rank 0 exited with code 1")), "");
  EXPECT_EQ(changes.Update(Running(2, {"a", "b"})), "");
}

TEST(WorldChangesTest, ALostNodeIsNamedWithTheReason) {
  WorldChanges changes;
  changes.Update(Running(1, {"a", "b", "b"}));
  changes.Update(Stopping(1, "b is lost: it was silent for 5s"));
  EXPECT_EQ(changes.Update(Running(2, {"a"})),
            "geoid: 1 rank now, 3 before; b is gone: b is lost: it was silent for 5s");
}

TEST(WorldChangesTest, NodesThatComeAreNamed) {
  WorldChanges changes;
  changes.Update(Running(1, {"a"}));
  changes.Update(Stopping(1, "grows from 1 to 3 ranks"));
  EXPECT_EQ(changes.Update(Running(2, {"a", "b", "c"})),
            "geoid: 3 ranks now, 1 before; b, c joined");
  EXPECT_EQ(changes.Update(Running(3, {"a", "d", "c"})),
            "geoid: 3 ranks now, 3 before; b is gone; d joined");
}

}  // namespace
}  // namespace meshrun::client
