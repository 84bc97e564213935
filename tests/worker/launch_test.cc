// What ranks are started with: pure functions of what the coordinator asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/env_entries.h"
#include "core/os/files.h"
#include "tests/worker/support/processes.h"
#include "worker/launch/job_limits.h"
#include "worker/launch/launch_plan.h"
#include "worker/launch/rank_environment.h"
#include "worker/launch/shipped_jobs.h"

namespace meshrun::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Ranks 2 and 3 of 4, on the second of two hosts.
v1::GenerationRecord TwoOfFour() {
  v1::GenerationRecord record;
  record.mutable_fence()->set_job_id("geoid-k3x9w2");
  record.mutable_fence()->set_generation(7);
  record.set_token("secret");
  v1::Prepare& prepare = *record.mutable_prepare();
  prepare.set_world_size(4);
  prepare.set_node_count(2);
  prepare.set_restarts(1);
  prepare.mutable_spec()->set_max_restarts(3);
  for (const char* const word : {"./train", "--fast"}) prepare.mutable_spec()->add_command(word);
  for (int i = 0; i < 2; ++i) {
    v1::RankAssignment& rank = *prepare.add_ranks();
    rank.set_rank(2 + i);
    rank.set_local_rank(i);
    rank.set_node_rank(1);
  }
  return record;
}

const HostFacts kHost = {.node_name = "b", .agent_address = "unix:/s/agent.sock", .cores = 12};

Environment EnvironmentOf(const v1::GenerationRecord& record, int local_rank,
                          const Environment& inherited = {}, const HostFacts& host = kHost) {
  v1::RankLaunch launch;
  launch.set_error_file("/l/2.error.json");
  launch.set_report_socket("/g/r2.sock");
  launch.set_stack_file("/g/s2.7");
  launch.set_picture_directory("/l/2.pictures");
  return RankEnvironment(inherited, record, local_rank, host, launch);
}

