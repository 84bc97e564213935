#include "client/job_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace meshrun::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JobContext HereWith(const absl::Status& program) {
  JobContext context;
  context.working_dir = "/here";
  context.variable = [](const std::string&) { return std::nullopt; };
  context.find_program = [program](const std::string&) { return program; };
  return context;
}

std::string RequestErrorOf(const JobRequest& request) {
  const auto spec = SpecOf(request, HereWith(absl::OkStatus()));
  EXPECT_FALSE(spec.ok());
  return std::string(spec.status().message());
}

TEST(JobMessagesTest, FieldsAreTheKeysOfAJobFile) {
  const auto spec = SpecOf({.command = {"./train", "--steps", "9"},
                            .working_dir = "run",
                            .env = {{"A", "b=c"}},
                            .fields = {{"nodes", "1:4"},
                                       {"procs_per_node", "2"},
                                       {"mesh", "dp=-1,spatial=2"},
                                       {"memory", "4G"},
                                       {"hold", "true"},
                                       {"constraints", "zone=a"},
                                       {"constraints", "nvlink"},
                                       {"time_limit", "1h"}}},
                           HereWith(absl::OkStatus()));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "train");
  EXPECT_EQ(spec->working_dir(), "/here/run");
  EXPECT_EQ(spec->max_nodes(), 4u);
  EXPECT_EQ(spec->procs_per_node().count(), 2u);
  EXPECT_EQ(spec->mesh_size(), 2);
  EXPECT_EQ(spec->memory_bytes(), uint64_t{4} << 30);
  EXPECT_TRUE(spec->hold());
  EXPECT_THAT(spec->constraints(), ElementsAre("zone=a", "nvlink"));
  EXPECT_EQ(spec->time_limit().seconds(), 3600);
  ASSERT_EQ(spec->env_size(), 1);
  EXPECT_EQ(spec->env(0).value(), "b=c");
}

TEST(JobMessagesTest, APythonScriptThatCannotBeExecutedHasAnInterpreter) {
  const JobRequest request{.command = {"train.py", "x"}};
  EXPECT_THAT(SpecOf(request, HereWith(absl::NotFoundError("")))->command(),
              ElementsAre("python3", "-u", "train.py", "x"));
  EXPECT_THAT(SpecOf(request, HereWith(absl::OkStatus()))->command(), ElementsAre("train.py", "x"));
}

TEST(JobMessagesTest, AWrongRequestNamesTheField) {
  EXPECT_THAT(RequestErrorOf({}), HasSubstr("command: it is empty"));
  EXPECT_THAT(RequestErrorOf({.command = {"a"}, .fields = {{"node", "2"}}}),
              HasSubstr("did you mean 'nodes'?"));
  EXPECT_THAT(RequestErrorOf({.command = {"a"}, .fields = {{"nodes", "x"}}}), HasSubstr("nodes"));
  EXPECT_THAT(RequestErrorOf({.command = {"a"}, .fields = {{"nodes", "1"}, {"nodes", "2"}}}),
              HasSubstr("nodes stands twice"));
  EXPECT_THAT(RequestErrorOf({.command = {"a"}, .fields = {{"hold", "no"}}}),
              HasSubstr("hold: 'no': write true or false"));
  EXPECT_THAT(RequestErrorOf({.command = {"a"}, .fields = {{"env", "A=b"}}}),
              HasSubstr("JobRequest has a member for it"));
  EXPECT_THAT(RequestErrorOf({.command = {"a"}, .env = {{"RANK", "1"}}}),
              HasSubstr("is set by meshrun for each rank"));
}

TEST(JobMessagesTest, AnExitCodeComesWithTheEnd) {
  v1::Job job;
  job.set_job_id("a-1");
  job.set_state(v1::JOB_STATE_RUNNING);
  EXPECT_EQ(StatusOf(job).exit_code, std::nullopt);
  EXPECT_EQ(StatusOf(job).submitted_at, std::nullopt);
  job.set_state(v1::JOB_STATE_FAILED);
  job.mutable_submitted_at()->set_seconds(7);
  job.mutable_failure()->set_cause(v1::FAILURE_CAUSE_RANK_EXITED);
  job.mutable_failure()->set_rank(-1);
  job.mutable_failure()->mutable_exit()->set_exit_code(93);
  job.mutable_failure()->mutable_exit()->add_last_lines("why");
  const JobStatus status = StatusOf(job);
  EXPECT_EQ(status.exit_code, 93);
  EXPECT_EQ(status.submitted_at->time_since_epoch(), std::chrono::seconds(7));
  EXPECT_EQ(status.failure->rank, std::nullopt);
  EXPECT_EQ(status.failure->exit_code, 93);
  EXPECT_EQ(status.failure->signal, std::nullopt);
  EXPECT_THAT(status.failure->last_lines, ElementsAre("why"));
  job.mutable_failure()->mutable_exit()->set_signal(9);
  EXPECT_EQ(StatusOf(job).failure->exit_code, std::nullopt);
}

// Both enumerations change together.
TEST(JobMessagesTest, EveryStateHasItsName) {
  for (int number = v1::JobState_MIN; number <= v1::JobState_MAX; ++number) {
    v1::Job job;
    job.set_state(static_cast<v1::JobState>(number));
    const std::string name = v1::JobState_Name(job.state());
    if (name == "JOB_STATE_UNSPECIFIED") {
      EXPECT_EQ(StatusOf(job).state, JobState::kUnknown);
    } else {
      EXPECT_EQ("JOB_STATE_" + std::string(StateName(StatusOf(job).state)), name);
    }
  }
}

}  // namespace
}  // namespace meshrun::client
