#include "coordinator/state_machine/departures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job whose only rank runs on node1; node2 is free.
class DeparturesTest : public ::testing::Test {
 protected:
  DeparturesTest() {
    context_.lease = std::chrono::seconds(5);
    AddNode("node1", 1);
    AddNode("node2", 2);
    v1::JobSpec spec;
    spec.set_name("train");
    job_ = &jobs_.Add(std::move(spec), "");
    job_->view.set_generation(1);
    job_->view.add_ranks()->set_state(v1::RANK_STATE_RUNNING);
    Member& member = job_->members.emplace_back();
    member.node_id = "node1";
    member.rank_count = 1;
    member.slots = 2;
    member.memory_bytes = 3;
    member.gpus = {1};
    job_->member_by_node["node1"] = 0;
    nodes_.Hold(*nodes_.Find("node1"), job_->id(), member.slots, member.memory_bytes, member.gpus);
  }
  void AddNode(const std::string& name, uint64_t session) {
    v1::Hello hello;
    hello.set_node_id(name);
    hello.set_name(name);
    hello.mutable_resources()->set_slots(8);
    ASSERT_TRUE(nodes_.Register(session, 1, hello).ok());
  }
  v1::Fence Fence(uint64_t generation) {
    v1::Fence fence;
    fence.set_job_id(job_->id());
    fence.set_generation(generation);
    return fence;
  }
  Node& node1() { return *nodes_.Find("node1"); }
  size_t CandidateCount(std::string* waits) { return departures_.Candidates(*job_, waits).size(); }

  Context context_;
  NodeTable nodes_{context_};
  JobTable jobs_{context_};
  Departures departures_{context_, nodes_, jobs_};
  Job* job_ = nullptr;
};

TEST_F(DeparturesTest, AMemberHoldsWhatItHasUntilItsHostSaysThatItHasEnded) {
  departures_.Leave(*job_, job_->members[0], MemberEnd::kToldToEnd);
  EXPECT_EQ(node1().record.slots_used(), 2u);
  EXPECT_EQ(node1().record.memory_used_bytes(), 3u);
  EXPECT_THAT(node1().record.gpus_used(), ElementsAre(1));
  EXPECT_THAT(departures_.TakeChanged(), IsEmpty());
  EXPECT_FALSE(departures_.OnEnded(node1(), Fence(0))) << "an earlier generation has ended";
  EXPECT_TRUE(departures_.OnEnded(node1(), Fence(1)));
  EXPECT_EQ(node1().record.slots_used(), 0u);
  EXPECT_EQ(node1().record.memory_used_bytes(), 0u);
  EXPECT_THAT(node1().record.gpus_used(), IsEmpty());
  EXPECT_THAT(job_->leaving, IsEmpty());
  EXPECT_THAT(departures_.TakeChanged(), ElementsAre(job_->id()));
  EXPECT_THAT(departures_.TakeChanged(), IsEmpty());
}

TEST_F(DeparturesTest, NoOtherNodeIsUsedWhileRanksMayCompute) {
  std::string waits;
  EXPECT_EQ(CandidateCount(&waits), 2u);
  departures_.Leave(*job_, job_->members[0], MemberEnd::kToldToEnd);
  EXPECT_EQ(CandidateCount(&waits), 1u);
  EXPECT_THAT(waits, HasSubstr("node1, which is told to end them"));
  job_->view.mutable_spec()->set_replace_at_once(true);
  EXPECT_EQ(CandidateCount(&waits), 2u);
  EXPECT_EQ(waits, "");
}

TEST_F(DeparturesTest, RanksThatSaidHowTheyEndedComputeNothing) {
  job_->view.mutable_ranks(0)->set_state(v1::RANK_STATE_EXITED);
  departures_.Leave(*job_, job_->members[0], MemberEnd::kToldToEnd);
  EXPECT_FALSE(departures_.MayCompute(job_->leaving[0]));
  std::string waits;
  EXPECT_EQ(CandidateCount(&waits), 2u);
}

TEST_F(DeparturesTest, AMemberThatDoesNotEndInTimeIsStuck) {
  departures_.Leave(*job_, job_->members[0], MemberEnd::kToldToEnd);
  ASSERT_TRUE(departures_.NextDeadline().has_value());
  context_.now = *departures_.NextDeadline();
  departures_.ExpireDue();
  ASSERT_EQ(job_->leaving.size(), 1u);
  EXPECT_TRUE(job_->leaving[0].stuck);
  EXPECT_FALSE(departures_.MayCompute(job_->leaving[0]));
  EXPECT_THAT(node1().record.drain_reason(), HasSubstr("do not end"));
  EXPECT_EQ(node1().record.slots_used(), 2u);
  EXPECT_EQ(node1().record.memory_used_bytes(), 3u);
  EXPECT_FALSE(departures_.NextDeadline().has_value());
}

}  // namespace
}  // namespace meshrun::coordinator::testing
