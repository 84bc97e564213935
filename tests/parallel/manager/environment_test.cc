#include "parallel/manager/environment.h"

#include <map>
#include <set>
#include <string>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

absl::StatusOr<LaunchEnvironment> detect(const Variables& variables,
                                         std::optional<std::string> forced = std::nullopt) {
  return detect_environment(
      [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      },
      forced);
}

std::string error(const Variables& variables, std::optional<std::string> forced = std::nullopt) {
  const absl::StatusOr<LaunchEnvironment> result = detect(variables, std::move(forced));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

const Variables kEnv = {
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "host-a"}, {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_PROCID", "1"},
                          {"SLURM_NPROCS", "2"},
                          {"SLURM_STEP_NUM_TASKS", "2"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};

const Variables kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kPals = {{"PALS_RANKID", "3"},     {"PALS_LOCAL_RANKID", "1"},
                         {"PALS_LOCAL_SIZE", "2"}, {"PALS_NODEID", "1"},
                         {"PALS_APID", "a-b-c"},   {"PMI_SIZE", "4"},
                         {"MASTER_ADDR", "x1000"}};

TEST(EnvironmentTest, NothingSetIsASingleProcess) {
  const auto found = detect({});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->method, LaunchMethod::kSingle);
  EXPECT_EQ(found->rank, 0);
  EXPECT_EQ(found->world_size, 1);
  EXPECT_EQ(found->local_rank, 0);
}

// People export the address for other programs; it says nothing about ranks.
TEST(EnvironmentTest, AnAddressAloneIsNotALaunch) {
  EXPECT_EQ(detect({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}})->method, LaunchMethod::kSingle);
}

TEST(EnvironmentTest, ReadsEnv) {
  const auto found =
      detect(with(with(with(kEnv, "LOCAL_RANK", "1"), "LOCAL_WORLD_SIZE", "2"), "GROUP_RANK", "1"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->method, LaunchMethod::kEnv);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->world_size, 4);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_world_size, 2);
  EXPECT_EQ(found->node_rank, 1);
  EXPECT_EQ(found->master_addr, "host-a");
  EXPECT_EQ(found->master_port, 29500);
  EXPECT_FALSE(found->store_is_hosted);
}

TEST(EnvironmentTest, EnvLeavesTheLocalRankOpen) {
  EXPECT_FALSE(detect(kEnv)->local_rank.has_value());
}

