#include "coordinator/api/fill_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "coordinator/api/calls.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

absl::Status Fill(std::string_view http, std::string_view path, const Query& query,
                  std::string_view body, google::protobuf::Message* request) {
  const Match match = FindRoute(http, path);
  EXPECT_NE(match.route, nullptr) << path;
  return FillRequest(match, query, body, request);
}

std::string ErrorOf(std::string_view path, const Query& query) {
  v1::ListJobsRequest jobs;
  v1::ReadLogsRequest logs;
  google::protobuf::Message* request = &jobs;
  if (path.ends_with("/logs")) request = &logs;
  const absl::Status status = Fill("GET", path, query, "", request);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(FillRequestTest, TakesPathQueryAndBody) {
  v1::CancelJobRequest cancel;
  ASSERT_TRUE(
      Fill("POST", "/api/v1/jobs/geoid/cancel", {}, R"({"now": true, "reason": "enough"})", &cancel)
          .ok());
  EXPECT_EQ(cancel.job_id(), "geoid");
  EXPECT_TRUE(cancel.now());
  EXPECT_EQ(cancel.reason(), "enough");

  v1::ListJobsRequest jobs;
  ASSERT_TRUE(Fill("GET", "/api/v1/jobs",
                   {{"user", "ada"},
                    {"state", "running"},
                    {"state", "JOB_STATE_QUEUED,waiting"},
                    {"activeOnly", ""},
                    {"runningFirst", "false"},
                    {"pageSize", "20"}},
                   "", &jobs)
                  .ok());
  EXPECT_EQ(jobs.user(), "ada");
  EXPECT_THAT(jobs.states(),
              ElementsAre(v1::JOB_STATE_RUNNING, v1::JOB_STATE_QUEUED, v1::JOB_STATE_WAITING));
  EXPECT_TRUE(jobs.active_only());
  EXPECT_FALSE(jobs.running_first());
  EXPECT_EQ(jobs.page_size(), 20u);
}

TEST(FillRequestTest, ARowSetsWhatItsPathSays) {
  v1::UpdateJobRequest update;
  ASSERT_TRUE(Fill("POST", "/api/v1/jobs/geoid/release", {}, "{}", &update).ok());
  EXPECT_TRUE(update.has_hold());
  EXPECT_FALSE(update.hold());
  v1::WatchJobRequest watch;
  ASSERT_TRUE(Fill("GET", "/api/v1/jobs/geoid/watch", {}, "", &watch).ok());
  EXPECT_TRUE(watch.deltas());
  EXPECT_TRUE(watch.curve());
}

TEST(FillRequestTest, RanksAreAList) {
  v1::ReadLogsRequest logs;
  ASSERT_TRUE(Fill("GET", "/api/v1/jobs/geoid/logs",
                   {{"ranks", "0,4-6"}, {"stream", "stderr"}, {"tail", "0"}, {"generation", "3"}},
                   "", &logs)
                  .ok());
  EXPECT_THAT(logs.ranks(), ElementsAre(0, 4, 5, 6));
  EXPECT_THAT(logs.streams(), ElementsAre(v1::LOG_STREAM_STDERR));
  EXPECT_TRUE(logs.has_tail_lines());
  EXPECT_EQ(logs.tail_lines(), 0);
  EXPECT_EQ(logs.generation(), 3u);
  EXPECT_FALSE(logs.follow());
}

TEST(FillRequestTest, APlaceInLogsIsWhatTheLastAnswerSaid) {
  for (const char* path : {"/api/v1/jobs/geoid/logs", "/api/v1/jobs/geoid/logs/follow"}) {
    v1::ReadLogsRequest logs;
    ASSERT_TRUE(
        Fill("GET", path, {{"after", "3.0o1048576.12e7"}, {"generation", "3"}}, "", &logs).ok());
    EXPECT_EQ(logs.generation(), 3u);
    ASSERT_EQ(logs.positions_size(), 2);
    EXPECT_EQ(logs.positions(0).rank(), 0);
    EXPECT_EQ(logs.positions(0).stream(), v1::LOG_STREAM_STDOUT);
    EXPECT_EQ(logs.positions(0).offset(), 1048576u);
    EXPECT_EQ(logs.positions(1).rank(), 12);
    EXPECT_EQ(logs.positions(1).stream(), v1::LOG_STREAM_STDERR);
    EXPECT_EQ(logs.positions(1).offset(), 7u);
  }
}

TEST(FillRequestTest, AWrongPlaceInLogsIsRefused) {
  const std::string path = "/api/v1/jobs/geoid/logs";
  for (const char* wrong : {"", "x", "0", "3.", "3.0o", "3.o7", "3.0x7", "3.-1o7", "3.0o-7",
                            "3..0o7", "3.0o7.", "3.0o99999999999999999999", "3 .0o7"}) {
    EXPECT_EQ(ErrorOf(path, {{"after", wrong}}),
              "after: write `next` of the last answer, unchanged")
        << wrong;
  }
  EXPECT_EQ(ErrorOf(path, {{"after", "3.0o7"}, {"generation", "2"}}),
            "after is a place in generation 3, and generation=2 is another one: leave one of the "
            "two away");
  EXPECT_EQ(ErrorOf(path, {{"after", "3.0o7"}, {"after", "3.0o7"}}),
            "after stands twice in the query");
}

TEST(FillRequestTest, TimesAreRfc3339) {
  v1::ListUsageRequest usage;
  ASSERT_TRUE(Fill("GET", "/api/v1/usage", {{"since", "1970-01-02T00:00:01Z"}}, "", &usage).ok());
  EXPECT_EQ(usage.since().seconds(), 86401);
}

TEST(FillRequestTest, NamesTheParameterThatIsWrong) {
  EXPECT_EQ(ErrorOf("/api/v1/jobs", {{"pageSize", "many"}}),
            "pageSize=many: write a whole number, 0 or more");
  EXPECT_EQ(ErrorOf("/api/v1/jobs", {{"pageSize", "-1"}}),
            "pageSize=-1: write a whole number, 0 or more");
  EXPECT_EQ(ErrorOf("/api/v1/jobs", {{"activeOnly", "yes"}}),
            "activeOnly=yes: write true or false");
  EXPECT_THAT(ErrorOf("/api/v1/jobs", {{"state", "RUNING"}}),
              StartsWith("state=RUNING: write one of QUEUED, ADMITTED, "));
  EXPECT_THAT(ErrorOf("/api/v1/jobs/geoid/logs", {{"ranks", "4-"}}), HasSubstr("ranks"));
  EXPECT_EQ(ErrorOf("/api/v1/jobs", {{"user", "\xff"}}), "user=\\xff: write text in UTF-8");
  EXPECT_EQ(ErrorOf("/api/v1/jobs", {{"user", "a"}, {"user", "b"}}),
            "user stands twice in the query");
}

// Every number of a path or a query counts something.
TEST(FillRequestTest, NoParameterIsBelowZero) {
  int numbers = 0;
  for (const Route& route : Routes()) {
    if (route.method.starts_with("http:")) continue;
    const std::unique_ptr<google::protobuf::Message> request = NewRequest(route.method);
    for (const auto* parameters : {&route.path_parameters, &route.query}) {
      for (const Parameter& one : *parameters) {
        if (one.field.empty()) continue;
        const auto& field = *request->GetDescriptor()->FindFieldByName(std::string(one.field));
        using google::protobuf::FieldDescriptor;
        if (field.is_repeated() || field.cpp_type() > FieldDescriptor::CPPTYPE_UINT64) continue;
        ++numbers;
        Match match{.route = &route};
        for (const Parameter& path : route.path_parameters) {
          match.path_values[std::string(path.name)] = &path == &one ? "-1" : "1";
        }
        Query query;
        if (parameters == &route.query) query.emplace(one.name, "-1");
        const absl::Status status = FillRequest(match, query, "{}", request.get());
        EXPECT_EQ(status.message(), std::string(one.name) + "=-1: write a whole number, 0 or more")
            << route.path;
      }
    }
  }
  EXPECT_GE(numbers, 14);
}

TEST(FillRequestTest, RanksOfABodyAreNotBelowZero) {
  v1::GetStacksRequest stacks;
  EXPECT_EQ(
      Fill("POST", "/api/v1/jobs/geoid/stacks", {}, R"({"ranks": [0, -1]})", &stacks).message(),
      "ranks: -1 is not a rank: write numbers, 0 or more");
}

TEST(FillRequestTest, APriorityIsGivenAndMayBeBelowZero) {
  v1::UpdateJobRequest update;
  for (const char* body : {"{}", R"({"priority": null})"}) {
    EXPECT_EQ(Fill("POST", "/api/v1/jobs/geoid/priority", {}, body, &update).message(),
              "the body has no 'priority', and POST /jobs/{job}/priority needs it")
        << body;
  }
  ASSERT_TRUE(Fill("POST", "/api/v1/jobs/geoid/priority", {}, R"({"priority": -3})", &update).ok());
  EXPECT_EQ(update.priority(), -3);
}

TEST(FillRequestTest, NamesWhatThereIsWhereAParameterIsUnknown) {
  EXPECT_EQ(ErrorOf("/api/v1/jobs/geoid/logs", {{"rank", "0"}}),
            "there is no parameter 'rank': GET /jobs/{job}/logs takes ranks, stream, tail, "
            "generation, after");
}

TEST(FillRequestTest, ABodyDoesNotNameWhatThePathSays) {
  v1::CancelJobRequest cancel;
  const absl::Status status =
      Fill("POST", "/api/v1/jobs/geoid/cancel", {}, R"({"jobId": "other"})", &cancel);
  EXPECT_EQ(status.message(), "there is no field 'jobId': this body has now, reason");
  v1::UpdateJobRequest update;
  EXPECT_EQ(Fill("POST", "/api/v1/jobs/geoid/hold", {}, R"({"hold": false})", &update).message(),
            "there is no field 'hold': this body has none, write {}");
}

TEST(FillRequestTest, APostHasABody) {
  v1::UpdateJobRequest update;
  EXPECT_THAT(std::string(Fill("POST", "/api/v1/jobs/geoid/hold", {}, "", &update).message()),
              StartsWith("the body is not JSON"));
}

}  // namespace
}  // namespace meshrun::coordinator
