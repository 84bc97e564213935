#include "client/cli/job_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/job_spec.h"
#include "core/env_entries.h"

namespace meshrun::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JobContext Context() {
  JobContext context;
  context.working_dir = "/work";
  context.variable = [](const std::string& name) -> std::optional<std::string> {
    return name == "DATA" ? std::optional<std::string>("/data") : std::nullopt;
  };
  context.find_program = [](const std::string& program) {
    return program == "./tool.py" || program == "./train" ? absl::OkStatus()
                                                          : absl::NotFoundError("no such file");
  };
  return context;
}

v1::JobSpec Apply(const JobFlags& flags, const std::vector<std::string>& command) {
  v1::JobSpec spec;
  const absl::Status status = ApplyJobFlags(flags, command, Context(), &spec);
  EXPECT_TRUE(status.ok()) << status;
  return spec;
}

std::string ErrorOf(const JobFlags& flags, const std::vector<std::string>& command = {"./train"}) {
  v1::JobSpec spec;
  const absl::Status status = ApplyJobFlags(flags, command, Context(), &spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(JobFlagsTest, DefaultsAreOneRankHere) {
  const v1::JobSpec spec = Apply({}, {"./train", "--steps", "3"});
  EXPECT_EQ(spec.name(), "train");
  EXPECT_THAT(spec.command(), ElementsAre("./train", "--steps", "3"));
  EXPECT_EQ(spec.working_dir(), "/work");
  EXPECT_EQ(spec.min_nodes(), 1u);
  EXPECT_EQ(spec.max_nodes(), 1u);
  EXPECT_EQ(spec.procs_per_node().count(), 1u);
  EXPECT_FALSE(spec.has_kill_grace());
  EXPECT_FALSE(spec.has_gpus_per_proc());
}

TEST(JobFlagsTest, TheSubmittersVirtualEnvGoesAlongUnlessTheJobSaysOtherwise) {
  JobContext context;
  std::string value = "/home/me/venv";
  context.variable = [&value](const std::string& name) -> std::optional<std::string> {
    return name == "VIRTUAL_ENV" ? std::optional(value) : std::nullopt;
  };
  v1::JobSpec spec;
  PassVirtualEnv(context, &spec);
  ASSERT_NE(FindEnv(spec.env(), "VIRTUAL_ENV"), nullptr);
  EXPECT_EQ(*FindEnv(spec.env(), "VIRTUAL_ENV"), value);
  value = "/home/me/another";
  PassVirtualEnv(context, &spec);
  EXPECT_EQ(*FindEnv(spec.env(), "VIRTUAL_ENV"), "/home/me/venv");
  v1::JobSpec with_path;
  SetEnv(*with_path.mutable_env(), "PATH", "/usr/bin");
  PassVirtualEnv(context, &with_path);
  EXPECT_EQ(FindEnv(with_path.env(), "VIRTUAL_ENV"), nullptr);
}

TEST(JobFlagsTest, WhatHappensAfterAFailure) {
  JobFlags flags;
  flags.fields["--recovery"] = {"respawn"};
  flags.fields["--replace"] = {"at-once"};
  flags.fields["--grow"] = {"at-once"};
  const v1::JobSpec spec = Apply(flags, {"./train"});
  EXPECT_EQ(spec.recovery(), v1::RECOVERY_RESPAWN);
  EXPECT_TRUE(spec.replace_at_once());
  EXPECT_EQ(spec.growth(), v1::GROWTH_AT_ONCE);
  flags.fields["--grow"] = {"soon"};
  EXPECT_THAT(ErrorOf(flags), HasSubstr("--grow: 'soon': write checkpoint, at-once or never"));
}

TEST(JobFlagsTest, TheQueuesFlagsAreChecked) {
  JobFlags flags;
  flags.fields["--time-limit"] = {"1h30m"};
  flags.fields["--constraint"] = {"zone=a", "!spot"};
  flags.fields["--exclude"] = {"node-a"};
  flags.fields["--hold"] = {"true"};
  const v1::JobSpec spec = Apply(flags, {"./train"});
  EXPECT_EQ(spec.time_limit().seconds(), 5400);
  EXPECT_THAT(spec.constraints(), ElementsAre("zone=a", "!spot"));
  EXPECT_THAT(spec.exclude_nodes(), ElementsAre("node-a"));
  EXPECT_TRUE(spec.hold());
  flags.fields["--time-limit"] = {"0"};
  EXPECT_THAT(ErrorOf(flags), HasSubstr("--time-limit 0: write a time above 0, for example 1h30m, "
                                        "or leave it out to run without limit"));
  flags.fields["--time-limit"] = {"soon"};
  EXPECT_THAT(ErrorOf(flags), HasSubstr("--time-limit"));
  flags.fields.erase("--time-limit");
  flags.fields["--constraint"] = {"zone a"};
  EXPECT_THAT(ErrorOf(flags), HasSubstr("--constraint: 'zone a' is not a constraint"));
}

TEST(JobFlagsTest, WhatTheWholeJobRefusesIsNamedByItsFlag) {
  const auto error = [](const std::string& flag, const std::string& value) {
    JobFlags flags;
    flags.fields[flag] = {value};
    return ErrorOf(flags);
  };
  EXPECT_EQ(error("--nodes", "1:200000"),
            "--nodes 1:200000: 200000 is more than 100000, the most that is taken");
  EXPECT_EQ(error("--procs-per-node", "5000"),
            "--procs-per-node 5000: 5000 is more than 4096, the most that is taken");
  EXPECT_EQ(error("--cpus-per-proc", "5000"),
            "--cpus-per-proc 5000: 5000 is more than 4096, the most that is taken");
  EXPECT_EQ(error("--memory", "2048T"),
            "--memory 2048T: 2048.0 TiB of a rank is more than 1 PiB, the most that is taken");
  EXPECT_EQ(error("--kill-grace", "3650d"),
            "--kill-grace 3650d: 315360000 s is not between 0 and ten years");
}

TEST(JobFlagsTest, AScriptThatIsNoProgramIsRunByPython) {
  EXPECT_THAT(Apply({}, {"train.py", "--lr", "1"}).command(),
              ElementsAre("python3", "-u", "train.py", "--lr", "1"));
  EXPECT_EQ(Apply({}, {"train.py"}).name(), "train");
  EXPECT_THAT(Apply({}, {"./tool.py"}).command(), ElementsAre("./tool.py"));
  JobFlags no_python;
  no_python.no_python = true;
  EXPECT_THAT(Apply(no_python, {"train.py"}).command(), ElementsAre("train.py"));
  JobFlags module;
  module.module = true;
  EXPECT_THAT(Apply(module, {"package.train", "-x"}).command(),
              ElementsAre("python3", "-u", "-m", "package.train", "-x"));
}

TEST(JobFlagsTest, FlagsWinOverTheFile) {
  v1::JobSpec spec;
  spec.set_name("from-file");
  spec.add_command("./other");
  spec.set_min_nodes(3);
  spec.set_max_nodes(3);
  spec.set_working_dir("/elsewhere");
  JobFlags flags;
  flags.fields["--nodes"] = {"1:2"};
  flags.fields["--name"] = {"mine"};
  ASSERT_TRUE(ApplyJobFlags(flags, {}, Context(), &spec).ok());
  EXPECT_EQ(spec.name(), "mine");
  EXPECT_THAT(spec.command(), ElementsAre("./other"));
  EXPECT_EQ(spec.max_nodes(), 2u);
  EXPECT_EQ(spec.working_dir(), "/elsewhere");
}

TEST(JobFlagsTest, AShippedJobTakesTheCommandAsItsArguments) {
  JobFlags flags;
  flags.fields["--job"] = {"geoid"};
  const v1::JobSpec spec = Apply(flags, {"--steps", "3"});
  EXPECT_EQ(spec.shipped_job(), "geoid");
  EXPECT_EQ(spec.name(), "geoid");
  EXPECT_THAT(spec.command(), ElementsAre("--steps", "3"));
}

// A file has a job and its arguments; the flag names another job.
TEST(JobFlagsTest, AJobThatAFlagNamesDoesNotGetTheArgumentsOfTheFilesJob) {
  v1::JobSpec spec;
  spec.set_shipped_job("geoid");
  spec.add_command("--steps");
  spec.add_command("300");
  JobFlags flags;
  flags.fields["--job"] = {"heat"};
  ASSERT_TRUE(ApplyJobFlags(flags, {}, Context(), &spec).ok());
  EXPECT_EQ(spec.shipped_job(), "heat");
  EXPECT_THAT(spec.command(), ::testing::IsEmpty());
  // A flag for something else leaves the arguments to the file's job.
  spec.add_command("--steps");
  flags.fields = {{"--name", {"mine"}}};
  ASSERT_TRUE(ApplyJobFlags(flags, {}, Context(), &spec).ok());
  EXPECT_THAT(spec.command(), ElementsAre("--steps"));
}

TEST(JobFlagsTest, VariablesAreSetOrPassedOn) {
  JobFlags flags;
  flags.fields["--env"] = {"A=1=2", "DATA", "EMPTY="};
  const v1::JobSpec spec = Apply(flags, {"./train"});
  EXPECT_EQ(EnvMap(spec.env()).at("A"), "1=2");
  EXPECT_EQ(EnvMap(spec.env()).at("DATA"), "/data");
  EXPECT_EQ(EnvMap(spec.env()).at("EMPTY"), "");
  flags.fields["--env"] = {"ABSENT"};
  EXPECT_THAT(ErrorOf(flags), HasSubstr("ABSENT is not set here"));
}

TEST(JobFlagsTest, EachWrongValueNamesItsFlag) {
  const struct {
    std::string flag;
    std::string value;
    std::string words;
  } cases[] = {
      {"--nodes", "4:2", "--nodes: '4:2'"},
      {"--nodes", "two", "--nodes: 'two'"},
      {"--procs-per-node", "0", "--procs-per-node: '0'"},
      {"--gpus-per-proc", "-1", "--gpus-per-proc -1"},
      {"--cpus-per-proc", "0", "--cpus-per-proc 0"},
      {"--memory", "big", "--memory: 'big'"},
      {"--mesh", "dp=-1,tp=-1", "both -1"},
      {"--mesh", "dp", "--mesh: mesh axis 'dp'"},
      {"--max-restarts", "x", "--max-restarts x"},
      {"--kill-grace", "5 s", "--kill-grace: '5 s'"},
      {"--queue-timeout", "soon", "--queue-timeout: 'soon'"},
      {"--priority", "high", "--priority high"},
      {"--name", "My Job", "for example my-job"},
  };
  for (const auto& c : cases) {
    JobFlags flags;
    flags.fields[c.flag] = {c.value};
    EXPECT_THAT(ErrorOf(flags), HasSubstr(c.words));
  }
  EXPECT_THAT(ErrorOf({}, {}), HasSubstr("nothing to run"));
}

TEST(JobFlagsTest, AMeshThatFitsNoWorldIsRefusedWithBothNumbers) {
  JobFlags flags;
  flags.fields["--procs-per-node"] = {"4"};
  flags.fields["--mesh"] = {"dp=3,tp=2"};
  EXPECT_THAT(ErrorOf(flags), HasSubstr("needs 6 ranks, but the job has 4"));
  flags.fields["--mesh"] = {"dp=-1,tp=3"};
  EXPECT_THAT(ErrorOf(flags), HasSubstr("multiple of 3"));
  flags.fields["--mesh"] = {"dp=-1,tp=2"};
  Apply(flags, {"./train"});
  // Nodes beyond what the mesh can use are spares, not an error.
  flags.fields["--nodes"] = {"1:5"};
  flags.fields["--mesh"] = {"dp=2,tp=4"};
  Apply(flags, {"./train"});
  flags.fields["--nodes"] = {"3:5"};
  EXPECT_THAT(ErrorOf(flags), HasSubstr("3-5 nodes"));
  // How many GPUs there are is for the coordinator to know.
  flags.fields["--procs-per-node"] = {"gpu"};
  Apply(flags, {"./train"});
}

TEST(JobSpecTest, AutoIsGpusWhereThereAreSome) {
  EXPECT_TRUE(ParseProcsPerNode("auto", true)->gpu());
  EXPECT_TRUE(ParseProcsPerNode("auto", false)->cpu());
}

}  // namespace
}  // namespace meshrun::client