TEST(RankEnvironmentTest, HoldsTorchrunsVariablesAndMeshrunsOwn) {
  const Environment expected = {{"RANK", "3"},
                                {"LOCAL_RANK", "1"},
                                {"WORLD_SIZE", "4"},
                                {"LOCAL_WORLD_SIZE", "2"},
                                {"GROUP_RANK", "1"},
                                {"GROUP_WORLD_SIZE", "2"},
                                {"NODE_RANK", "1"},
                                {"ROLE_RANK", "3"},
                                {"ROLE_WORLD_SIZE", "4"},
                                {"ROLE_NAME", "default"},
                                {"TORCHELASTIC_RESTART_COUNT", "1"},
                                {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                {"TORCHELASTIC_RUN_ID", "geoid-k3x9w2"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                {"TORCHELASTIC_ERROR_FILE", "/l/2.error.json"},
                                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                {"OMP_NUM_THREADS", "1"},
                                {"PYTHONUNBUFFERED", "1"},
                                {"MESHRUN_AGENT", "unix:/s/agent.sock"},
                                {"MESHRUN_JOB_ID", "geoid-k3x9w2"},
                                {"MESHRUN_GENERATION", "7"},
                                {"MESHRUN_TOKEN", "secret"},
                                {"MESHRUN_REPORT", "/g/r2.sock"},
                                {"MESHRUN_STACK_FILE", "/g/s2.7"},
                                {"MESHRUN_PICTURES", "/l/2.pictures"},
                                {"MESHRUN_NODE_NAME", "b"}};
  EXPECT_EQ(EnvironmentOf(TwoOfFour(), 1), expected);
}

TEST(RankEnvironmentTest, TheJobsVariablesAreAboveTheDaemonsAndBelowMeshruns) {
  v1::GenerationRecord record = TwoOfFour();
  auto& env = *record.mutable_prepare()->mutable_spec()->mutable_env();
  SetEnv(env, "DATA", "/job");
  SetEnv(env, "RANK", "99");
  SetEnv(env, "OMP_NUM_THREADS", "6");
  const Environment out = EnvironmentOf(record, 0, {{"DATA", "/daemon"}, {"HOME", "/h"}});
  EXPECT_EQ(out.at("DATA"), "/job");
  EXPECT_EQ(out.at("HOME"), "/h");
  EXPECT_EQ(out.at("RANK"), "2");
  EXPECT_EQ(out.at("OMP_NUM_THREADS"), "6");
}

TEST(RankEnvironmentTest, OneRankOnAHostHasAThreadForEachCore) {
  v1::GenerationRecord record = TwoOfFour();
  record.mutable_prepare()->mutable_ranks()->RemoveLast();
  EXPECT_EQ(EnvironmentOf(record, 0).at("OMP_NUM_THREADS"), "12");
}

TEST(RankEnvironmentTest, ThreadsAreTheSlotsOfARank) {
  v1::GenerationRecord record = TwoOfFour();
  record.mutable_prepare()->mutable_spec()->set_cpus_per_proc(3);
  EXPECT_EQ(EnvironmentOf(record, 0).at("OMP_NUM_THREADS"), "3");
  record.mutable_prepare()->mutable_ranks()->RemoveLast();
  EXPECT_EQ(EnvironmentOf(record, 0).at("OMP_NUM_THREADS"), "3");
}

TEST(RankEnvironmentTest, ARankHasNoMoreThreadsThanCoresThatItIsBoundTo) {
  v1::GenerationRecord record = TwoOfFour();
  record.mutable_prepare()->mutable_spec()->set_cpus_per_proc(3);
  HostFacts host = kHost;
  host.cores_of_ranks = {{0, 1}, {2, 3, 4, 5}};
  EXPECT_EQ(EnvironmentOf(record, 0, {}, host).at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(EnvironmentOf(record, 1, {}, host).at("OMP_NUM_THREADS"), "3");
  record.mutable_prepare()->mutable_ranks()->RemoveLast();
  record.mutable_prepare()->mutable_spec()->set_cpus_per_proc(1);
  host.cores_of_ranks = {{2, 3, 4, 5}};
  EXPECT_EQ(EnvironmentOf(record, 0, {}, host).at("OMP_NUM_THREADS"), "4") << "alone on its host";
}

TEST(RankEnvironmentTest, ListsTheJobsGpusOfTheHostByLocalRank) {
  v1::GenerationRecord record = TwoOfFour();
  record.mutable_prepare()->mutable_ranks(0)->add_gpus(5);
  record.mutable_prepare()->mutable_ranks(1)->add_gpus(2);
  HostFacts host = kHost;
  host.has_gpus = true;
  const Environment out = EnvironmentOf(record, 1, {}, host);
  EXPECT_EQ(out.at("CUDA_VISIBLE_DEVICES"), "5,2");
  EXPECT_EQ(out.at("MESHRUN_GPUS"), "2");
  EXPECT_EQ(out.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
}

TEST(RankEnvironmentTest, ARanksOwnGpusStandInTheListByTheSameNumbers) {
  v1::GenerationRecord record = TwoOfFour();
  for (const uint32_t gpu : {5u, 7u}) record.mutable_prepare()->mutable_ranks(0)->add_gpus(gpu);
  for (const uint32_t gpu : {0u, 2u}) record.mutable_prepare()->mutable_ranks(1)->add_gpus(gpu);
  HostFacts host = kHost;
  host.has_gpus = true;
  const Environment out = EnvironmentOf(record, 1, {{"CUDA_DEVICE_ORDER", "FASTEST_FIRST"}}, host);
  EXPECT_EQ(out.at("CUDA_VISIBLE_DEVICES"), "5,7,0,2");
  EXPECT_EQ(out.at("MESHRUN_GPUS"), "0,2");
  // Another order would make other GPUs of the same numbers.
  EXPECT_EQ(out.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
}

// Where a job cannot open the others, CUDA numbers its own from 0.
TEST(RankEnvironmentTest, GpusHaveTheirNamesWhereAJobSeesItsOwnAlone) {
  v1::GenerationRecord record = TwoOfFour();
  record.mutable_prepare()->mutable_ranks(0)->add_gpus(5);
  record.mutable_prepare()->mutable_ranks(1)->add_gpus(2);
  HostFacts host = kHost;
  host.has_gpus = true;
  host.gpu_uuids = {{2, "GPU-b"}, {5, "GPU-e"}};
  const Environment env = EnvironmentOf(record, 1, {}, host);
  EXPECT_EQ(env.at("CUDA_VISIBLE_DEVICES"), "GPU-e,GPU-b");
  EXPECT_EQ(env.at("MESHRUN_GPUS"), "GPU-b");
}

TEST(RankEnvironmentTest, AJobWithoutGpusSeesNoneOfTheHosts) {
  HostFacts host = kHost;
  host.has_gpus = true;
  EXPECT_EQ(EnvironmentOf(TwoOfFour(), 0, {{"CUDA_VISIBLE_DEVICES", "0,1"}}, host)
                .at("CUDA_VISIBLE_DEVICES"),
            "");
  EXPECT_FALSE(EnvironmentOf(TwoOfFour(), 0).contains("CUDA_VISIBLE_DEVICES"));
}

TEST(RankEnvironmentTest, NamesTheMesh) {
  v1::GenerationRecord record = TwoOfFour();
  for (const char* const name : {"dp", "spatial"}) {
    v1::MeshAxis& axis = *record.mutable_prepare()->add_mesh();
    axis.set_name(name);
    axis.set_size(2);
  }
  EXPECT_EQ(EnvironmentOf(record, 0).at("MESHRUN_MESH"), "dp=2,spatial=2");
  // A rank that itself runs meshrun does not hand its own down.
  EXPECT_FALSE(EnvironmentOf(TwoOfFour(), 0, {{"MESHRUN_MESH", "dp=9"}}).contains("MESHRUN_MESH"));
}

TEST(RankEnvironmentTest, GlooIsToldTheInterfaceWhereTheHostsNameLeadsNowhere) {
  HostFacts host = kHost;
  EXPECT_FALSE(EnvironmentOf(TwoOfFour(), 0, {}, host).contains("GLOO_SOCKET_IFNAME"));
  host.gloo_interface = "eth0";
  EXPECT_EQ(EnvironmentOf(TwoOfFour(), 0, {}, host).at("GLOO_SOCKET_IFNAME"), "eth0");
  EXPECT_EQ(
      EnvironmentOf(TwoOfFour(), 0, {{"GLOO_SOCKET_IFNAME", "ib0"}}, host).at("GLOO_SOCKET_IFNAME"),
      "ib0");
  v1::GenerationRecord alone = TwoOfFour();
  alone.mutable_prepare()->set_node_count(1);
  EXPECT_FALSE(EnvironmentOf(alone, 0, {}, host).contains("GLOO_SOCKET_IFNAME"));
}

TEST(RankEnvironmentTest, ProgramsOfTheSubmittersVirtualEnvComeFirst) {
  v1::JobSpec spec;
  const Environment own = {{"PATH", "/usr/bin"}};
  EXPECT_EQ(WithVirtualEnv(own, spec), own);
  SetEnv(*spec.mutable_env(), "VIRTUAL_ENV", "/home/me/venv");
  EXPECT_EQ(WithVirtualEnv(own, spec).at("PATH"), "/home/me/venv/bin:/usr/bin");
  EXPECT_EQ(WithVirtualEnv({}, spec).at("PATH"), "/home/me/venv/bin:/usr/local/bin:/usr/bin:/bin");
  SetEnv(*spec.mutable_env(), "PATH", "/opt");
  EXPECT_EQ(WithVirtualEnv(own, spec), own);
}

TEST(RankEnvironmentTest, KeepsTheDaemonsSecretsToItself) {
  const char* const environ[] = {"MESHRUN_TLS_KEY=/etc/key.pem", "NOTIFY_SOCKET=/run/n", "A=b=c",
                                 nullptr};
  EXPECT_EQ(InheritedEnvironment(environ), (Environment{{"A", "b=c"}}));
}

TEST(LaunchPlanTest, ChosenOutputLiesInTheUsersDirectoryAsTorchrunsDoes) {
  LogLayout layout;
  const auto path = [&](int rank, v1::LogStream stream) {
    return layout.Path("/own/7", "geoid-k3x9w2", 7, rank, stream);
  };
  EXPECT_EQ(path(3, v1::LOG_STREAM_STDERR), "/own/7/3.stderr.log");
  layout.directory = "/logs";
  layout.tee = *StreamChoice::Parse("3:1");
  layout.redirects = *StreamChoice::Parse("2:2");
  EXPECT_EQ(path(3, v1::LOG_STREAM_STDOUT), "/logs/geoid-k3x9w2/attempt_6/3/stdout.log");
  EXPECT_EQ(path(3, v1::LOG_STREAM_STDERR), "/own/7/3.stderr.log");
  EXPECT_EQ(path(2, v1::LOG_STREAM_STDERR), "/logs/geoid-k3x9w2/attempt_6/2/stderr.log");
  EXPECT_EQ(layout.ErrorFile("/own/7", "geoid-k3x9w2", 7, 2),
            "/logs/geoid-k3x9w2/attempt_6/2/error.json");
  EXPECT_EQ(layout.DumpFile("/own/7", "geoid-k3x9w2", 7, 2),
            "/logs/geoid-k3x9w2/attempt_6/2/dump.txt");
  EXPECT_EQ(LogLayout().DumpFile("/own/7", "geoid-k3x9w2", 7, 2), "/own/7/2.dump.txt");
  EXPECT_EQ(LogLayout().FlightRecordFile("/own/7", "geoid-k3x9w2", 7, 2),
            "/own/7/2.flight_record.json");
  EXPECT_TRUE(IsOfLogLayout(path(2, v1::LOG_STREAM_STDERR)));
  EXPECT_FALSE(IsOfLogLayout(path(3, v1::LOG_STREAM_STDERR)));
}

TEST(LaunchPlanTest, RunsTheProgramWithTheCommandsArguments) {
  const v1::SupervisorLaunch launch = MakeLaunch(TwoOfFour(), "/srv/train", "/srv", {}, kHost,
                                                 {"/g", "/logs"}, std::chrono::seconds(5));
  ASSERT_EQ(launch.ranks_size(), 2);
  EXPECT_EQ(launch.fence().generation(), 7u);
  EXPECT_EQ(launch.lease().seconds(), 5);
  const v1::RankLaunch& rank = launch.ranks(1);
  EXPECT_EQ(rank.rank(), 3);
  EXPECT_THAT(rank.argv(), ElementsAre("/srv/train", "--fast"));
  EXPECT_EQ(rank.working_dir(), "/srv");
  EXPECT_EQ(rank.stdout_path(), "/logs/3.stdout.log");
  EXPECT_EQ(rank.stderr_path(), "/logs/3.stderr.log");
  EXPECT_EQ(rank.error_file(), "/logs/3.error.json");
  EXPECT_EQ(rank.picture_directory(), "/logs/3.pictures");
  EXPECT_EQ(rank.report_socket(), "/g/r3.sock");
  EXPECT_EQ(EnvMap(rank.env()).at("RANK"), "3");
}

TEST(LaunchPlanTest, TheCoresOfARankAreThoseOfItsPlaceOnTheHost) {
  v1::GenerationRecord record = TwoOfFour();
  HostFacts host = kHost;
  host.cores_of_ranks = {{0, 1}, {2, 3}};
  // A process that lives on keeps its cores, and the other one gets its own.
  record.mutable_prepare()->mutable_ranks(0)->set_process_generation(6);
  const auto launch = MakeLaunch(record, "/srv/train", "/srv", {}, host, {"/g", "/logs"}, {});
  ASSERT_EQ(launch.ranks_size(), 1);
  EXPECT_EQ(launch.ranks(0).rank(), 3);
  EXPECT_THAT(launch.ranks(0).cores(), ElementsAre(2, 3));
}

TEST(LaunchPlanTest, AShippedJobsCommandIsItsArguments) {
  v1::GenerationRecord record = TwoOfFour();
  v1::JobSpec& spec = *record.mutable_prepare()->mutable_spec();
  spec.set_shipped_job("geoid");
  spec.clear_command();
  spec.add_command("--steps=3");
  const auto launch = MakeLaunch(record, "/jobs/geoid", "/", {}, kHost, {"/g", "/logs"}, {});
  EXPECT_THAT(launch.ranks(0).argv(), ElementsAre("/jobs/geoid", "--steps=3"));
}

class FindProgramTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, int mode) {
    ASSERT_TRUE(os::WriteFileAtomically(directory_ / name, "#!/bin/sh\n", mode).ok());
  }
  bool Resolve(const std::string& command) {
    spec_.clear_command();
    spec_.add_command(command);
    found_ = FindProgram(SearchFor(spec_, directory_ / "jobs", working_dir_, inherited_));
    return found_.error().empty();
  }

  testing::TemporaryDirectory directory_;
  std::string working_dir_ = directory_.path();
  Environment inherited_ = {{"PATH", directory_.path()}};
  v1::JobSpec spec_;
  v1::ProgramFound found_;
};

TEST_F(FindProgramTest, LooksInTheWorkingDirectoryAndAlongThePath) {
  Write("train", 0755);
  EXPECT_TRUE(Resolve("./train"));
  EXPECT_TRUE(Resolve("train"));
  EXPECT_EQ(found_.program(), directory_ / "train");
  SetEnv(*spec_.mutable_env(), "PATH", "/nowhere");
  EXPECT_FALSE(Resolve("train"));
}

TEST_F(FindProgramTest, AMissingOrUnexecutableProgramIsTheJobsFault) {
  EXPECT_FALSE(Resolve("./absent"));
  EXPECT_TRUE(found_.bad_command());
  EXPECT_THAT(found_.error(), HasSubstr("no such file"));
  Write("plain", 0644);
  EXPECT_FALSE(Resolve("./plain"));
  EXPECT_TRUE(found_.bad_command());
  EXPECT_THAT(found_.error(), HasSubstr("not executable"));
}

TEST_F(FindProgramTest, AMissingWorkingDirectoryIsTheJobsUnlessAnotherHostHasIt) {
  working_dir_ = directory_ / "elsewhere";
  EXPECT_FALSE(Resolve("/bin/true"));
  EXPECT_TRUE(found_.bad_command());
  EXPECT_THAT(found_.error(), HasSubstr("working directory"));
}

TEST_F(FindProgramTest, ShippedJobsAreFoundByName) {
  ASSERT_TRUE(os::MakeDirectories(directory_ / "jobs/geoid").ok());
  Write("jobs/geoid/geoid", 0755);
  Write("jobs/recipe", 0755);
  Write("jobs/README", 0644);
  EXPECT_THAT(ListShippedJobs(directory_ / "jobs"), ElementsAre("geoid", "recipe"));
  spec_.set_shipped_job("geoid");
  EXPECT_TRUE(Resolve(""));
  EXPECT_EQ(found_.program(), directory_ / "jobs/geoid/geoid");
  for (const char* const wrong : {"ocean", "../jobs/recipe", ".", ""}) {
    EXPECT_FALSE(FindShippedJob(directory_ / "jobs", wrong, false).ok()) << wrong;
  }
  EXPECT_THAT(std::string(FindShippedJob(directory_ / "jobs", "ocean", false).status().message()),
              HasSubstr("geoid, recipe"));
}

TEST_F(FindProgramTest, ARankWithGpusGetsTheShippedJobsProgramForThem) {
  ASSERT_TRUE(os::MakeDirectories(directory_ / "jobs/geoid").ok());
  Write("jobs/geoid/geoid", 0755);
  Write("jobs/geoid/geoid_cuda", 0755);
  Write("jobs/recipe", 0755);
  Write("jobs/recipe_cuda", 0755);
  EXPECT_THAT(ListShippedJobs(directory_ / "jobs"), ElementsAre("geoid", "recipe"));
  for (const std::string name : {"geoid/geoid", "recipe"}) {
    spec_.set_shipped_job(name.substr(0, name.find('/')));
    spec_.set_gpus_per_proc(0);
    EXPECT_TRUE(Resolve(""));
    EXPECT_EQ(found_.program(), directory_ / ("jobs/" + name));
    spec_.set_gpus_per_proc(1);
    EXPECT_TRUE(Resolve(""));
    EXPECT_EQ(found_.program(), directory_ / ("jobs/" + name + "_cuda"));
  }
}

TEST(JobLimitsTest, AreWhatEachRankHereAskedFor) {
  v1::GenerationRecord record = TwoOfFour();
  v1::JobSpec& spec = *record.mutable_prepare()->mutable_spec();
  spec.set_memory_bytes(500 << 20);
  spec.set_cpus_per_proc(3);
  const v1::ResourceLimits limits =
      LimitsFor(record.prepare(), {.memory_bytes = uint64_t{64} << 30, .pids_per_rank = 100}, 0);
  EXPECT_EQ(limits.memory_bytes(), uint64_t{1000} << 20);
  EXPECT_EQ(limits.cores(), 6u);
  EXPECT_EQ(limits.pids(), 200u);
  EXPECT_EQ(LimitsFor(record.prepare(), {}, 3).memory_bytes(), uint64_t{2500} << 20)
      << "three of the generation before are still there";
  EXPECT_EQ(LimitsFor(record.prepare(), {.pids_per_rank = 1 << 22}, 0).pids(), 1u << 22)
      << "the kernel takes no more";
  EXPECT_THAT(limits.denied(), IsEmpty());
}

TEST(JobLimitsTest, WhoAsksForNoMemoryHasWhatTheHostOffers) {
  const v1::ResourceLimits limits =
      LimitsFor(TwoOfFour().prepare(), {.memory_bytes = uint64_t{64} << 30}, 0);
  EXPECT_EQ(limits.memory_bytes(), uint64_t{64} << 30);
  EXPECT_EQ(limits.cores(), 2u);
}

TEST(JobLimitsTest, GpusOfOthersAreDenied) {
  v1::GenerationRecord record = TwoOfFour();
  record.mutable_prepare()->mutable_ranks(0)->add_gpus(0);
  record.mutable_prepare()->mutable_ranks(1)->add_gpus(2);
  // The second GPU is /dev/nvidia3, and one is not offered.
  HostLimits host = {.minor_by_gpu = {{0, 0}, {1, 3}, {2, 1}}, .minors = {0, 1, 2, 3}};
  const auto minors = [](const auto& devices) {
    std::vector<uint32_t> out;
    for (const auto& device : devices) out.push_back(device.minor());
    return out;
  };
  const v1::ResourceLimits limits = LimitsFor(record.prepare(), host, 0);
  EXPECT_THAT(minors(limits.allowed()), ElementsAre(0, 1));
  EXPECT_THAT(minors(limits.denied()), ElementsAre(2, 3));
  EXPECT_EQ(limits.denied(0).major(), 195u);
  // The generation that follows has other ones: until it has begun, both.
  record.mutable_prepare()->mutable_ranks(1)->set_gpus(0, 1);
  const v1::ResourceLimits both = Both(limits, LimitsFor(record.prepare(), host, 0));
  EXPECT_THAT(minors(both.allowed()), ElementsAre(0, 1, 3));
  EXPECT_THAT(minors(both.denied()), ElementsAre(2));
  // Without GPUs of its own it opens none; with one whose device nobody knows, nobody knows.
  EXPECT_THAT(minors(LimitsFor(TwoOfFour().prepare(), host, 0).denied()), ElementsAre(0, 1, 2, 3));
  host.minor_by_gpu.erase(0);
  EXPECT_THAT(LimitsFor(record.prepare(), host, 0).denied(), IsEmpty());
}

}  // namespace
}  // namespace meshrun::worker
