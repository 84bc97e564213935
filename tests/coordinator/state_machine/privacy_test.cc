// Private jobs: others see that they are there, and nothing of what they are told or say.
#include "coordinator/state_machine/privacy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/env_entries.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "hush-hush";

class PrivacyTest : public ::testing::Test {
 protected:
  // "bob", "reader": no operator. "root": one.
  Harness::Answer& Send(const std::string& user, v1::StateEvent event) {
    event.mutable_caller()->set_user(user);
    event.mutable_caller()->set_own_private_only(user != "root");
    return h.answer(h.Call(std::move(event)));
  }
  static v1::JobSpec Private() {
    v1::JobSpec spec = MakeSpec(1, 1);
    spec.set_private_(true);
    spec.add_command(kSecret);
    spec.set_working_dir(std::string("/home/ada/") + kSecret);
    spec.set_tensorboard(std::string("/home/ada/") + kSecret);
    SetEnv(*spec.mutable_env(), kSecret, "1");
    return spec;
  }
  // Each answer that shows jobs, as one text.
  std::string AllThat(const std::string& user, const std::string& id) {
    std::string out;
    v1::StateEvent event;
    event.mutable_get_job()->set_job_id(id);
    out += Send(user, event).As<v1::GetJobResponse>().DebugString();
    event.Clear();
    event.mutable_list_jobs();
    out += Send(user, event).As<v1::ListJobsResponse>().DebugString();
    for (const bool deltas : {false, true}) {
      event.Clear();
      event.mutable_watch_job()->set_job_id(id);
      event.mutable_watch_job()->set_deltas(deltas);
      event.mutable_watch_job()->set_curve(true);
      for (const MessagePtr& item : Send(user, event).items) out += item->DebugString();
    }
    event.Clear();
    event.mutable_list_events();
    out += Send(user, event).As<v1::ListEventsResponse>().DebugString();
    event.Clear();
    event.mutable_describe_cluster();
    out += Send(user, event).As<v1::DescribeClusterResponse>().DebugString();
    event.Clear();
    event.mutable_list_usage();
    out += Send(user, event).As<v1::ListUsageResponse>().DebugString();
    return out;
  }
  void FailWith(const std::string& id, const std::string& text) {
    FakeWorker::Requests said = node->ExitAll(id, 1);
    for (v1::OpenSessionRequest& message : said) {
      if (!message.has_rank_exit()) continue;
      message.mutable_rank_exit()->add_last_lines(text);
      message.mutable_rank_exit()->set_error_message(text);
    }
    h.Say(*node, std::move(said));
  }

  Harness h;
  FakeWorker* node = &h.AddWorker("node1", 4);
};

TEST_F(PrivacyTest, OthersSeeNeitherArgumentsNorOutput) {
  const std::string id = h.SubmitAs("ada", Private());
  v1::OpenSessionRequest report = node->Message({id, h.job(id).generation()});
  v1::Progress& progress = (*report.mutable_progress_report()->mutable_progress())[0];
  progress.set_step(5);
  progress.set_loss(0.25);
  progress.set_note(kSecret);
  h.Say(*node, {report});
  for (const bool ended : {false, true}) {
    if (ended) FailWith(id, kSecret);
    for (const char* const user : {"bob", "reader"}) {
      const std::string all = AllThat(user, id);
      EXPECT_THAT(all, Not(HasSubstr(kSecret)));
      EXPECT_THAT(all, HasSubstr(id)) << "it is there";
      EXPECT_THAT(all, HasSubstr("submitter: \"ada\""));
      EXPECT_THAT(all, Not(HasSubstr("loss"))) << "what it reports is its output";
    }
    for (const char* const user : {"ada", "root"})
      EXPECT_THAT(AllThat(user, id), HasSubstr(kSecret));
  }
}

TEST_F(PrivacyTest, TheirOutputIsRefused) {
  const std::string id = h.SubmitAs("ada", Private());
  v1::StateEvent logs;
  logs.mutable_read_logs()->set_job_id(id);
  v1::StateEvent dumps;
  dumps.mutable_get_flight_records()->set_job_id(id);
  for (const v1::StateEvent& event : {logs, dumps}) {
    const absl::Status refused = Send("bob", event).status;
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("is private: its output is for 'ada'"));
    EXPECT_NE(Send("ada", event).status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_NE(Send("root", event).status.code(), absl::StatusCode::kPermissionDenied);
  }
}

