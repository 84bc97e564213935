#include "client/render/causes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/proto_time.h"

namespace meshrun::client {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr seconds kToday(1'700'000'000);

class CausesTest : public ::testing::Test {
 protected:
  void Add(uint64_t sequence, const std::string& kind, v1::EventRole role, uint64_t cause,
           const std::string& message, bool of_job = true) {
    v1::ClusterEvent& event = *response_.add_events();
    event.set_sequence(sequence);
    *event.mutable_at() = ToProtoTimestamp(kToday - seconds(100 - sequence));
    event.set_kind(kind);
    if (of_job) event.set_job_id("geoid-1");
    event.set_role(role);
    event.set_cause(cause);
    event.set_message(message);
  }
  std::string Why(bool all = false) { return DescribeWhy(response_, kToday, Style(), all); }

  v1::GetJobResponse response_;
};

TEST_F(CausesTest, TellsTheFirstCauseWhatCameBeforeItAndWhatWasDone) {
  response_.mutable_job()->set_job_id("geoid-1");
  response_.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
  Add(1, "JobSubmitted", v1::EVENT_ROLE_FACT, 0, "submitted");
  Add(2, "NodeLost", v1::EVENT_ROLE_CAUSE, 0, "node-a was silent", false);
  Add(3, "NodeFailed", v1::EVENT_ROLE_CAUSE, 2, "node-a is lost");
  Add(4, "RankFailed", v1::EVENT_ROLE_CONSEQUENCE, 3, "rank 3 aborted");
  Add(5, "JobRestarting", v1::EVENT_ROLE_ACTION, 3, "restart 1 of 3");
  EXPECT_EQ(Why(),
            "geoid-1  RUNNING\n"
            "  before it       98s ago  node-a was silent\n"
            "  first cause     97s ago  node-a is lost\n"
            "  consequence     96s ago  rank 3 aborted\n"
            "  done            95s ago  restart 1 of 3\n");
}

TEST_F(CausesTest, AHangNamesWhereRanksStandWhileItLasts) {
  response_.mutable_job()->set_job_id("geoid-1");
  response_.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
  response_.mutable_job()->set_hang("no step after step 5 for 3s; rank 1 is in step (train.py:12)");
  Add(1, "HangSuspected", v1::EVENT_ROLE_CAUSE, 0, "no step after step 5 for 3s");
  Add(2, "HangStacks", v1::EVENT_ROLE_CONSEQUENCE, 1, "rank 1 is in step (train.py:12)");
  EXPECT_EQ(Why(),
            "geoid-1  RUNNING\n"
            "  hangs                    no step after step 5 for 3s; rank 1 is in step "
            "(train.py:12)\n"
            "  first cause     99s ago  no step after step 5 for 3s\n"
            "  consequence     98s ago  rank 1 is in step (train.py:12)\n");
  response_.mutable_job()->set_state(v1::JOB_STATE_FAILED);
  EXPECT_EQ(Why().find("hangs  "), std::string::npos);
}

TEST_F(CausesTest, AKnownLastLineHasAHint) {
  response_.mutable_job()->set_job_id("geoid-1");
  response_.mutable_job()->set_state(v1::JOB_STATE_FAILED);
  const auto hint = [this](const std::string& line) {
    v1::RankExit& exit = *response_.mutable_job()->mutable_failure()->mutable_exit();
    exit.clear_last_lines();
    exit.add_last_lines(line);
    exit.add_last_lines("and what follows it");
    return Why();
  };
  EXPECT_THAT(hint("RuntimeError: Gloo connectFullMesh failed: remote=[127.0.1.1]:4711"),
              HasSubstr("  hint                     a rank's host gives its own name"));
  EXPECT_THAT(hint("ModuleNotFoundError: No module named 'torch'"), HasSubstr("has no torch"));
  EXPECT_THAT(hint("./train: symbol lookup error: ./train: undefined symbol: _ZN3c10"),
              HasSubstr("LD_LIBRARY_PATH"));
  EXPECT_THAT(hint("terminate called after throwing an instance of 'c10::Error'"),
              HasSubstr("what():"));
  EXPECT_EQ(hint("ModuleNotFoundError: No module named 'torchvision'").find("hint"),
            std::string::npos);
}

TEST_F(CausesTest, TheJobsEndDoesNotRepeatItsCause) {
  response_.mutable_job()->set_job_id("geoid-1");
  response_.mutable_job()->set_state(v1::JOB_STATE_FAILED);
  Add(1, "RankFailed", v1::EVENT_ROLE_CAUSE, 0, "rank 1 ended with exit code 3");
  Add(2, "JobFailed", v1::EVENT_ROLE_ACTION, 1, "rank 1 ended with exit code 3");
  EXPECT_EQ(Why(),
            "geoid-1  FAILED\n"
            "  first cause     99s ago  rank 1 ended with exit code 3\n"
            "  done            98s ago  the job failed\n");
}

TEST_F(CausesTest, EarlierTroubleIsShownOnRequest) {
  response_.mutable_job()->set_job_id("geoid-1");
  response_.mutable_job()->set_state(v1::JOB_STATE_FAILED);
  Add(1, "RankFailed", v1::EVENT_ROLE_CAUSE, 0, "rank 0 ended");
  Add(2, "RankFailed", v1::EVENT_ROLE_CAUSE, 0, "rank 1 ended");
  EXPECT_THAT(Why(), ::testing::Not(HasSubstr("rank 0 ended")));
  EXPECT_THAT(Why(), HasSubstr("1 more before: meshrun why --all geoid-1"));
  EXPECT_THAT(Why(/*all=*/true), HasSubstr("rank 0 ended"));
}

TEST_F(CausesTest, AJobWithoutTroubleSaysSo) {
  response_.mutable_job()->set_job_id("geoid-1");
  response_.mutable_job()->set_state(v1::JOB_STATE_QUEUED);
  response_.mutable_job()->set_reason("needs 2 nodes");
  EXPECT_THAT(Why(), HasSubstr("geoid-1  QUEUED: needs 2 nodes"));
  EXPECT_THAT(Why(), HasSubstr("nothing has gone wrong"));
}

}  // namespace
}  // namespace meshrun::client