TEST(EnvironmentTest, EveryMissingVariableOfEnvIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(error(without(kEnv, name)),
                AllOf(HasSubstr(std::string(name) + " is not set"), HasSubstr("single process")));
  }
  EXPECT_THAT(error({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set"));
  EXPECT_THAT(error({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(error({}, "ENV"), HasSubstr("RANK is not set"));
}

TEST(EnvironmentTest, WhatIsLeftOfALaunchIsNotASingleProcess) {
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    EXPECT_THAT(error({{name, "1"}}), AllOf(HasSubstr("RANK is not set"), HasSubstr("ENV")));
  }
  EXPECT_THAT(error({{"OMPI_COMM_WORLD_SIZE", "2"}}), HasSubstr("OMPI_COMM_WORLD_RANK is not set"));
}

// "mpirun wrapper.sh", which exports LOCAL_RANK for what it starts.
TEST(EnvironmentTest, AWholeLaunchGoesBeforeWhatIsLeftOfAnother) {
  EXPECT_EQ(detect(with(kOpenMpi, "LOCAL_RANK", "1"))->method, LaunchMethod::kOpenMpi);
  EXPECT_EQ(detect(with(with(kSlurm, "LOCAL_RANK", "1"), "OMPI_COMM_WORLD_SIZE", "2"))->method,
            LaunchMethod::kSlurm);
}

TEST(EnvironmentTest, EveryRankReportsTheSameMissingVariable) {
  const Variables half = without(kEnv, "MASTER_ADDR");
  EXPECT_EQ(error(with(half, "RANK", "0")), error(with(half, "RANK", "3")));
}

TEST(EnvironmentTest, MalformedIntegersAreNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}) {
    for (const char* value : {"two", "1x", "-1", "", " 1", "99999999999"}) {
      EXPECT_THAT(error(with(kEnv, name, value)),
                  HasSubstr(std::string(name) + "=\"" + value + "\" is not an integer"));
    }
  }
  for (const char* value : {"0", "65536", "x", "-1"}) {
    EXPECT_THAT(error(with(kEnv, "MASTER_PORT", value)), HasSubstr("is not a port"));
  }
}

TEST(EnvironmentTest, RanksMustFitTheWorld) {
  EXPECT_THAT(error(with(kEnv, "RANK", "4")),
              AllOf(HasSubstr("RANK=4"), HasSubstr("WORLD_SIZE=4")));
  EXPECT_THAT(error(with(kEnv, "LOCAL_RANK", "4")), HasSubstr("local rank 4"));
  EXPECT_THAT(error(with(kEnv, "LOCAL_WORLD_SIZE", "5")), HasSubstr("local world size 5"));
  EXPECT_THAT(error(with(kEnv, "WORLD_SIZE", "0")), HasSubstr("WORLD_SIZE=\"0\""));
  EXPECT_THAT(error(with(kSlurm, "SLURM_PROCID", "2")), HasSubstr("SLURM_PROCID=2"));
  EXPECT_THAT(error(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "2")),
              HasSubstr("OMPI_COMM_WORLD_RANK=2"));
}

TEST(EnvironmentTest, TorchrunHostsTheStoreAndNumbersItsAttempts) {
  const auto found = detect(with(
      with(with(kEnv, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RESTART_COUNT", "2"),
      "TORCHELASTIC_RUN_ID", "run-1"));
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->store_is_hosted);
  EXPECT_EQ(found->store_prefix, "attempt_2/");
  EXPECT_THAT(found->identity, HasSubstr("run-1"));
  EXPECT_FALSE(detect(with(kEnv, "TORCHELASTIC_USE_AGENT_STORE", "False"))->store_is_hosted);
}

TEST(EnvironmentTest, ReadsSlurm) {
  const auto found = detect(kSlurm);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->method, LaunchMethod::kSlurm);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->world_size, 2);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->master_addr, "10.0.0.7");
  EXPECT_EQ(found->master_port, 12355);
}

TEST(EnvironmentTest, EveryMissingVariableOfSlurmIsNamed) {
  EXPECT_THAT(error(without(kSlurm, "SLURM_NPROCS")), HasSubstr("SLURM_NPROCS is not set"));
  EXPECT_THAT(error(without(kSlurm, "SLURM_LAUNCH_NODE_IPADDR")),
              AllOf(HasSubstr("SLURM_LAUNCH_NODE_IPADDR is not set"), HasSubstr("srun")));
  EXPECT_THAT(error(without(kSlurm, "SLURM_PROCID"), "SLURM"),
              HasSubstr("SLURM_PROCID is not set"));
}

TEST(EnvironmentTest, PlainSbatchTakesTheFirstNodeOfTheJob) {
  const auto found = detect(
      with(without(kSlurm, "SLURM_LAUNCH_NODE_IPADDR"), "SLURM_JOB_NODELIST", "gpu[07-09],x"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->master_addr, "gpu07");
}

// sbatch gives its script the variables of task 0; nobody starts the others.
TEST(EnvironmentTest, ABatchScriptWithoutSrunIsNotAWorld) {
  const Variables batch = {{"ENVIRONMENT", "BATCH"}, {"SLURM_JOB_ID", "71"},
                           {"SLURM_PROCID", "0"},    {"SLURM_LOCALID", "0"},
                           {"SLURM_NODEID", "0"},    {"SLURM_NPROCS", "3"},
                           {"SLURM_NTASKS", "3"},    {"SLURM_JOB_NODELIST", "gpu-a[1-2],node07"}};
  EXPECT_THAT(error(batch), AllOf(HasSubstr("SLURM_NPROCS=3"), HasSubstr("write srun before"),
                                  HasSubstr("SINGLE")));
  EXPECT_THAT(error(with(batch, "MASTER_ADDR", "gpu-a1")), HasSubstr("write srun before"));
  EXPECT_EQ(detect(batch, "SINGLE")->method, LaunchMethod::kSingle);
  const auto alone = detect(with(batch, "SLURM_NPROCS", "1"));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->world_size, 1);
  // srun within the script.
  Variables step = batch;
  for (const auto& [name, value] : Variables{{"SLURM_STEP_ID", "0"},
                                             {"SLURM_STEP_NUM_TASKS", "3"},
                                             {"SLURM_STEP_NUM_NODES", "3"},
                                             {"SLURM_STEP_NODELIST", "gpu-a[1-2],node07"},
                                             {"SLURM_PROCID", "2"},
                                             {"SLURM_NODEID", "2"},
                                             {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}}) {
    step[name] = value;
  }
  const auto found = detect(step);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->master_addr, "gpu-a1");
}

