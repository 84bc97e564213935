// Who asked for which change, and what was refused to whom.
#include "coordinator/state_machine/audit.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class AuditTest : public ::testing::Test {
 protected:
  Harness::Answer& Send(const std::string& user, v1::StateEvent event, bool own_jobs_only = false) {
    v1::Caller& caller = *event.mutable_caller();
    caller.set_user(user);
    caller.set_certificate("5f3a");
    caller.set_peer("ipv4:10.0.0.7:51234");
    caller.set_own_jobs_only(own_jobs_only);
    return h.answer(h.Call(std::move(event)));
  }
  v1::ListAuditResponse Ask(v1::ListAuditRequest request = {}) {
    v1::StateEvent event;
    *event.mutable_list_audit() = std::move(request);
    return h.answer(h.Call(std::move(event))).As<v1::ListAuditResponse>();
  }
  // "1 ada SubmitJob train-x1y2z3 0", each since the last call.
  std::vector<std::string> News() {
    v1::ListAuditRequest request;
    request.set_after(seen_);
    std::vector<std::string> out;
    const v1::ListAuditResponse page = Ask(request);
    for (const v1::AuditRecord& record : page.records()) {
      seen_ = record.sequence();
      out.push_back(fmt::format("{} {} {} {} {}", record.actor(), record.method(), record.target(),
                                record.request(), record.code()));
    }
    return out;
  }

  Harness h;
  FakeWorker* node = &h.AddWorker("node1", 4);
  uint64_t seen_ = 0;
};

TEST_F(AuditTest, EachChangeIsThereOnceInItsOrder) {
  EXPECT_THAT(News(), ElementsAre(" OpenSession node1  0"));
  const std::string id = h.SubmitAs("ada", MakeSpec(1, 1));
  v1::StateEvent update;
  update.mutable_update_job()->set_job_id(id);
  update.mutable_update_job()->set_hold(true);
  update.mutable_update_job()->set_priority(5);
  Send("root", update);
  v1::StateEvent signal;
  signal.mutable_signal_job()->set_job_id(id);
  signal.mutable_signal_job()->set_signal(10);
  Send("ada", signal);
  v1::StateEvent drain;
  drain.mutable_drain_node()->set_node("node1");
  Send("root", drain);
  v1::StateEvent undrain;
  undrain.mutable_undrain_node()->set_node("node1");
  Send("root", undrain);
  v1::StateEvent cancel;
  cancel.mutable_cancel_job()->set_job_id(id.substr(0, id.size() - 1));
  cancel.mutable_cancel_job()->set_now(true);
  Send("ada", cancel);
  v1::StateEvent remove;
  remove.mutable_remove_node()->set_node("node1");
  Send("root", remove);
  const auto expected =
      ElementsAre(fmt::format("ada SubmitJob {}  0", id),
                  fmt::format("root UpdateJob {} hold, priority 5 0", id),
                  fmt::format("ada SignalJob {} SIGUSR1 0", id), "root DrainNode node1  0",
                  "root UndrainNode node1  0", fmt::format("ada CancelJob {} now 0", id),
                  "root RemoveNode node1  9");
  EXPECT_THAT(News(), expected);
  seen_ = 1;
  h.StartCoordinator();
  h.Connect(*node);
  EXPECT_THAT(News(), expected) << "after a restart, and without a host that comes back";
}