TEST_F(PrivacyTest, AWatcherIsToldChangesAndNothingElse) {
  const std::string id = h.SubmitAs("ada", Private());
  v1::StateEvent watch;
  watch.mutable_watch_job()->set_job_id(id);
  watch.mutable_watch_job()->set_deltas(true);
  Harness::Answer& told = Send("bob", watch);
  FailWith(id, kSecret);
  ASSERT_TRUE(told.done);
  const auto& last = dynamic_cast<const v1::WatchJobResponse&>(*told.items.back());
  EXPECT_EQ(last.job().state(), v1::JOB_STATE_FAILED);
  for (const MessagePtr& item : told.items)
    EXPECT_THAT(item->DebugString(), Not(HasSubstr(kSecret)));
}

TEST_F(PrivacyTest, ItStaysPrivateAfterARestartAndAllAreWhereThePolicySaysSo) {
  const std::string id = h.SubmitAs("ada", Private());
  FailWith(id, kSecret);
  h.policy.set_private_jobs(true);
  h.StartCoordinator();
  h.Connect(*node);
  EXPECT_THAT(AllThat("bob", id), Not(HasSubstr(kSecret)));
  v1::JobSpec open = Private();
  open.clear_private_();
  EXPECT_THAT(AllThat("bob", h.SubmitAs("ada", open)), Not(HasSubstr(kSecret)));
}

// Whoever guesses its request id is told nothing.
TEST_F(PrivacyTest, TheRequestIdOfAnotherUsersJobIsRefused) {
  v1::StateEvent submit;
  *submit.mutable_submit_job()->mutable_spec() = Private();
  submit.mutable_submit_job()->set_request_id("nightly");
  ASSERT_TRUE(Send("ada", submit).status.ok());
  const Harness::Answer& answer = Send("bob", submit);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(answer.response, nullptr);
  EXPECT_TRUE(Send("ada", submit).status.ok());
  EXPECT_EQ(h.machine().jobs().size(), 1u);
}

// A host that cannot prepare it says why; what is said of the host does not quote that.
TEST_F(PrivacyTest, AHostInQuarantineDoesNotTellOfIt) {
  h.quarantine.set_refused_jobs(1);
  h.StartCoordinator();
  h.Connect(*node);
  node->prepare_error = std::string("/home/ada/") + kSecret + " does not exist";
  h.AddWorker("node2", 4);
  h.AddWorker("node3", 4);
  const std::string id = h.SubmitAs("ada", Private());
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(h.node(*node).quarantined());
  v1::StateEvent list;
  list.mutable_list_nodes();
  EXPECT_THAT(Send("bob", list).As<v1::ListNodesResponse>().DebugString(), Not(HasSubstr(kSecret)));
  EXPECT_THAT(AllThat("bob", id), Not(HasSubstr(kSecret)));
}

TEST_F(PrivacyTest, OtherJobsAreOpen) {
  v1::JobSpec open = Private();
  open.clear_private_();
  const std::string id = h.SubmitAs("ada", open);
  FailWith(id, kSecret);
  EXPECT_THAT(AllThat("bob", id), HasSubstr(kSecret));
}

// Whoever adds a text to JobSpec decides here whether others may see it.
TEST(ConcealTest, OnlyTextsThatOthersMaySeeAreLeft) {
  const std::set<std::string> seen = {"name",          "after",   "shipped_job", "constraints",
                                      "exclude_nodes", "account", "partition"};
  v1::Job job;
  const auto* const fields = v1::JobSpec::descriptor();
  for (int i = 0; i < fields->field_count(); ++i) {
    const auto& field = *fields->field(i);
    if (field.cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) continue;
    const auto& reflection = *job.spec().GetReflection();
    if (field.is_repeated()) {
      reflection.AddString(job.mutable_spec(), &field, kSecret);
    } else {
      reflection.SetString(job.mutable_spec(), &field, kSecret);
    }
  }
  Conceal(&job);
  for (int i = 0; i < fields->field_count(); ++i) {
    const auto& field = *fields->field(i);
    if (field.cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) continue;
    if (seen.contains(field.name())) continue;
    const auto& reflection = *job.spec().GetReflection();
    const std::string text = field.is_repeated()
                                 ? reflection.GetRepeatedString(job.spec(), &field, 0)
                                 : reflection.GetString(job.spec(), &field);
    EXPECT_NE(text, kSecret) << field.name();
  }
}

}  // namespace
}  // namespace meshrun::coordinator::testing
