// What a job has learned is durable: a coordinator's restart changes no decision. Each test decides
// something after a restart that would go otherwise if it were forgotten.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/coordinator/state_machine/continuation_fixture.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DurabilityTest : public ContinuationTest {
 protected:
  void Restart(const std::vector<FakeWorker*>& workers) {
    h.StartCoordinator();
    for (FakeWorker* const worker : workers) h.Connect(*worker);
  }
};

TEST_F(DurabilityTest, ACheckpointThatWasAskedForIsAskedForAgain) {
  FakeWorker& worker = Add("node1");
  Add("node2");
  worker.quiesces = false;
  v1::JobSpec spec = Elastic(1, 1);
  const std::string id = Run(spec);
  v1::StateEvent drain;
  drain.mutable_drain_node()->set_node("node1");
  drain.mutable_drain_node()->mutable_deadline();
  h.Call(drain);
  ASSERT_TRUE(worker.received.back().has_quiesce());
  ASSERT_TRUE(worker.received.back().quiesce().save());
  Restart({&worker});
  ASSERT_TRUE(worker.received.back().has_quiesce());
  EXPECT_TRUE(worker.received.back().quiesce().save());
}

TEST_F(DurabilityTest, RanksThatWereAskedToStandStillHaveTheirWholeTimeAfterARestart) {
  FakeWorker& worker = Add("node1");
  worker.quiesces = false;
  v1::JobSpec spec = Elastic(1, 2);
  spec.set_growth(v1::GROWTH_AT_ONCE);
  const std::string id = Run(spec);
  FakeWorker& other = Add("node2");
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  Restart({&worker, &other});
  h.Advance(seconds(59));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_QUIESCING) << "told 60 s";
  EXPECT_EQ(Count(worker, &v1::OpenSessionResponse::has_stop), 0);
  h.Advance(seconds(2));
  EXPECT_EQ(Count(worker, &v1::OpenSessionResponse::has_stop), 1);
}

// The survivors wait for the fence of the lost node, and the node that was to take its place goes.
TEST_F(DurabilityTest, RanksThatWereToldToEndDoNotGoOnAfterARestart) {
  FakeWorker& stays = Add("node1");
  FakeWorker& lost = Add("node2");
  FakeWorker& spare = Add("node3");
  const std::string id = Run(Elastic(2, 2));
  stays.stubborn = true;
  Lose(lost);
  h.Advance(seconds(10));
  ASSERT_THAT(h.job(id).reason(), HasSubstr("may still compute on node2"));
  h.Say(spare, {spare.Goodbye()});
  h.Advance(seconds(15));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  ASSERT_EQ(Count(stays, &v1::OpenSessionResponse::has_stop), 1);
  FakeWorker& late = Add("node4");
  stays.received.clear();
  Restart({&late, &stays});
  EXPECT_EQ(Count(stays, &v1::OpenSessionResponse::has_stop), 1) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 1u);
}

