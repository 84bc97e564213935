// Rows that coordinators of earlier commits have written: environments were map<string, string>,
// and arguments and paths were strings. The bytes were made with protoc and the protos of those
// commits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/env_entries.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::string Bytes(std::string_view literal) { return std::string(literal); }
#define BYTES(literal) Bytes(std::string_view(literal, sizeof(literal) - 1))

// A JobRecord of 3776942: the values of the environment stand in the job.
std::string Job3776942() {
  return BYTES(
      "\nj\n\x0ctrain-k3x9w2\x12M\n\x05train\x12\x07./train\x12\x07--title\x12\x05"
      "caf\xc3\xa9"
      "\"\x05/data*\x0f\n\x05TOKEN\x12\x06of-ada*\t\n\x05"
      "EMPTY\x12\x00"
      "0\x01"
      "8\x01"
      "B\x02"
      "\x08\x01P\x01\x18\x01"
      "B\x06\x08\x80\xe2\xcf\xaa\x06\x80\x01\x01\x10\x07\x1a\x01r");
}

// A JobRecord of 129c765, the last commit before the change: the values stand beside the job.
std::string Job129c765() {
  return BYTES(
      "\nQ\n\x0ctrain-k3x9w2\x12"
      "4\n\x05train\x12\x07./train\"\x05/data*\x11\n\x05TOKEN\x12\x08"
      "(hidden)0\x01"
      "8\x01"
      "B\x02\x08\x01P\x01\x18\x01"
      "B\x06\x08\x80\xe2\xcf\xaa\x06\x80\x01"
      "\x01\x10\x07\x1a\x01r\xe2\x03\x0f\n\x05TOKEN\x12\x06of-ada");
}

// What the job's node is told, after a coordinator has read the row.
v1::Prepare PrepareAfter(Harness& h, const std::string& record) {
  h.StartCoordinatorWith(v1::STATE_TABLE_JOBS, "train-k3x9w2", record);
  FakeWorker& worker = h.AddWorker("node1");
  for (const v1::OpenSessionResponse& message : worker.received) {
    if (message.has_prepare()) return message.prepare();
  }
  ADD_FAILURE() << "the job was not prepared";
  return {};
}

TEST(FormerStateTest, AJobOf3776942KeepsItsCommandAndEnvironment) {
  Harness h;
  const v1::Prepare prepare = PrepareAfter(h, Job3776942());
  EXPECT_THAT(prepare.spec().command(), ElementsAre("./train", "--title", "caf\xc3\xa9"));
  EXPECT_EQ(prepare.spec().working_dir(), "/data");
  EXPECT_THAT(EnvMap(prepare.spec().env()),
              UnorderedElementsAre(Pair("TOKEN", "of-ada"), Pair("EMPTY", "")));
  EXPECT_EQ(EnvMap(h.job("train-k3x9w2").spec().env()).at("TOKEN"), "(hidden)");
}

TEST(FormerStateTest, AJobOf129c765KeepsTheValuesBesideIt) {
  Harness h;
  const v1::Prepare prepare = PrepareAfter(h, Job129c765());
  EXPECT_THAT(prepare.spec().command(), ElementsAre("./train"));
  EXPECT_THAT(EnvMap(prepare.spec().env()), ElementsAre(Pair("TOKEN", "of-ada")));
  EXPECT_EQ(EnvMap(h.job("train-k3x9w2").spec().env()).at("TOKEN"), "(hidden)");
}

// A node of 2699952 had one address, and a world one for each node: a map<string, string>.
TEST(FormerStateTest, OneAddressIsAListOfOne) {
  Harness h;
  h.StartCoordinatorWith(v1::STATE_TABLE_NODES, "id-node1",
                         BYTES("\n\x1d\n\x08id-node1\x12\x05node1\x1a\x08"
                               "10.0.0.1\x20\x01"));
  const auto& nodes = h.machine().nodes().all();
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_THAT(nodes.at("id-node1").record.addresses(), ElementsAre("10.0.0.1"));
  EXPECT_EQ(nodes.at("id-node1").address(), "10.0.0.1");
  v1::World world;
  ASSERT_TRUE(
      world.ParseFromString(BYTES("\x12\x14\n\x08id-node1\x12\x08"
                                  "10.0.0.1")));
  ASSERT_EQ(world.addresses_size(), 1);
  EXPECT_EQ(world.addresses(0).node_id(), "id-node1");
  EXPECT_THAT(world.addresses(0).addresses(), ElementsAre("10.0.0.1"));
}

// Nodes of 8f2aabc said only by their state that their workers were stopping; jobs kept neither
// steps nor the begin of their wait.
TEST(FormerStateTest, ANodeThatWasDrainingDrains) {
  Harness h;
  for (const bool draining : {true, false}) {
    v1::NodeRecord record;
    record.mutable_node()->set_node_id("id-node1");
    record.mutable_node()->set_state(draining ? v1::NODE_STATE_DRAINING : v1::NODE_STATE_SUSPECT);
    h.StartCoordinatorWith(v1::STATE_TABLE_NODES, "id-node1", record.SerializeAsString());
    EXPECT_EQ(h.machine().nodes().all().at("id-node1").draining, draining);
  }
}

TEST(FormerStateTest, AJobOf129c765HasNoStepsAndBeginsToWaitNow) {
  Harness h;
  v1::JobRecord record;
  ASSERT_TRUE(record.ParseFromString(Job129c765()));
  record.mutable_job()->mutable_spec()->mutable_queue_timeout()->set_seconds(10);
  h.StartCoordinatorWith(v1::STATE_TABLE_JOBS, "train-k3x9w2", record.SerializeAsString());
  const Job& job = h.machine().jobs().all().at("train-k3x9w2");
  EXPECT_EQ(job.step_beyond(), -1);
  EXPECT_EQ(job.longest_step().count(), 0);
  EXPECT_EQ(job.queued_since, h.clock.SteadyNow());
  h.Advance(seconds(9));
  EXPECT_EQ(h.state("train-k3x9w2"), v1::JOB_STATE_QUEUED);
  h.Advance(seconds(1));
  EXPECT_EQ(h.state("train-k3x9w2"), v1::JOB_STATE_FAILED);
}

TEST(FormerStateTest, BytesThatAreNotUtf8SurviveARestart) {
  Harness h;
  v1::JobSpec spec = MakeSpec(1, 1);
  spec.add_command("caf\xe9");
  spec.set_working_dir("/d\xe9");
  SetEnv(*spec.mutable_env(),
         "B\xc4"
         "D",
         "caf\xe9");
  const std::string id = h.Submit(spec);
  h.StartCoordinator();
  FakeWorker& worker = h.AddWorker("node1");
  int prepared = 0;
  for (const v1::OpenSessionResponse& message : worker.received) {
    if (!message.has_prepare()) continue;
    // As it arrives.
    v1::OpenSessionResponse read;
    ASSERT_TRUE(read.ParseFromString(message.SerializeAsString()));
    EXPECT_THAT(read.prepare().spec().command(), ElementsAre("./train", "caf\xe9"));
    EXPECT_EQ(read.prepare().spec().working_dir(), "/d\xe9");
    EXPECT_THAT(EnvMap(read.prepare().spec().env()), ElementsAre(Pair("B\xc4"
                                                                      "D",
                                                                      "caf\xe9")));
    ++prepared;
  }
  EXPECT_EQ(prepared, 1) << id;
}

}  // namespace
}  // namespace meshrun::coordinator::testing
