// meshrun verify, where a script is the job: an installed tree of the programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/command_fixture.h"

namespace meshrun::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class VerifyCommandTest : public CommandTest {
 protected:
  VerifyCommandTest() : tree_(directory_ + "/tree") {
    fs::create_directories(tree_ / "bin");
    for (const char* program :
         {"client/meshrun", "coordinator/meshrun-coordinator", "worker/meshrun-worker"}) {
      fs::copy_file(program, tree_ / "bin" / fs::path(program).filename());
    }
  }
  void Ship(const std::string& script) {
    const fs::path job = tree_ / "libexec/meshrun/jobs/verify";
    fs::create_directories(job);
    std::ofstream(job / "verify") << "#!/bin/sh\n" << script << "\n";
    fs::permissions(job / "verify", fs::perms::owner_all);
  }
  Result Verify(const std::vector<std::string>& variables,
                const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {"/usr/bin/env", "-C", directory_};
    for (const char* name : {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                             "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_RANKID", "RANK"}) {
      argv.insert(argv.end(), {"-u", name});
    }
    argv.insert(argv.end(), variables.begin(), variables.end());
    argv.insert(argv.end(), {tree_ / "bin/meshrun", "verify"});
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return Wait(StartProgram(std::move(argv)));
  }

  const fs::path tree_;
};

TEST_F(VerifyCommandTest, ATaskOfAnotherLauncherBecomesTheRank) {
  Ship("echo \"pid $$: $*\"; exit 3");
  for (const std::vector<std::string>& variables :
       {std::vector<std::string>{"OMPI_COMM_WORLD_SIZE=2"},
        {"PMI_SIZE=2"},
        {"PALS_RANKID=1"},
        {"SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=2"},
        {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=29500"}}) {
    const Result result = Verify(variables, {"--dir", "/tmp", "--report", "x.json"});
    EXPECT_EQ(result.code, 3) << variables[0] << result.err;
    EXPECT_THAT(result.out, HasSubstr(": --dir /tmp --report x.json\n")) << variables[0];
  }
}

TEST_F(VerifyCommandTest, FlagsThatARankCannotFollowAreRefused) {
  Ship("echo is a rank");
  const Result mpi = Verify({"OMPI_COMM_WORLD_SIZE=2"}, {"--nproc-per-node", "gpu"});
  EXPECT_EQ(mpi.code, 2) << mpi.out;
  EXPECT_THAT(mpi.err, HasSubstr("--nproc-per-node: OMPI_COMM_WORLD_SIZE says"));
  const Result slurm = Verify({"SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=4",
                               "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NUM_NODES=2"},
                              {"--nnodes", "2", "--nproc", "2"});
  EXPECT_EQ(slurm.code, 2) << slurm.out;
  EXPECT_THAT(slurm.err, HasSubstr("--nnodes, --nproc-per-node: SLURM_NTASKS says"));
  EXPECT_THAT(slurm.err, HasSubstr("srun --ntasks-per-node=1"));
}

// Two calls on one host stand for the tasks of two nodes.
TEST_F(VerifyCommandTest, OneTaskOnEachNodeStartsTheRanksThatItsFlagsSay) {
  Ship("echo \"rank $RANK of $WORLD_SIZE\"");
  const auto start = [&](const std::string& task) {
    const std::string words = fmt::format("cd {} && exec {} verify --nproc 2 >node{} 2>&1",
                                          directory_, (tree_ / "bin/meshrun").string(), task);
    return StartProgram({"/bin/sh", "-c", words}, {{"SLURM_JOB_ID", fmt::format("{}", ::getpid())},
                                                   {"SLURM_STEP_ID", "0"},
                                                   {"SLURM_PROCID", task},
                                                   {"SLURM_NTASKS", "2"},
                                                   {"SLURM_STEP_NUM_NODES", "2"},
                                                   {"SLURM_STEP_NUM_TASKS", "2"},
                                                   {"SLURM_STEP_NODELIST", "localhost,other"}});
  };
  const pid_t node1 = start("1");
  const pid_t node0 = start("0");
  for (const pid_t pid : {node0, node1}) {
    EXPECT_EQ(Wait(pid).code, 0) << *os::ReadFile(directory_ + "/node0")
                                 << *os::ReadFile(directory_ + "/node1");
  }
  EXPECT_THAT(*os::ReadFile(directory_ + "/node0"), HasSubstr("rank 0 of 4\n"));
}

TEST_F(VerifyCommandTest, ARankWithoutTheJobIsToldHowToBuildIt) {
  const Result result = Verify({"OMPI_COMM_WORLD_SIZE=2"}, {});
  EXPECT_EQ(result.code, 127);
  EXPECT_THAT(result.err, HasSubstr("bazel build //jobs/verify"));
}

TEST_F(VerifyCommandTest, ItRunsTheShippedJobWithARestartAndShowsRank0) {
  Ship("echo \"rank $RANK of $WORLD_SIZE, $TORCHELASTIC_MAX_RESTARTS restart: $*\"");
  // A batch script of Slurm is not a task, and a step of one task has no peers; so has the shell of
  // an interactive salloc, which knows the job's number of tasks as well.
  for (const std::vector<std::string>& variables :
       {std::vector<std::string>{"SLURM_NTASKS=4"},
        {"SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=1"},
        {"SLURM_STEP_ID=4294967290", "SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_NPROCS=4",
         "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_NUM_NODES=1"}}) {
    const Result result = Verify(variables, {"--nproc", "2"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, "rank 0 of 2, 1 restart: --dir . --report meshrun-verify.json\n");
  }
}

TEST_F(VerifyCommandTest, AJobThatFailsIsExitCode1AndItsWordsAreShown) {
  Ship("test $RANK = 0 || exit 0; echo 'verify: links: too slow' >&2; exit 4");
  const Result result = Verify({}, {"--nproc", "2"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("verify: links: too slow"));
}

TEST_F(VerifyCommandTest, GpuCheckOfTheTreeRunsFirstAndTheJobIsTold) {
  Ship("echo \"job: $*\"");
  EXPECT_THAT(Verify({}, {"--gpu-check"}).err, HasSubstr("tools/bundle --tests gpu"));
  for (const auto& [code, word] :
       {std::pair<int, std::string>{0, "passed"}, {1, "failed"}, {77, "no-gpu"}}) {
    std::ofstream(tree_ / "gpu-check") << "#!/bin/sh\necho the table\nexit " << code << "\n";
    fs::permissions(tree_ / "gpu-check", fs::perms::owner_all);
    const Result result = Verify({}, {"--gpu-check", "--nproc", "1"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out,
              "the table\njob: --dir . --report meshrun-verify.json --gpu-check " + word + "\n");
  }
  const Result several = Verify({"OMPI_COMM_WORLD_SIZE=2"}, {"--gpu-check"});
  EXPECT_EQ(several.code, 2);
  EXPECT_THAT(several.err, HasSubstr("OMPI_COMM_WORLD_SIZE"));
}

}  // namespace
}  // namespace meshrun::client