// As Slurm 22.05 has them: --mpi=pmi2 adds PMI_*, cray_shasta PALS_* and PMI_*, pmix PMIX_*.
TEST(EnvironmentTest, AnyPmiUnderSrunIsSlurm) {
  for (const Variables& added :
       {Variables{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_JOBID", "3.0"}},
        Variables{{"PALS_RANKID", "1"}, {"PALS_NODEID", "0"}, {"PMI_CONTROL_PORT", "1"}},
        Variables{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "slurm.pmix.3.0"}}}) {
    Variables step = added;
    step.insert(kSlurm.begin(), kSlurm.end());
    const auto found = detect(step);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->method, LaunchMethod::kSlurm);
    EXPECT_EQ(found->rank, 1);
    EXPECT_EQ(found->world_size, 2);
  }
}

// srun from a login node: its address is not where rank 0 runs.
TEST(EnvironmentTest, SlurmPrefersTheStepsFirstNodeToTheLaunchNode) {
  const Variables step =
      with(with(kSlurm, "SLURM_STEP_NODELIST", "n[3,5]"), "SLURM_STEP_NUM_NODES", "2");
  EXPECT_EQ(detect(step)->master_addr, "n3");
  EXPECT_EQ(detect(with(step, "SLURM_STEP_NUM_NODES", "1"))->master_addr, "127.0.0.1");
  EXPECT_EQ(detect(with(step, "MASTER_ADDR", "chosen"))->master_addr, "chosen");
}

TEST(EnvironmentTest, SlurmJobsOnOneHostHaveTheirOwnPortsAndIdentities) {
  const Variables job = with(with(kSlurm, "SLURM_JOB_ID", "71"), "SLURM_STEP_ID", "0");
  const auto first = detect(job);
  const auto next_step = detect(with(job, "SLURM_STEP_ID", "1"));
  EXPECT_NE(first->master_port, next_step->master_port);
  EXPECT_NE(first->identity, next_step->identity);
  EXPECT_EQ(first->master_port, detect(with(job, "SLURM_PROCID", "0"))->master_port);
  EXPECT_EQ(detect(with(job, "MASTER_PORT", "4000"))->master_port, 4000);
}

TEST(EnvironmentTest, ReadsOpenMpi) {
  const auto found = detect(with(kOpenMpi, "PMIX_NAMESPACE", "2843148289"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->method, LaunchMethod::kOpenMpi);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->local_world_size, 2);
  EXPECT_EQ(found->master_addr, "localhost");
  EXPECT_NE(found->master_port,
            detect(with(kOpenMpi, "PMIX_NAMESPACE", "2843148290"))->master_port);
  EXPECT_EQ(found->master_port,
            detect(with(kOpenMpi, "OMPI_MCA_ess_base_jobid", "2843148289"))->master_port);
}

TEST(EnvironmentTest, OpenMpiAcrossHostsNeedsAnAddress) {
  const Variables spread = with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  EXPECT_THAT(error(with(spread, "OMPI_COMM_WORLD_LOCAL_RANK", "0")),
              HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
              HasSubstr("OMPI_COMM_WORLD_SIZE is not set"));
}

// Hydra's variables: MPICH and Intel MPI.
TEST(EnvironmentTest, ReadsMpich) {
  const auto found = detect(kMpich);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->method, LaunchMethod::kMpich);
  EXPECT_STREQ(to_string(found->method), "MPICH");
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->world_size, 2);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_world_size, 2);
  EXPECT_EQ(found->master_addr, "localhost");
  EXPECT_EQ(found->master_port, 12355);
  const auto spread = detect(
      with(with(with(kMpich, "MPI_LOCALNRANKS", "1"), "MASTER_ADDR", "a"), "MPI_LOCALRANKID", "0"));
  ASSERT_TRUE(spread.ok()) << spread.status();
  EXPECT_EQ(spread->master_addr, "a");
  EXPECT_EQ(detect(with(kMpich, "MASTER_PORT", "4000"))->master_port, 4000);
}