TEST_F(DurabilityTest, ANodeThatHasFailedTheJobTwiceIsAvoidedAfterARestart) {
  FakeWorker& bad = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_recovery(v1::RECOVERY_RESPAWN);
  spec.set_max_restarts(9);
  const std::string id = Run(spec);
  h.Say(bad, bad.Exit(id, 0, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  Restart({&bad});
  // It is the second one: counted over the restart.
  FakeWorker& good = Add("node2");
  h.Say(bad, bad.Exit(id, 0, 1));
  EXPECT_TRUE(h.HasEvent("NodeAvoided"));
  h.Advance(seconds(5));
  EXPECT_TRUE(good.Carries(id)) << h.job(id).reason();
  // And it is avoided still after another one, although it comes first among those that are left.
  Restart({&bad, &good});
  FakeWorker& spare = Add("node3");
  h.Say(good, {good.Goodbye()});
  h.Advance(seconds(30));
  EXPECT_TRUE(spare.Carries(id)) << h.job(id).reason();
  EXPECT_FALSE(bad.Carries(id));
}

// It would do so on any other.
TEST_F(DurabilityTest, AJobThatHasUsedUpItsMemoryBlamesNoNode) {
  FakeWorker& node = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_recovery(v1::RECOVERY_RESPAWN);
  spec.set_max_restarts(3);
  const std::string id = Run(spec);
  FakeWorker& other = Add("node2");
  for (int i = 0; i < 3; ++i) {
    auto exit = node.Exit(id, 0, 0, SIGKILL);
    exit.front().mutable_rank_exit()->set_out_of_memory(true);
    h.Say(node, exit);
    h.Advance(seconds(5));
    ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  }
  EXPECT_FALSE(h.HasEvent("NodeAvoided"));
  EXPECT_FALSE(other.Carries(id));
  EXPECT_EQ(h.job(id).restarts_charged(), 3u);
}

TEST_F(DurabilityTest, ACheckpointLetsTheJobGrowAlsoAfterARestart) {
  FakeWorker& worker = Add("node1");
  const std::string id = Run(Elastic(1, 2, 8));
  const std::string waits = h.Submit(MakeSpec(2, 8));
  FakeWorker& other = Add("node2");
  // Growth has to wait for the job in the queue.
  ASSERT_TRUE(Commit(id, 1, 10, std::nullopt).ok());
  ASSERT_EQ(h.job(id).world_size(), 8u);
  Restart({&worker, &other});
  h.Cancel(waits);
  EXPECT_EQ(h.job(id).world_size(), 16u) << h.job(id).reason();
  EXPECT_TRUE(other.Carries(id));
}

TEST_F(DurabilityTest, ACheckpointThatWasUsedToGrowIsNotUsedAgainAfterARestart) {
  FakeWorker& worker = Add("node1");
  const std::string id = Run(Elastic(1, 2, 8));
  // There was no room.
  ASSERT_TRUE(Commit(id, 1, 10, std::nullopt).ok());
  Restart({&worker});
  Add("node2");
  EXPECT_EQ(h.job(id).world_size(), 8u);
}

TEST_F(DurabilityTest, HostsThatCouldNotPrepareAreLeftOutAfterARestartToo) {
  FakeWorker& first = Add("node1");
  FakeWorker& second = Add("node2");
  first.prepare_error = "no free port";
  second.deaf = true;
  const std::string id = h.Submit(MakeSpec(1, 1));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS) << "on node2";
  second.deaf = false;
  first.prepare_error.clear();
  Restart({&first, &second});
  EXPECT_THAT(second.Running(id), ElementsAre(0)) << h.job(id).reason();
}

TEST_F(DurabilityTest, LossesDuringRendezvousAreCountedOverRestarts) {
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.set_hold(true);
  const std::string id = h.Submit(spec);
  const auto hold = [&](bool held) {
    v1::StateEvent event;
    event.mutable_update_job()->set_job_id(id);
    event.mutable_update_job()->set_hold(held);
    h.Call(std::move(event));
  };
  for (int i = 0; i < 5; ++i) {
    ASSERT_NE(h.state(id), v1::JOB_STATE_FAILED) << i;
    hold(true);
    h.StartCoordinator();
    h.Advance(seconds(6));
    FakeWorker& worker = Add("node" + std::to_string(i));
    worker.deaf = true;
    hold(false);
    ASSERT_EQ(h.state(id), v1::JOB_STATE_RENDEZVOUS) << h.job(id).reason();
    h.Say(worker, {worker.Goodbye()});
  }
  EXPECT_EQ(h.state(id), v1::JOB_STATE_FAILED);
  EXPECT_THAT(h.job(id).failure().message(), HasSubstr("5 nodes in a row"));
}

TEST_F(DurabilityTest, ABackoffIsNotCutShortByARestart) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_recovery(v1::RECOVERY_RESPAWN);
  spec.set_max_restarts(20);
  const std::string id = Run(spec);
  for (int i = 0; i < 5; ++i) {
    h.Say(worker, worker.Exit(id, 0, 1));
    if (i < 4) h.Advance(seconds(20));
  }
  ASSERT_EQ(h.state(id), v1::JOB_STATE_WAITING) << "8 s after the fifth failure in a row";
  Restart({&worker});
  h.Advance(seconds(2));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING);
  EXPECT_THAT(h.job(id).reason(), HasSubstr("starts again in"));
  h.Advance(seconds(10));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
}

