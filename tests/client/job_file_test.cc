#include "client/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "client/command_line.h"
#include "client/job_fields.h"
#include "core/env_entries.h"

namespace meshrun::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(const std::string& text) {
  const auto spec = ParseJobText(text, "job.yaml");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(spec.status().message());
}

TEST(JobFileTest, ReadsEveryFriendlyForm) {
  const auto spec = ParseJobText(R"(
name: geoid
command: ./train --title "two words" --steps 100
nodes: "1:4"
procs_per_node: gpu
gpus_per_proc: 1
cpus_per_proc: 2
memory: 4G
mesh: {dp: -1, spatial: 2}
env:
  OMP_NUM_THREADS: 2
  EMPTY:
max_restarts: 3
kill_grace: 1m30s
queue_timeout: 250ms
priority: -5
working_dir: /data
)",
                                 "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "geoid");
  EXPECT_THAT(spec->command(), ElementsAre("./train", "--title", "two words", "--steps", "100"));
  EXPECT_EQ(spec->min_nodes(), 1u);
  EXPECT_EQ(spec->max_nodes(), 4u);
  EXPECT_TRUE(spec->procs_per_node().gpu());
  EXPECT_EQ(spec->gpus_per_proc(), 1u);
  EXPECT_EQ(spec->cpus_per_proc(), 2u);
  EXPECT_EQ(spec->memory_bytes(), uint64_t{4} << 30);
  ASSERT_EQ(spec->mesh_size(), 2);
  EXPECT_EQ(spec->mesh(0).name(), "dp");
  EXPECT_EQ(spec->mesh(0).size(), -1);
  EXPECT_EQ(spec->mesh(1).size(), 2);
  EXPECT_EQ(EnvMap(spec->env()).at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(EnvMap(spec->env()).at("EMPTY"), "");
  EXPECT_EQ(spec->max_restarts(), 3u);
  EXPECT_EQ(spec->kill_grace().seconds(), 90);
  EXPECT_EQ(spec->queue_timeout().nanos(), 250'000'000);
  EXPECT_EQ(spec->priority(), -5);
  EXPECT_EQ(spec->working_dir(), "/data");
}

TEST(JobFileTest, ListsAndTextsMeanTheSame) {
  const auto list =
      ParseJobText("command: [./train, --steps, 100]\nmesh: dp=2\nprocs_per_node: 2", "job.yaml");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->command(), ElementsAre("./train", "--steps", "100"));
  EXPECT_EQ(list->mesh(0).name(), "dp");
  EXPECT_EQ(list->procs_per_node().count(), 2u);
}

