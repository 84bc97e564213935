// What members hold of their nodes' memory: it is held once, through every change of generation and
// every restart of the coordinator, until their processes have ended.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>

#include "tests/coordinator/state_machine/continuation_fixture.h"

namespace meshrun::coordinator::testing {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
// A rank of these jobs asks for so much; a node has 16 GiB.
constexpr uint64_t kOfRank = 5 * kGiB;

class MemberMemoryTest : public ContinuationTest {
 protected:
  v1::JobSpec Spec(uint32_t min_nodes, uint32_t max_nodes, uint32_t procs = 1) {
    v1::JobSpec spec = Elastic(min_nodes, max_nodes, procs);
    spec.set_memory_bytes(kOfRank);
    return spec;
  }
  uint64_t Used(const FakeWorker& worker) const { return h.node(worker).memory_used_bytes(); }
};

TEST_F(MemberMemoryTest, AJobThatGrowsHoldsTheMemoryOfEachNodeOnce) {
  FakeWorker& first = Add("node1");
  v1::JobSpec spec = Spec(1, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  ASSERT_EQ(Used(first), kOfRank);
  FakeWorker& second = Add("node2");
  ASSERT_EQ(h.job(id).world_size(), 2u) << h.job(id).reason();
  EXPECT_EQ(Used(first), kOfRank);
  EXPECT_EQ(Used(second), kOfRank);
  // Other jobs get what is left, and no more.
  v1::JobSpec beside = MakeSpec(1, 1);
  beside.set_memory_bytes(11 * kGiB);
  const std::string fits = h.Submit(beside);
  EXPECT_EQ(h.state(fits), v1::JOB_STATE_RUNNING) << h.job(fits).reason();
  beside.set_memory_bytes(12 * kGiB);
  const std::string waits = h.Submit(beside);
  EXPECT_EQ(h.state(waits), v1::JOB_STATE_QUEUED);
  for (const std::string& job_id : {waits, fits, id}) h.Cancel(job_id);
  EXPECT_EQ(Used(first), 0u);
  EXPECT_EQ(Used(second), 0u);
}

// The plan for a larger generation comes to nothing.
TEST_F(MemberMemoryTest, ANodeWithTooLittleMemoryLeavesTheJobAsItIs) {
  FakeWorker& first = Add("node1");
  first.quiesces = false;
  v1::JobSpec spec = Spec(1, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  FakeWorker::Options options;
  options.name = "node2";
  options.memory_bytes = kOfRank - 1;
  const FakeWorker& second = h.AddWorkerWith(options);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(Count(first, &v1::OpenSessionResponse::has_quiesce), 0);
  EXPECT_EQ(Used(first), kOfRank);
  EXPECT_EQ(Used(second), 0u);
}

TEST_F(MemberMemoryTest, ARankThatIsStartedAnewBesideTheOthersHoldsNoMoreThanBefore) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  const std::string id = Run(Spec(2, 2, 2));
  h.Say(second, second.Exit(id, 3, 0, SIGKILL));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  ASSERT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(Used(first), 2 * kOfRank);
  EXPECT_EQ(Used(second), 2 * kOfRank);
  h.Cancel(id);
  EXPECT_EQ(Used(first), 0u);
  EXPECT_EQ(Used(second), 0u);
}

TEST_F(MemberMemoryTest, ARestartedCoordinatorKnowsWhatARunningJobHolds) {
  FakeWorker& worker = Add("node1");
  const std::string id = Run(Spec(1, 1));
  h.StartCoordinator();
  EXPECT_EQ(Used(worker), kOfRank);
  h.Connect(worker);
  EXPECT_EQ(Used(worker), kOfRank);
  h.Cancel(id);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_CANCELLED) << h.job(id).reason();
  EXPECT_EQ(Used(worker), 0u);
}

// The row of the lost member is one of the job's last generation.
TEST_F(MemberMemoryTest, ARestartedCoordinatorKnowsWhatALostNodeHolds) {
  FakeWorker& lost = Add("node1");
  const std::string id = Run(Spec(1, 1));
  Lose(lost);
  h.Advance(seconds(40));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_WAITING) << h.job(id).reason();
  EXPECT_EQ(Used(lost), kOfRank);
  h.StartCoordinator();
  EXPECT_EQ(Used(lost), kOfRank);
  lost.deaf = false;
  h.Connect(lost);
  // Its ranks have ended, and the next generation's hold as much.
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(Used(lost), kOfRank);
}

// The row of the lost member is one of an earlier generation, which the job has left behind.
TEST_F(MemberMemoryTest, ARestartedCoordinatorKnowsWhatANodeOfAnEarlierGenerationHolds) {
  FakeWorker& stays = Add("node1");
  FakeWorker& lost = Add("node2");
  Add("node3");
  const std::string id = Run(Spec(2, 3));
  Lose(lost);
  h.Advance(seconds(6));
  ASSERT_EQ(h.job(id).generation(), 2u) << h.job(id).reason();
  EXPECT_EQ(Used(stays), kOfRank);
  EXPECT_EQ(Used(lost), kOfRank);
  h.StartCoordinator();
  EXPECT_EQ(Used(stays), kOfRank);
  EXPECT_EQ(Used(lost), kOfRank);
  lost.deaf = false;
  h.Connect(lost);
  EXPECT_EQ(Used(lost), 0u);
}

}  // namespace
}  // namespace meshrun::coordinator::testing