TEST_F(DurabilityTest, ALongRunIsProgressAlsoOverARestart) {
  FakeWorker& worker = Add("node1");
  v1::JobSpec spec = Elastic(1, 1);
  spec.set_recovery(v1::RECOVERY_RESPAWN);
  spec.set_max_restarts(1);
  const std::string id = Run(spec);
  const auto report = [&](int64_t step) {
    v1::OpenSessionRequest message = worker.Message({id, h.job(id).generation()});
    (*message.mutable_progress_report()->mutable_progress())[0].set_step(step);
    h.Say(worker, {message});
  };
  report(10);
  h.Say(worker, worker.Exit(id, 0, 1));
  ASSERT_EQ(h.job(id).restarts_charged(), 1u);
  h.Advance(std::chrono::minutes(6));
  Restart({&worker});
  report(20);
  h.Advance(std::chrono::minutes(5));
  h.Say(worker, worker.Exit(id, 0, 1));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << "eleven minutes: " << h.job(id).reason();
}

TEST_F(DurabilityTest, AHostWhoseRanksHadAllEndedHoldsUpNobodyAfterARestart) {
  FakeWorker& worker = Add("node1");
  FakeWorker& spare = Add("node2");
  v1::JobSpec spec = Elastic(1, 1, 8);
  spec.set_recovery(v1::RECOVERY_RESPAWN);
  const std::string id = Run(spec);
  // All ranks said how they ended, and what they had started is left.
  worker.stubborn = true;
  FakeWorker::Requests exits = worker.ExitAll(id, 1);
  std::erase_if(exits, [](const auto& message) { return message.has_generation_ended(); });
  h.Say(worker, exits);
  h.Advance(seconds(20));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  worker.forgets = false;
  h.Disconnect(worker);
  h.Advance(seconds(16));
  // The session is gone at the deadline: leaving, exited, and no other host has to wait.
  h.StartCoordinator();
  h.Connect(spare);
  h.Advance(seconds(6));
  EXPECT_TRUE(spare.Carries(id)) << h.job(id).reason();
}

// Sets what has no value yet. Messages, lists and maps have one before.
void FillScalars(v1::JobRecord& record) {
  using google::protobuf::FieldDescriptor;
  const auto& reflection = *record.GetReflection();
  for (int i = 0; i < record.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = record.GetDescriptor()->field(i);
    if (field->is_repeated()) {
      EXPECT_GT(reflection.FieldSize(record, field), 0) << field->name();
      continue;
    }
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection.SetBool(&record, field, true);
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        reflection.SetInt32(&record, field, 3 + i);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        reflection.SetInt64(&record, field, 3 + i);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        reflection.SetUInt32(&record, field, 3 + i);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection.SetUInt64(&record, field, 3 + i);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        reflection.SetString(&record, field, field->name());
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        reflection.SetEnumValue(&record, field, 1);
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        EXPECT_TRUE(reflection.HasField(record, field)) << field->name();
        break;
      default:
        ADD_FAILURE() << "no value for " << field->name();
    }
  }
}

