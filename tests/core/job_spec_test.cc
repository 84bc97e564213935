#include "core/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/env_entries.h"
#include "core/mesh_messages.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"

namespace meshrun {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Spec(std::string_view mesh = "") {
  v1::JobSpec spec;
  spec.add_command("./train");
  spec.mutable_procs_per_node()->set_count(4);
  if (!mesh.empty()) SetAxes(ParseMesh(mesh).value(), spec.mutable_mesh());
  return spec;
}

std::string ErrorOf(v1::JobSpec spec) {
  const absl::Status status = NormalizeJobSpec(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(JobSpecTest, FillsInDefaultsOnce) {
  v1::JobSpec spec;
  spec.add_command("./train");
  ASSERT_TRUE(NormalizeJobSpec(spec).ok());
  EXPECT_EQ(spec.name(), "train");
  EXPECT_EQ(spec.min_nodes(), 1u);
  EXPECT_EQ(spec.max_nodes(), 1u);
  EXPECT_EQ(spec.cpus_per_proc(), 1u);
  EXPECT_EQ(spec.procs_per_node().count(), 1u);
  EXPECT_EQ(KillGrace(spec), kDefaultKillGrace);
  v1::JobSpec again = spec;
  ASSERT_TRUE(NormalizeJobSpec(again).ok());
  EXPECT_EQ(again.SerializeAsString(), spec.SerializeAsString());
}

TEST(JobSpecTest, OneMebibyteIsTheMost) {
  v1::JobSpec spec = Spec();
  SetEnv(*spec.mutable_env(), "X", std::string((1 << 20) - 100, 'x'));
  EXPECT_TRUE(NormalizeJobSpec(spec).ok());
  *spec.mutable_env(0)->mutable_value() += std::string(100, 'x');
  EXPECT_THAT(ErrorOf(spec), HasSubstr("at most 1.0 MiB"));
}

TEST(JobSpecTest, DefaultsHoldBeforeNormalizingToo) {
  v1::JobSpec spec;
  EXPECT_EQ(MinNodes(spec), 1u);
  EXPECT_EQ(MaxNodes(spec), 1u);
  EXPECT_EQ(CpusPerProc(spec), 1u);
  spec.set_min_nodes(3);
  spec.set_max_nodes(2);
  EXPECT_EQ(MaxNodes(spec), 3u);
  *spec.mutable_kill_grace() = ToProtoDuration(std::chrono::seconds(0));
  EXPECT_EQ(KillGrace(spec), std::chrono::seconds(0));
}

TEST(JobSpecTest, NamesComeFromPrograms) {
  EXPECT_EQ(JobNameFromCommand("/usr/bin/Train_UNet.py"), "train-unet");
  EXPECT_EQ(JobNameFromCommand("../--x--"), "x");
  EXPECT_EQ(JobNameFromCommand("___"), "job");
  EXPECT_EQ(JobNameFromCommand(std::string(60, 'a')).size(), kLongestJobName);
  EXPECT_EQ(JobNameFromCommand(std::string(39, 'a') + "-b"), std::string(39, 'a'));
  for (const char* command : {"a.b.c", "/x/..", "-", "Ärger", "a-", ""}) {
    EXPECT_TRUE(CheckJobName(JobNameFromCommand(command)).ok()) << JobNameFromCommand(command);
  }
}

TEST(JobSpecTest, ANameNeitherBeginsNorEndsWithADash) {
  for (const std::string& name : {std::string("a"), std::string("a-1"), std::string(40, 'x')})
    EXPECT_TRUE(CheckJobName(name).ok()) << name;
  for (const std::string& name :
       {std::string("a-"), std::string("-a"), std::string("-"), std::string("A"),
        std::string("a_b"), std::string("a b"), std::string(41, 'x'), std::string()}) {
    EXPECT_FALSE(CheckJobName(name).ok()) << name;
  }
}

TEST(JobSpecTest, NamesTheFieldThatIsWrong) {
  v1::JobSpec spec;
  EXPECT_THAT(ErrorOf(spec), HasSubstr("command: there is nothing to run"));
  spec = Spec();
  spec.set_name("My Job");
  EXPECT_THAT(ErrorOf(spec), HasSubstr("name: 'My Job' is not a job name"));
  spec = Spec();
  spec.set_max_nodes(100'001);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("max_nodes: 100001"));
  spec.set_max_nodes(100'000);
  spec.mutable_procs_per_node()->set_count(11);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("more than 1000000 ranks"));
  spec.mutable_procs_per_node()->set_count(10);
  EXPECT_TRUE(NormalizeJobSpec(spec).ok());
  spec.mutable_procs_per_node()->set_count(4097);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("procs_per_node: 4097 is more than 4096"));
  spec = Spec();
  spec.set_memory_bytes((uint64_t{1} << 50) + 1);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("memory_bytes"));
  spec = Spec();
  spec.mutable_kill_grace()->set_seconds(-1);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("kill_grace: -1 s"));
  spec = Spec();
  SetEnv(*spec.mutable_env(), "A=B", "1");
  EXPECT_THAT(ErrorOf(spec), HasSubstr("env: 'A=B'"));
}

// A client of one's own sends what it likes over gRPC.
TEST(JobSpecTest, ARelativeDirectoryAndZeroBytesAreRefused) {
  v1::JobSpec spec = Spec();
  spec.set_working_dir("..");
  EXPECT_THAT(ErrorOf(spec), HasSubstr("working_dir: '..' is relative"));
  spec.set_working_dir(std::string("/a\0b", 4));
  EXPECT_THAT(ErrorOf(spec), HasSubstr("working_dir: it holds a zero byte"));
  spec = Spec();
  spec.add_command(std::string("a\0b", 3));
  EXPECT_THAT(ErrorOf(spec), HasSubstr("command: 'a' holds a zero byte"));
  spec = Spec();
  SetEnv(*spec.mutable_env(), "A", std::string("\0", 1));
  EXPECT_THAT(ErrorOf(spec), HasSubstr("env: A holds a zero byte"));
  spec = Spec();
  SetEnv(*spec.mutable_env(), "RANK", "7");
  EXPECT_THAT(ErrorOf(spec), HasSubstr("env: RANK is set by meshrun"));
}

TEST(JobSpecTest, AMeshThatFitsNoWorldIsRefusedWithBothNumbers) {
  EXPECT_THAT(ErrorOf(Spec("dp=3,tp=2")), HasSubstr("needs 6 ranks, but the job has 4"));
  EXPECT_THAT(ErrorOf(Spec("dp=-1,tp=3")), HasSubstr("multiple of 3"));
  v1::JobSpec spec = Spec("dp=-1,tp=2");
  EXPECT_TRUE(NormalizeJobSpec(spec).ok());
  // Nodes beyond what the mesh can use are spares, not an error.
  spec = Spec("dp=2,tp=4");
  spec.set_max_nodes(5);
  EXPECT_TRUE(NormalizeJobSpec(spec).ok());
  spec.set_min_nodes(3);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("3-5 nodes with 4 ranks each"));
  // How many GPUs there are is for the placement to know.
  spec.mutable_procs_per_node()->set_gpu(true);
  EXPECT_TRUE(NormalizeJobSpec(spec).ok());
}

TEST(RankExitTest, OneSentenceNamesTheRankItsNodeAndItsError) {
  v1::RankExit exit;
  exit.set_rank(3);
  EXPECT_TRUE(ExitedCleanly(exit));
  EXPECT_EQ(DescribeEnd(exit), "ended with exit code 0");
  exit.set_exit_code(7);
  EXPECT_FALSE(ExitedCleanly(exit));
  exit.set_error_message("ValueError: no data\nin shard 7");
  EXPECT_EQ(RankEndSentence(exit, "n1"),
            "rank 3 on n1 ended with exit code 7: ValueError: no data");
  EXPECT_EQ(PeerEndSentence(exit, ""), "it ended with exit code 7: ValueError: no data");
  exit = v1::RankExit();
  exit.set_signal(9);
  EXPECT_FALSE(ExitedCleanly(exit));
  EXPECT_EQ(RankEndSentence(exit, ""), "rank 0 was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(PeerEndSentence(exit, "n1"), "it was killed by signal 9 (SIGKILL) on n1");
  exit.set_signal(64);
  EXPECT_EQ(DescribeEnd(exit), "killed by signal 64");
}

}  // namespace
}  // namespace meshrun