TEST_F(AuditTest, ARecordSaysWhoFromWhereAndWithWhichCertificate) {
  v1::StateEvent drain;
  drain.mutable_drain_node()->set_node("nobody");
  Send("root", drain);
  const v1::AuditRecord record = Ask().records(1);
  EXPECT_EQ(record.certificate(), "5f3a");
  EXPECT_EQ(record.peer(), "ipv4:10.0.0.7:51234");
  EXPECT_EQ(record.code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_THAT(record.message(), HasSubstr("nobody"));
  EXPECT_TRUE(record.has_at());
}

TEST_F(AuditTest, ReadsAreNoChangesAndRefusalsAreRecordsWhateverWasAsked) {
  const std::string id = h.SubmitAs("ada", MakeSpec(1, 1));
  News();
  v1::StateEvent get;
  get.mutable_get_job()->set_job_id(id);
  Send("bob", get);
  EXPECT_THAT(News(), IsEmpty());
  v1::StateEvent cancel;
  cancel.mutable_cancel_job()->set_job_id(id);
  Send("bob", cancel, /*own_jobs_only=*/true);
  v1::StateEvent values;
  values.mutable_set_values()->mutable_fence()->set_job_id(id);
  values.mutable_caller()->set_own_node_only(true);
  values.mutable_caller()->set_user("node9");
  h.Call(values);
  v1::StateEvent refused;
  refused.mutable_caller()->set_user("reader");
  refused.mutable_outside_call()->set_method("/meshrun.v1.JobService/SubmitJob");
  refused.mutable_outside_call()->set_code(7);
  refused.mutable_outside_call()->set_not_recorded(3);
  h.Call(refused);
  EXPECT_THAT(News(), ElementsAre(fmt::format("bob CancelJob {}  7", id),
                                  fmt::format("node9 SetValues {}  7", id),
                                  "reader /meshrun.v1.JobService/SubmitJob   7"));
  v1::ListAuditRequest request;
  request.set_refused_only(true);
  request.set_actor("reader");
  const v1::ListAuditResponse of_reader = Ask(request);
  ASSERT_EQ(of_reader.records_size(), 1);
  EXPECT_EQ(of_reader.records(0).not_recorded(), 3u);
}

// A call that is answered by what it does to others is judged by its own answer.
TEST_F(AuditTest, AnswersOfOtherCallsAreNotTheCallsOwn) {
  const std::string first = h.SubmitAs("ada", MakeSpec(1, 1));
  v1::StateEvent wait;
  wait.mutable_wait_keys()->mutable_fence()->CopyFrom(h.fence(first));
  wait.mutable_wait_keys()->add_keys("never");
  wait.mutable_wait_keys()->mutable_timeout()->set_seconds(600);
  h.Call(wait);
  News();
  h.Cancel(first, /*now=*/true);
  EXPECT_THAT(News(), ElementsAre(fmt::format(" CancelJob {} now 0", first)));
}

TEST_F(AuditTest, TheSameRequestIsOneRecord) {
  News();
  h.TrySubmit(MakeSpec(1, 1), "r1");
  h.TrySubmit(MakeSpec(1, 1), "r1");
  EXPECT_EQ(News().size(), 1u);
}

// Whoever is refused again and again fills neither the disk nor the memory.
TEST_F(AuditTest, RefusalsAreLimitedAndCounted) {
  News();
  v1::StateEvent drain;
  drain.mutable_drain_node()->set_node("node1");
  for (int i = 0; i < 100; ++i) Send("bob", drain, /*own_jobs_only=*/true);
  EXPECT_EQ(News().size(), 20u);
  h.Advance(seconds(2));
  Send("bob", drain, /*own_jobs_only=*/true);
  const v1::ListAuditResponse all = Ask();
  EXPECT_EQ(all.records(all.records_size() - 1).not_recorded(), 80u);
  // Changes that are made are all there.
  News();
  for (int i = 0; i < 50; ++i) h.SubmitAs("bob", MakeSpec(1, 1));
  EXPECT_EQ(News().size(), 50u);
}

// Names and paths are bytes of a caller's choice, and a row that is no text cannot be read again.
TEST_F(AuditTest, BytesOfACallerDoNotDamageTheState) {
  v1::StateEvent refused;
  refused.mutable_caller()->set_user("b\xff");
  refused.mutable_caller()->set_peer("ipv4:\xfe");
  refused.mutable_outside_call()->set_method("/x/\xff");
  refused.mutable_outside_call()->set_code(7);
  refused.mutable_outside_call()->set_message("/x/\xff is not in the table of roles");
  h.Call(refused);
  v1::StateEvent cancel;
  cancel.mutable_cancel_job()->set_job_id("job\xff");
  Send("ada", cancel);
  const size_t before = Ask().records_size();
  h.StartCoordinator();
  EXPECT_EQ(static_cast<size_t>(Ask().records_size()), before);
  EXPECT_THAT(News(), ElementsAre(" OpenSession node1  0", "b? /x/?   7", "ada CancelJob job?  5"));
}

// A second cancel, however often, pushes nothing out.
TEST_F(AuditTest, WhatChangesNothingIsNoRecord) {
  const std::string id = h.SubmitAs("ada", MakeSpec(1, 1));
  News();
  for (int i = 0; i < 3; ++i) h.Cancel(id);
  EXPECT_EQ(News().size(), 1u);
  h.Advance(seconds(40));
  h.Cancel(id, /*now=*/true);
  EXPECT_THAT(News(), IsEmpty()) << "it has ended";
}

TEST_F(AuditTest, ItsNumbersGoOnAfterThoseOfTheFile) {
  v1::StateEvent restore;
  restore.mutable_restore()->set_term(9);
  restore.mutable_restore()->set_audit_file_has(800);
  restore.mutable_restore()->mutable_lease()->set_seconds(5);
  for (const v1::StateRow& row : h.rows()) *restore.mutable_restore()->add_rows() = row;
  StateMachine machine;
  machine.Step(restore);
  v1::StateEvent drain;
  drain.set_call_id(7);
  drain.mutable_drain_node()->set_node("node1");
  machine.Step(drain);
  v1::StateEvent list;
  list.set_call_id(8);
  list.mutable_list_audit();
  const Actions actions = machine.Step(list);
  const auto& page = dynamic_cast<const v1::ListAuditResponse&>(
      *std::get<ReplyToCall>(actions.list.back()).response);
  ASSERT_EQ(page.records_size(), 2);
  EXPECT_EQ(page.records(0).sequence(), 1u);
  EXPECT_EQ(page.records(1).sequence(), 801u);
}

TEST_F(AuditTest, EventsNameWhoAskedForThem) {
  const std::string id = h.SubmitAs("ada", MakeSpec(1, 1));
  v1::StateEvent cancel;
  cancel.mutable_cancel_job()->set_job_id(id);
  Send("root", cancel);
  h.Advance(seconds(40));
  v1::StateEvent get;
  get.mutable_get_job()->set_job_id(id);
  std::vector<std::string> said;
  const auto response = h.answer(h.Call(get)).As<v1::GetJobResponse>();
  for (const v1::ClusterEvent& event : response.events()) {
    if (!event.actor().empty()) said.push_back(event.kind() + " " + event.actor());
  }
  EXPECT_THAT(said, ElementsAre("JobSubmitted ada", "CancelRequested root"));
}

TEST(RefusalLimitTest, AFloodOfNamesIsBounded) {
  RefusalLimit limit;
  for (int i = 0; i < 50'000; ++i) EXPECT_TRUE(limit.Admit(fmt::to_string(i), seconds(1)));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
