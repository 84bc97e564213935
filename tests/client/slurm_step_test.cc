// Flags of `meshrun run` that follow from the variables of a Slurm step.
#include "client/cli/slurm_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace meshrun::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

// As srun of Slurm 22.05 sets them for a task on the second of three nodes.
const Variables kStep = {
    {"SLURM_CLUSTER_NAME", "alps"}, {"SLURM_JOB_ID", "71"},
    {"SLURM_STEP_ID", "0"},         {"SLURM_PROCID", "1"},
    {"SLURM_NODEID", "1"},          {"SLURM_STEP_NUM_NODES", "3"},
    {"SLURM_STEP_NUM_TASKS", "3"},  {"SLURM_STEP_NODELIST", "gpu-a[1-2],node07"}};
// A batch script of that job.
const Variables kBatch = {
    {"SLURM_JOB_ID", "71"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_NODELIST", "gpu-a[1-2],node07"}};

VariableLookup Lookup(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

Variables With(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables Without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

v1::JobSpec Nodes(uint32_t least, uint32_t most) {
  v1::JobSpec spec;
  spec.set_min_nodes(least);
  spec.set_max_nodes(most);
  spec.set_working_dir("/shared/ada");
  return spec;
}

RendezvousFlags Complete(const Variables& variables, RendezvousFlags flags = {},
                         const v1::JobSpec& spec = Nodes(3, 3)) {
  const absl::Status status = CompleteFromSlurm(Lookup(variables), spec, &flags);
  EXPECT_TRUE(status.ok()) << status;
  return flags;
}

std::string Error(const Variables& variables, const v1::JobSpec& spec = Nodes(3, 3)) {
  RendezvousFlags flags;
  const absl::Status status = CompleteFromSlurm(Lookup(variables), spec, &flags);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(SlurmStepTest, NeedsNoFlagAtAll) {
  const RendezvousFlags flags = Complete(kStep);
  EXPECT_EQ(flags.node_rank, "1");
  EXPECT_EQ(flags.master_addr, "gpu-a1");
  EXPECT_EQ(flags.step_secret_file, "/shared/ada/.meshrun-alps-71.0-0");
  EXPECT_TRUE(flags.endpoint.empty());
  // All nodes come to the same.
  const RendezvousFlags other =
      Complete(With(With(kStep, "SLURM_PROCID", "2"), "SLURM_NODEID", "2"));
  EXPECT_EQ(other.node_rank, "2");
  EXPECT_EQ(other.master_addr, flags.master_addr);
  EXPECT_EQ(other.master_port, flags.master_port);
  EXPECT_EQ(other.step_secret_file, flags.step_secret_file);
}

TEST(SlurmStepTest, StepsAndRestartsHaveTheirOwnPortsAndSecrets) {
  const RendezvousFlags first = Complete(kStep);
  for (const Variables& other :
       {With(kStep, "SLURM_STEP_ID", "1"), With(kStep, "SLURM_RESTART_COUNT", "1"),
        With(kStep, "SLURM_JOB_ID", "72"), With(kStep, "SLURM_CLUSTER_NAME", "daint")}) {
    EXPECT_NE(Complete(other).master_port, first.master_port);
    EXPECT_NE(Complete(other).step_secret_file, first.step_secret_file);
  }
}

TEST(SlurmStepTest, GivenFlagsStay) {
  RendezvousFlags given;
  given.node_rank = "2";
  given.master_addr = "ib-a1";
  RendezvousFlags flags = Complete(kStep, given);
  EXPECT_EQ(flags.node_rank, "2");
  EXPECT_EQ(flags.master_addr, "ib-a1");
  EXPECT_EQ(flags.master_port, "");
  EXPECT_NE(flags.step_secret_file, "");

  given = {};
  given.master_port = "29500";
  flags = Complete(kStep, given);
  EXPECT_EQ(flags.master_addr, "gpu-a1");
  EXPECT_EQ(flags.master_port, "29500");

  // torchrun's recipe: srun torchrun --rdzv-backend=c10d --rdzv-endpoint=$head:29500.
  given = {};
  given.endpoint = "gpu-a1:29500";
  flags = Complete(With(kStep, "SLURM_STEP_NUM_TASKS", "6"), given);
  EXPECT_EQ(flags.node_rank, "");
  EXPECT_EQ(flags.master_addr, "");
  EXPECT_NE(flags.step_secret_file, "");
}

TEST(SlurmStepTest, OutsideAStepOfSeveralNodesNothingChanges) {
  const Variables alone =
      With(With(kStep, "SLURM_STEP_NUM_NODES", "1"), "SLURM_STEP_NUM_TASKS", "1");
  for (const Variables& variables : {Variables(), kBatch, alone}) {
    EXPECT_TRUE(Complete(variables).Given().empty());
    EXPECT_EQ(Complete(variables).step_secret_file, "");
    EXPECT_TRUE(Complete(variables, {}, Nodes(1, 1)).Given().empty());
  }
}

// Each would write the same checkpoints.
TEST(SlurmStepTest, TasksThatWouldAllRunTheWholeJobAreRefused) {
  for (const Variables& variables : {kStep, With(kStep, "SLURM_STEP_NUM_NODES", "1")}) {
    EXPECT_THAT(Error(variables, Nodes(1, 1)),
                AllOf(HasSubstr("started this 3 times"), HasSubstr("--standalone")));
  }
}

TEST(SlurmStepTest, TheStepAndTheJobHaveTheSameNodes) {
  EXPECT_THAT(Error(kStep, Nodes(2, 2)),
              AllOf(HasSubstr("--nnodes 2: srun started this on 3 nodes"),
                    HasSubstr("--nnodes $SLURM_NNODES")));
  EXPECT_THAT(Error(kStep, Nodes(4, 5)), HasSubstr("--nnodes 4:5"));
  EXPECT_EQ(Complete(kStep, {}, Nodes(1, 4)).node_rank, "1");
}

TEST(SlurmStepTest, SeveralTasksOnANodeAreToldHowToStart) {
  EXPECT_THAT(
      Error(With(kStep, "SLURM_STEP_NUM_TASKS", "12")),
      AllOf(HasSubstr("12 tasks on 3 nodes"), HasSubstr("srun --ntasks=3 --ntasks-per-node=1")));
}

TEST(SlurmStepTest, EveryMissingVariableIsNamed) {
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                           "SLURM_STEP_NODELIST"}) {
    EXPECT_THAT(Error(Without(kStep, name)), HasSubstr(std::string(name) + " is not set")) << name;
  }
  for (const char* name : {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"}) {
    EXPECT_THAT(Error(With(kStep, name, "3x")), HasSubstr(std::string(name) + "=3x")) << name;
  }
  EXPECT_THAT(Error(With(kStep, "SLURM_STEP_NODELIST", "n[")), HasSubstr("SLURM_STEP_NODELIST"));
  EXPECT_THAT(Error(With(kStep, "SLURM_JOB_ID", "../7")),
              HasSubstr("cannot be the name of a file"));
}

// srun --het-group=0,1 numbers tasks, nodes and hosts over all components.
TEST(SlurmStepTest, AStepOfAHetjobIsOneJob) {
  Variables step = kStep;
  step["SLURM_HET_SIZE"] = "2";
  step["SLURM_JOB_NODELIST_HET_GROUP_0"] = "gpu-a1";
  step["SLURM_JOB_NODELIST_HET_GROUP_1"] = "gpu-a2,node07";
  EXPECT_EQ(Complete(step).master_addr, "gpu-a1");
  EXPECT_EQ(Complete(step).node_rank, "1");
}

TEST(SlurmStepTest, AnAllocationWithoutSrunIsToldOfSrun) {
  EXPECT_THAT(HowToStart(Lookup(kBatch), Nodes(3, 3)),
              AllOf(HasSubstr("--nnodes 3"), HasSubstr("Slurm job 71"),
                    HasSubstr("srun --nodes=3 --ntasks=3 --ntasks-per-node=1 meshrun run")));
  EXPECT_THAT(HowToStart(Lookup({}), Nodes(2, 4)),
              AllOf(HasSubstr("--nnodes 2:4"), HasSubstr("--node-rank")));
}

}  // namespace
}  // namespace meshrun::client