TEST(EnvironmentTest, ReadsPals) {
  const auto found = detect(kPals);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->method, LaunchMethod::kMpich);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->world_size, 4);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_world_size, 2);
  EXPECT_EQ(found->node_rank, 1);
  EXPECT_EQ(found->master_addr, "x1000");
  EXPECT_NE(found->master_port, detect(with(kPals, "PALS_APID", "d"))->master_port);
  EXPECT_EQ(found->identity, detect(with(kPals, "PALS_RANKID", "0"))->identity);
}

// Never silently a world of one.
TEST(EnvironmentTest, EveryMissingVariableOfMpichIsNamed) {
  EXPECT_THAT(
      error(without(kMpich, "PMI_SIZE")),
      AllOf(HasSubstr("PMI_SIZE is not set, though an MPICH launch"), HasSubstr("mpiexec")));
  EXPECT_THAT(error(without(kMpich, "PMI_RANK")), HasSubstr("PMI_RANK is not set"));
  EXPECT_THAT(error(without(kPals, "PMI_SIZE")), HasSubstr("PMI_SIZE is not set"));
  EXPECT_THAT(error(without(kPals, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not set"));
  // All ranks may be on this host, or not.
  EXPECT_THAT(error(without(kMpich, "MPI_LOCALNRANKS")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error(with(kMpich, "PMI_RANK", "2")),
              AllOf(HasSubstr("PMI_RANK=2"), HasSubstr("PMI_SIZE=2")));
  for (const char* name : {"MPI_LOCALRANKID", "PALS_LOCAL_RANKID"}) {
    EXPECT_THAT(error({{name, "0"}}), HasSubstr("PMI_RANK is not set"));
  }
  EXPECT_THAT(error({{"PMIX_RANK", "0"}}), HasSubstr("PMIX_RANK is set, by a launcher"));
}

// srun --mpi=pmi2 sets them as well; mpiexec and mpirun start their helpers with srun.
TEST(EnvironmentTest, SlurmWinsUnlessAnotherLauncherStartedOtherRanksWithinItsStep) {
  for (const auto& [launcher, size, method] :
       {std::tuple(kMpich, "PMI_SIZE", LaunchMethod::kMpich),
        std::tuple(kOpenMpi, "OMPI_COMM_WORLD_SIZE", LaunchMethod::kOpenMpi)}) {
    Variables both = launcher;
    both.insert(kSlurm.begin(), kSlurm.end());
    EXPECT_EQ(detect(both)->method, LaunchMethod::kSlurm);
    // mpirun -n 2 in a batch script of a job with as many tasks: all ranks choose alike.
    for (const char* const rank : {"0", "1"}) {
      Variables batch = with(without(both, "SLURM_STEP_NUM_TASKS"), "SLURM_PROCID", "0");
      batch[launcher.contains("PMI_RANK") ? "PMI_RANK" : "OMPI_COMM_WORLD_RANK"] = rank;
      EXPECT_EQ(detect(batch)->method, method) << rank;
      EXPECT_EQ(detect(without(batch, "SLURM_NPROCS"))->method, method) << rank;
    }
    // srun of two tasks by a process that an outer launcher started alone.
    EXPECT_EQ(detect(with(with(both, size, "1"), "SLURM_PROCID", "1"))->method,
              LaunchMethod::kSlurm);
  }
}

TEST(EnvironmentTest, TheFirstLauncherInTheOrderWins) {
  Variables all = kMpich;
  EXPECT_EQ(detect(all)->method, LaunchMethod::kMpich);
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(detect(all)->method, LaunchMethod::kOpenMpi);
  all.insert(kSlurm.begin(), kSlurm.end());
  EXPECT_EQ(detect(all)->method, LaunchMethod::kSlurm);
  all.insert(kEnv.begin(), kEnv.end());
  EXPECT_EQ(detect(all)->method, LaunchMethod::kEnv);
  all["MESHRUN_AGENT"] = "unix:/run/agent.sock";
  EXPECT_EQ(detect(all)->method, LaunchMethod::kCoordinator);
}

TEST(EnvironmentTest, AMethodCanBeForced) {
  Variables all = kEnv;
  all.insert(kSlurm.begin(), kSlurm.end());
  all["PHYSICSNEMO_DISTRIBUTED_INITIALIZATION_METHOD"] = "SLURM";
  EXPECT_EQ(detect(all)->method, LaunchMethod::kSlurm);
  all["MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD"] = "ENV";
  EXPECT_EQ(detect(all)->method, LaunchMethod::kEnv);
  EXPECT_EQ(detect(all, "SINGLE")->method, LaunchMethod::kSingle);
  EXPECT_THAT(error(with(all, "MESHRUN_DISTRIBUTED_INITIALIZATION_METHOD", "env")),
              AllOf(HasSubstr("\"env\""), HasSubstr("COORDINATOR, ENV, SLURM, OPENMPI")));
  EXPECT_THAT(error(all, "COORDINATOR"), HasSubstr("MESHRUN_AGENT is not set"));
}

TEST(EnvironmentTest, IdentitiesDifferByAddressAndWorld) {
  std::set<std::string> identities;
  for (const Variables& job :
       {kEnv, with(kEnv, "MASTER_PORT", "29501"), with(kEnv, "WORLD_SIZE", "5"),
        with(kEnv, "TORCHELASTIC_RUN_ID", "a"), with(kEnv, "MESHRUN_JOB_ID", "a")}) {
    EXPECT_TRUE(identities.insert(detect(job)->identity).second);
    EXPECT_EQ(detect(job)->identity, detect(with(job, "RANK", "0"))->identity);
  }
}

TEST(EnvironmentTest, JobsThatNobodyNumberedDifferByUserProgramAndDirectory) {
  const Variables slurm = without(kSlurm, "SLURM_JOB_ID");
  for (const Variables& launch : {kEnv, slurm, kOpenMpi, kMpich}) {
    const auto identity = [](const Variables& variables, const std::string& process) {
      return detect_environment(
                 [&](const std::string& name) -> std::optional<std::string> {
                   const auto found = variables.find(name);
                   return found == variables.end() ? std::nullopt
                                                   : std::optional<std::string>(found->second);
                 },
                 std::nullopt, process)
          ->identity;
    };
    EXPECT_NE(identity(launch, "user 1, /a/b"), identity(launch, "user 2, /a/b"));
    const Variables numbered = with(launch, "MESHRUN_JOB_ID", "mine");
    EXPECT_EQ(identity(numbered, "user 1, /a/b"), identity(numbered, "user 2, /a/b"));
    EXPECT_THAT(identity(numbered, "user 1, /a/b"), HasSubstr("mine"));
  }
  EXPECT_THAT(this_process(), AllOf(HasSubstr("user "), HasSubstr("plans_test")));
  EXPECT_EQ(this_process(), this_process());
}

TEST(EnvironmentTest, ARanksGpuIsTheFirstOfItsOwnAmongTheVisibleOnes) {
  const auto gpu = [](const Variables& variables) {
    return assigned_gpu([&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end()) return std::nullopt;
      return found->second;
    });
  };
  const Variables host = {{"CUDA_VISIBLE_DEVICES", "4,5,2,13"}};
  EXPECT_EQ(gpu(with(host, "MESHRUN_GPUS", "4,5")), 0);
  EXPECT_EQ(gpu(with(host, "MESHRUN_GPUS", "2,13")), 2);
  EXPECT_EQ(gpu(with(host, "MESHRUN_GPUS", "13")), 3);
  EXPECT_EQ(gpu(with(host, "MESHRUN_GPUS", "3")), std::nullopt);
  EXPECT_EQ(gpu(host), std::nullopt);
  EXPECT_EQ(gpu({{"MESHRUN_GPUS", "2"}}), std::nullopt);
}

// srun --gpu-bind shows each rank its own GPU alone.
TEST(EnvironmentTest, ARankThatSeesOneGpuTakesIt) {
  for (const int local_rank : {0, 1, 7}) EXPECT_EQ(gpu_index(local_rank, 1, std::nullopt), 0);
  EXPECT_EQ(gpu_index(3, 4, std::nullopt), 3);
  EXPECT_EQ(gpu_index(5, 4, std::nullopt), 1);
  EXPECT_EQ(gpu_index(1, 4, 2), 2);
}

// Communicators that are parts of what mpirun started.
TEST(EnvironmentTest, WorldsBesideEachOtherTakeDifferentGpus) {
  EXPECT_EQ(gpu_index(0, 4, std::nullopt, {2, 3}), 2);
  EXPECT_EQ(gpu_index(1, 4, std::nullopt, {3, 2}), 3);
  EXPECT_EQ(gpu_index(1, 4, 0, {3, 2}), 0);
  // Ranks 0, 4 and 8 of 12 would share GPU 0.
  EXPECT_EQ(gpu_index(1, 4, std::nullopt, {4, 0, 8}), 1);
  EXPECT_EQ(gpu_index(2, 4, std::nullopt, {8, 0, 4}), 2);
}

TEST(EnvironmentTest, TheLauncherNumbersTheProcessesOfAHost) {
  const auto number = [](const Variables& variables) {
    return launched_local_rank([&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end()) return std::nullopt;
      return found->second;
    });
  };
  const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "6"},
                              {"OMPI_COMM_WORLD_SIZE", "8"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
  // Variables of two hosts, without the MASTER_ADDR that a launch without MPI needs.
  EXPECT_EQ(number(open_mpi), 2);
  EXPECT_EQ(number({{"PMI_RANK", "6"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "3"}}), 3);
  EXPECT_EQ(number({{"PALS_RANKID", "6"}, {"PALS_LOCAL_RANKID", "1"}}), 1);
  EXPECT_EQ(number({{"SLURM_PROCID", "6"}, {"SLURM_LOCALID", "0"}}), 0);
  EXPECT_EQ(number({}), -1);
  EXPECT_EQ(number(with(open_mpi, "OMPI_COMM_WORLD_LOCAL_RANK", "many")), -1);
}

TEST(EnvironmentTest, TheTimeoutIsInSeconds) {
  EXPECT_EQ(detect(kEnv)->timeout, std::nullopt);
  EXPECT_EQ(detect(with(kEnv, "MESHRUN_TIMEOUT_SECONDS", "2.5"))->timeout, milliseconds(2500));
  for (const char* value : {"0", "-1", "soon", "5s", "nan", "inf", "1e12"}) {
    EXPECT_THAT(error(with(kEnv, "MESHRUN_TIMEOUT_SECONDS", value)),
                HasSubstr("MESHRUN_TIMEOUT_SECONDS"));
  }
}

TEST(EnvironmentTest, TheModelParallelSizeDividesTheWorld) {
  EXPECT_EQ(detect(kEnv)->model_parallel_size, std::nullopt);
  const auto two = detect(with(kEnv, "MODEL_PARALLEL_SIZE", "2"));
  EXPECT_EQ(two->model_parallel_size, 2);
  // Ranks that have another one do not meet.
  EXPECT_NE(two->identity, detect(kEnv)->identity);
  for (const char* value : {"0", "-1", "two", "2.0"}) {
    EXPECT_THAT(error(with(kEnv, "MODEL_PARALLEL_SIZE", value)),
                HasSubstr("is not an integer of at least 1"));
  }
  EXPECT_TRUE(check_model_parallel_size(std::nullopt, 3, 2).ok());
  EXPECT_TRUE(check_model_parallel_size(2, 4, std::nullopt).ok());
  EXPECT_TRUE(check_model_parallel_size(2, 4, 2).ok());
  EXPECT_THAT(check_model_parallel_size(2, 3, std::nullopt).message(),
              HasSubstr("MODEL_PARALLEL_SIZE=2 does not divide the world size 3"));
  EXPECT_THAT(check_model_parallel_size(2, 4, 4).message(), HasSubstr("has 4 ranks"));
}

TEST(EnvironmentTest, TheTimeOfADeadlockIsInSecondsOrZero) {
  EXPECT_EQ(detect(kEnv)->deadlock_after, std::nullopt);
  EXPECT_EQ(detect(with(kEnv, "MESHRUN_DEADLOCK_SECONDS", "3.5"))->deadlock_after,
            milliseconds(3500));
  EXPECT_EQ(detect(with(kEnv, "MESHRUN_DEADLOCK_SECONDS", "0"))->deadlock_after, milliseconds(0));
  for (const char* value : {"2.9", "-1", "soon", "5s", "nan", "inf", "1e12"}) {
    EXPECT_THAT(error(with(kEnv, "MESHRUN_DEADLOCK_SECONDS", value)),
                HasSubstr("is not a number of seconds between 3 and 2147483, nor 0"));
  }
}

}  // namespace
}  // namespace meshrun