TEST_F(DurabilityTest, EveryFieldOfAJobsRecordSurvivesARestart) {
  v1::JobRecord record;
  record.mutable_job()->set_job_id("train-1");
  *record.mutable_job()->mutable_spec() = MakeSpec(1, 1);
  record.mutable_job()->set_state(v1::JOB_STATE_WAITING);
  (*record.mutable_failures_of_nodes())["id-node1"] = 2;
  record.add_avoided_nodes("id-node1");
  record.add_refusals()->set_node_id("id-node2");
  record.set_gpus_per_proc(2);
  record.add_env()->set_name("TOKEN");
  record.add_waits_for("ok:train-0");
  record.add_paused_ranks(1);
  record.mutable_longest_step()->set_seconds(7);
  record.mutable_held_time()->set_slot_seconds(7);
  record.mutable_held_time()->set_gpu_seconds(8);
  record.mutable_held_time()->mutable_as_of()->set_seconds(1000);
  record.mutable_not_before()->set_seconds(1030);
  // The first of active jobs alone, the second of jobs in the queue that are not held.
  record.mutable_generation_since();
  record.mutable_queued_since();
  FillScalars(record);
  // A job in the queue has no ranks that wait or are paused.
  record.clear_paused_ranks();
  record.set_survivors_wait(false);
  record.set_quiesce_asked(false);
  v1::StateEvent event;
  event.mutable_wall()->set_seconds(1000);
  event.mutable_restore()->set_term(7);
  event.mutable_restore()->mutable_lease()->set_seconds(5);
  v1::StateRow& row = *event.mutable_restore()->add_rows();
  row.set_table(v1::STATE_TABLE_JOBS);
  row.set_key("train-1");
  row.set_value(record.SerializeAsString());
  v1::JobRecord awaited;
  awaited.mutable_job()->set_job_id("train-0");
  *awaited.mutable_job()->mutable_spec() = MakeSpec(1, 1);
  awaited.mutable_job()->set_state(v1::JOB_STATE_QUEUED);
  awaited.set_submit_sequence(1000);
  v1::StateRow& other = *event.mutable_restore()->add_rows();
  other.set_table(v1::STATE_TABLE_JOBS);
  other.set_key("train-0");
  other.set_value(awaited.SerializeAsString());
  event.set_end_of_batch(true);
  StateMachine machine;
  EXPECT_TRUE(machine.Step(event).damage.ok());
  record.clear_job();
  record.clear_generation_since();
  record.clear_queued_since();
  const Job& job = machine.jobs().all().at("train-1");
  EXPECT_EQ(machine.jobs().RecordWithoutView(job).DebugString(), record.DebugString());
}

// The record as a coordinator before this one wrote it: without what was not durable then.
TEST_F(DurabilityTest, AStateOfAnEarlierCoordinatorIsTakenOver) {
  v1::StateEvent event;
  event.mutable_restore()->set_term(7);
  event.mutable_restore()->mutable_lease()->set_seconds(5);
  v1::JobRecord record;
  record.mutable_job()->set_job_id("train-1");
  *record.mutable_job()->mutable_spec() = MakeSpec(1, 1);
  record.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
  record.mutable_job()->set_generation(3);
  record.mutable_job()->set_world_size(1);
  record.set_submit_sequence(1);
  v1::MemberRecord member;
  member.set_node_id("id-node1");
  member.set_slots(1);
  member.add_ranks()->set_state(v1::RANK_STATE_RUNNING);
  v1::NodeRecord node;
  node.mutable_node()->set_node_id("id-node1");
  node.mutable_node()->set_state(v1::NODE_STATE_HEALTHY);
  const auto add = [&](v1::StateTable table, const std::string& key, const auto& value) {
    v1::StateRow& row = *event.mutable_restore()->add_rows();
    row.set_table(table);
    row.set_key(key);
    row.set_value(value.SerializeAsString());
  };
  add(v1::STATE_TABLE_JOBS, "train-1", record);
  add(v1::STATE_TABLE_NODES, "id-node1", node);
  add(v1::STATE_TABLE_WORLDS, "train-1/00000000000000000003", v1::World());
  add(v1::STATE_TABLE_MEMBERS, "train-1/00000000000000000003/00000000000000000000", member);
  event.set_end_of_batch(true);
  StateMachine machine;
  EXPECT_TRUE(machine.Step(event).damage.ok());
  const Job& job = machine.jobs().all().at("train-1");
  EXPECT_EQ(job.view.state(), v1::JOB_STATE_RUNNING);
  EXPECT_FALSE(job.record.may_grow());
  EXPECT_TRUE(job.record.failures_of_nodes().empty());
  EXPECT_EQ(job.running_since, SteadyNanos(0));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