TEST(JobFileTest, AShippedJobHasArguments) {
  const auto spec = ParseJobText("job: geoid\nargs: [--steps, 300]", "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->shipped_job(), "geoid");
  EXPECT_THAT(spec->command(), ElementsAre("--steps", "300"));
}

TEST(JobFileTest, EachErrorNamesLineColumnFieldAndRemedy) {
  const struct {
    std::string text;
    std::string place;
    std::string remedy;
  } cases[] = {
      {"name: x\ncommand: [true]\nnodez: 2\n", "job.yaml:3:1: nodez:", "did you mean 'nodes'"},
      {"name: Geoid\n", "job.yaml:1:7: name:", "for example geoid"},
      {"nodes: 4:1\n", "job.yaml:1:8: nodes:", "write the smaller number first"},
      {"command: a\nprocs_per_node: gpus\n",
       "job.yaml:2:17: procs_per_node:", "write a number, gpu"},
      {"memory: lots\n", "job.yaml:1:9: memory:", "4G"},
      {"kill_grace: soon\n", "job.yaml:1:13: kill_grace:", "5s"},
      {"time_limit: 0\n", "job.yaml:1:13: time_limit:", "write a time above 0"},
      {"mesh: {dp: -1, tp: -1}\n", "job.yaml:1:7: mesh:", "at most one"},
      {"mesh:\n  - dp\n", "job.yaml:2:3: mesh:", "{dp: -1, spatial: 2}"},
      {"env: [A]\n", "job.yaml:1:6: env:", "write a map"},
      {"env:\n  A: [1]\n", "job.yaml:2:3: env:", "one text"},
      {"max_restarts: -1\n", "job.yaml:1:15: max_restarts:", "max_restarts: 3"},
      {"constraints: [zone=a, zone b]\n", "job.yaml:1:23: constraints:", "not a constraint"},
      {"hold: perhaps\n", "job.yaml:1:7: hold:", "write hold: true or hold: false"},
      {"memory: 4G\nmemory_bytes: 5\n", "job.yaml:2:1: memory_bytes:", "only one of them"},
      {"command: echo $HOME | cat\n", "job.yaml:1:10: command:", "[sh, -c"},
      {"command: a 'b\n", "job.yaml:1:10: command:", "never closed"},
      {"command: {a: b}\n", "job.yaml:1:10: command:", "as a list"},
      {"name: a\nname: b\n", "job.yaml:2:1: name:", "line 1"},
      {"nodes: 2\nmin_nodes: 1\n", "job.yaml:2:1: min_nodes:", "only one of them"},
      {"job: geoid\ncommand: a\n", "job.yaml:2:1: command:", "only one of them"},
      {"args: [a]\n", "job.yaml:1:1: args:", "command:"},
      {"min_nodes: 3\nmax_nodes: 2\n", "job.yaml:2:1: max_nodes:", "less than min_nodes, 3"},
      {"name: [a\n", "job.yaml:", "not YAML"},
  };
  for (const auto& c : cases) {
    const std::string error = ErrorOf(c.text);
    EXPECT_THAT(error, StartsWith(c.place)) << c.text;
    EXPECT_THAT(error, HasSubstr(c.remedy)) << c.text;
    EXPECT_THAT(error, ::testing::Not(HasSubstr("\n")));
  }
}

TEST(JobFileTest, WhatHappensAfterAFailure) {
  const auto spec = ParseJobText(
      "command: ./train\nrecovery: respawn\nreplace: at-once\ngrow: never\n", "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->recovery(), v1::RECOVERY_RESPAWN);
  EXPECT_TRUE(spec->replace_at_once());
  EXPECT_EQ(spec->growth(), v1::GROWTH_NEVER);
}

// A row that is written by halves shows here.
TEST(JobFieldsTest, EachRowIsWhole) {
  std::set<std::string> names;
  for (const JobField& field : JobFields()) {
    ASSERT_FALSE(field.keys.empty()) << field.flag;
    for (const std::string& key : field.keys) EXPECT_TRUE(names.insert(key).second) << key;
    EXPECT_TRUE(field.set.from_file) << field.keys[0];
    EXPECT_TRUE(field.flag.empty() || field.set.from_flag) << field.keys[0];
    EXPECT_EQ(field.flag.empty(), field.section.empty()) << field.keys[0];
    EXPECT_EQ(field.flag.empty(), field.help.empty()) << field.keys[0];
    if (field.flag.empty()) continue;
    EXPECT_THAT(field.FlagName(), StartsWith("--"));
    EXPECT_TRUE(names.insert(field.FlagName()).second) << field.flag;
  }
}

TEST(JobFileTest, AFileThatIsNoMapSaysWhatItShouldBe) {
  for (const char* text : {"", "- a\n- b\n", "just text"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("field: value"));
  }
}

TEST(JobFileTest, AnAbsentFileIsNamed) {
  const auto spec = ReadJobFile("/nonexistent/job.yaml");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("/nonexistent/job.yaml"));
}

TEST(CommandLineTest, SplitsAsAShellDoes) {
  EXPECT_THAT(*SplitCommandLine(R"(a  'b c' "d \"e\"" f\ g '')"),
              ElementsAre("a", "b c", "d \"e\"", "f g", ""));
  EXPECT_THAT(*SplitCommandLine("  "), ElementsAre());
}

TEST(JobFileTest, WhatYamlReadersAcceptAndNobodyMeansIsAnErrorWithItsLine) {
  const std::pair<const char*, const char*> wrong[] = {
      {"name: a\ncommand: \"./train --x\nnodes: 2\n", "f:2:10: this quote is never closed"},
      {"name: a\ncommand: './train it''s\n", "f:2:10: this quote is never closed"},
      {"command: ./train\nenv:\n  A: 1\n  B: 2\n  A: 3\n", "f:5:3: A: set before, at line 3"},
      {"command: ./train\nmesh: {dp: 2, dp: 3}\n", "f:2:15: dp: set before, at line 2"},
      {"name: a\nname: b\n", "f:2:1: name: set before, at line 1"},
      {"command: ./train\n---\ncommand: ./other\n", "f:3:1: a second document begins here"},
      {"command: ./train\n...\n}\n", "f:3:1: this is not YAML"},
      {"command: ./train\n...\n,\n", "f:3:1: a second document begins here, or this is not YAML"},
      {",command: ./train\n", "f:1:1: a second document begins here, or this is not YAML"}};
  for (const auto& [text, error] : wrong) {
    const auto spec = ParseJobText(text, "f");
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_THAT(std::string(spec.status().message()), ::testing::HasSubstr(error)) << text;
  }
  const auto right = ParseJobText(
      "---\n# \"one\ncommand: ['./it''s', \"a \\\" b\", \"two\n  lines\"]\nenv: {'A': \"\"}\n...\n",
      "f");
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_EQ(right->command(0), "./it's");
  EXPECT_EQ(right->command(1), "a \" b");
}

}  // namespace
}  // namespace meshrun::client
