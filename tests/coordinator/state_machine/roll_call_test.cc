// A coordinator that is restored from a copy: what runs goes on, and nothing runs twice.
#include "coordinator/state_machine/roll_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "core/env_entries.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RollCallTest : public ::testing::Test {
 protected:
  // The state as it is now.
  void Copy() { copy_ = h.rows(); }
  void Restart() {
    h.StartCoordinator();
    for (FakeWorker* const worker : {first, second}) h.Connect(*worker);
  }
  size_t Running(const std::string& id) {
    return first->Running(id).size() + second->Running(id).size();
  }
  bool IsHeld(const std::string& id) { return h.machine().jobs().all().at(id).record.held(); }
  static v1::JobSpec Restartable(uint32_t nodes, uint32_t procs) {
    v1::JobSpec spec = MakeSpec(nodes, procs);
    spec.set_max_restarts(3);
    return spec;
  }

  Harness h;
  FakeWorker* first = &h.AddWorker("node1", 8);
  FakeWorker* second = &h.AddWorker("node2", 8);
  std::vector<v1::StateRow> copy_;
};

TEST_F(RollCallTest, WhatTheCopyKnowsGoesOn) {
  const std::string id = h.SubmitAs("ada", MakeSpec(2, 2));
  Copy();
  for (int starts = 0; starts < 3; ++starts) Restart();
  const uint64_t term = h.term();
  h.RestoreCopy(copy_);
  EXPECT_GT(h.term(), term) << "above each that a worker knows";
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Running(id), 4u);
  EXPECT_FALSE(IsHeld(id));
  for (FakeWorker* const worker : {first, second}) h.Say(*worker, worker->ExitAll(id, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(RollCallTest, ItBeginsWhenTheCopyHasBeenRead) {
  const std::string id = h.SubmitAs("ada", MakeSpec(2, 2));
  Copy();
  h.part_takes = seconds(30);
  h.RestoreCopy(copy_);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Running(id), 4u);
  EXPECT_THAT(h.restored_summary, HasSubstr("2 hosts"));
}

TEST_F(RollCallTest, AYoungerJobGoesOnAsItsHostsKnowIt) {
  Copy();
  v1::JobSpec spec = Restartable(2, 2);
  SetEnv(*spec.mutable_env(), "TOKEN", "hush");
  const std::string id = h.SubmitAs("bob", spec);
  const v1::Job before = h.job(id);
  h.RestoreCopy(copy_);
  const v1::Job after = h.job(id);
  EXPECT_EQ(after.state(), v1::JOB_STATE_RUNNING) << after.reason();
  EXPECT_EQ(after.submitter(), "bob");
  EXPECT_EQ(after.generation(), before.generation());
  EXPECT_EQ(after.world_size(), 4u);
  EXPECT_EQ(after.master_addr(), before.master_addr());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(after.ranks(rank).assignment().SerializeAsString(),
              before.ranks(rank).assignment().SerializeAsString());
  }
  EXPECT_EQ(EnvMap(after.spec().env()).at("TOKEN"), "(hidden)");
  EXPECT_EQ(EnvMap(h.machine().jobs().all().at(id).record.env()).at("TOKEN"), "hush");
  EXPECT_EQ(h.node(*first).slots_used(), 2u);
  EXPECT_EQ(Running(id), 4u);
  // It survives a failure as before.
  h.Say(*first, first->Exit(id, h.job(id).ranks(0).node_name() == "node1" ? 0 : 2, 1));
  h.Advance(seconds(40));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_GT(h.job(id).generation(), before.generation());
}

TEST_F(RollCallTest, ALaterGenerationOfAJobGoesOn) {
  const std::string id = h.SubmitAs("ada", Restartable(1, 2));
  Copy();
  FakeWorker* const host = h.job(id).ranks(0).node_name() == "node1" ? first : second;
  h.Say(*host, host->Exit(id, 0, 1));
  h.Advance(seconds(20));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(h.job(id).generation(), 2u);
  h.RestoreCopy(copy_);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_EQ(h.job(id).restarts(), 1u);
  EXPECT_EQ(Running(id), 2u);
}

// Whoever had stopped the ranks of the generation in the copy has not stopped these.
TEST_F(RollCallTest, ALaterGenerationIsNotPaused) {
  const std::string id = h.SubmitAs("ada", Restartable(1, 2));
  v1::StateEvent stop;
  stop.mutable_signal_job()->set_job_id(id);
  stop.mutable_signal_job()->set_signal(SIGSTOP);
  ASSERT_TRUE(h.answer(h.Call(std::move(stop))).status.ok());
  ASSERT_TRUE(h.job(id).has_paused_since());
  Copy();
  FakeWorker* const host = h.job(id).ranks(0).node_name() == "node1" ? first : second;
  h.Say(*host, host->Exit(id, 0, 1));
  h.Advance(seconds(20));
  ASSERT_EQ(h.job(id).generation(), 2u);
  h.RestoreCopy(copy_);
  EXPECT_EQ(h.job(id).generation(), 2u);
  EXPECT_FALSE(h.job(id).has_paused_since());
  EXPECT_EQ(h.machine().jobs().all().at(id).record.paused_ranks_size(), 0);
  EXPECT_TRUE(h.job(id).has_running_since()) << "its time limit runs";
}

// It ran in the copy, or waited there; nobody runs it now.
TEST_F(RollCallTest, WhatMayHaveEndedIsHeldAndRunsUnderANewNumber) {
  const std::string ran = h.SubmitAs("ada", Restartable(2, 4));
  const std::string waited = h.SubmitAs("ada", MakeSpec(2, 8));
  Copy();
  for (FakeWorker* const worker : {first, second}) h.Say(*worker, worker->ExitAll(ran, 0));
  for (FakeWorker* const worker : {first, second}) h.Say(*worker, worker->ExitAll(waited, 0));
  ASSERT_EQ(h.state(waited), v1::JOB_STATE_SUCCEEDED);
  h.RestoreCopy(copy_);
  h.Advance(seconds(60));
  for (const std::string& id : {ran, waited}) {
    EXPECT_TRUE(IsHeld(id)) << id;
    EXPECT_EQ(Running(id), 0u);
    EXPECT_THAT(h.job(id).reason(), HasSubstr("may have run and ended since"));
  }
  EXPECT_EQ(h.state(ran), v1::JOB_STATE_WAITING);
  EXPECT_EQ(h.state(waited), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(h.node(*first).slots_used(), 0u);
  v1::StateEvent release;
  release.mutable_update_job()->set_job_id(ran);
  release.mutable_update_job()->set_hold(false);
  h.Call(release);
  EXPECT_EQ(h.state(ran), v1::JOB_STATE_RUNNING);
  EXPECT_GT(h.job(ran).generation(), 1000u);
}

// The copy says that it waits, and it runs.
TEST_F(RollCallTest, AJobThatHasStartedSinceGoesOn) {
  const std::string fills = h.SubmitAs("ada", MakeSpec(2, 8));
  const std::string waits = h.SubmitAs("bob", MakeSpec(1, 1));
  Copy();
  for (FakeWorker* const worker : {first, second}) h.Say(*worker, worker->ExitAll(fills, 0));
  ASSERT_EQ(h.state(waits), v1::JOB_STATE_RUNNING);
  h.RestoreCopy(copy_);
  EXPECT_EQ(h.state(waits), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Running(waits), 1u);
  EXPECT_TRUE(IsHeld(fills));
  EXPECT_THAT(h.restored_summary, HasSubstr("2 hosts answered; 1 jobs go on"));
}

// Nobody decides without all of its hosts: what is there of it is told to end.
TEST_F(RollCallTest, AGenerationThatIsNotWholeDoesNotGoOn) {
  Copy();
  const std::string id = h.SubmitAs("ada", MakeSpec(2, 2));
  second->tells_details = false;
  h.RestoreCopy(copy_);
  h.Advance(seconds(65));
  EXPECT_FALSE(h.machine().jobs().all().contains(id));
  EXPECT_EQ(Running(id), 0u);
  EXPECT_THAT(h.restored_summary, HasSubstr("1 generations on hosts are of no job"));
}

TEST_F(RollCallTest, CallsWaitForItsEnd) {
  Copy();
  std::vector<v1::StateRow> rows = copy_;
  v1::StateEvent event;
  v1::RestoreEvent& restore = *event.mutable_restore();
  restore.set_term(7);
  restore.mutable_lease()->set_seconds(5);
  restore.set_restored(true);
  event.set_end_of_batch(true);
  StateMachine machine;
  EXPECT_THAT(machine.Step(event).list, IsEmpty());
  EXPECT_EQ(*machine.NextDeadline(), seconds(7)) << "the copy has no hosts";
  v1::StateEvent submit;
  submit.set_call_id(3);
  *submit.mutable_submit_job()->mutable_spec() = MakeSpec(1, 1);
  const Actions refused = machine.Step(submit);
  const auto& reply = std::get<ReplyToCall>(refused.list.at(0));
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("it takes calls in 7s"));
  // A worker may speak for its own node alone.
  v1::StateEvent hello;
  hello.mutable_session_message()->set_session_id(5);
  v1::OpenSessionRequest& message = *hello.mutable_session_message()->mutable_message();
  message.mutable_hello()->set_node_id("id-node1");
  message.mutable_hello()->set_name("node1");
  hello.mutable_caller()->set_own_node_only(true);
  hello.mutable_caller()->set_user("node2");
  hello.mutable_caller()->add_nodes("node2");
  const Actions stranger = machine.Step(hello);
  EXPECT_EQ(std::get<CloseSession>(stranger.list.at(0)).status.code(),
            absl::StatusCode::kPermissionDenied);
}

// Until then whoever leads next holds it anew: it has written nothing.
TEST_F(RollCallTest, ItsLastTransactionEndsTheCopyAndKeepsTheNameOfTheRestore) {
  for (const std::string name : {"", "monday"}) {
    v1::StateEvent event;
    v1::RestoreEvent& restore = *event.mutable_restore();
    restore.set_term(7);
    restore.mutable_lease()->set_seconds(5);
    restore.set_restored(true);
    v1::StateRow& copy = *restore.add_rows();
    copy.set_table(v1::STATE_TABLE_META);
    copy.set_key("copy");
    copy.set_value(name);
    event.set_end_of_batch(true);
    StateMachine machine;
    EXPECT_THAT(machine.Step(event).rows, IsEmpty());
    v1::StateEvent tick;
    tick.mutable_tick();
    tick.set_end_of_batch(true);
    tick.set_now_nanos(SteadyNanos(seconds(6)).count());
    EXPECT_THAT(machine.Step(tick).rows, IsEmpty());
    tick.set_now_nanos(SteadyNanos(seconds(7)).count());
    std::map<std::string, std::string> meta;
    const Actions end = machine.Step(tick);
    for (const v1::StateRow& row : end.rows) {
      ASSERT_EQ(row.table(), v1::STATE_TABLE_META);
      meta[row.key()] = row.erased() ? "erased" : row.value();
    }
    std::map<std::string, std::string> expected = {
        {"copy", "erased"}, {"outdated", "erased"}, {"term", "8"}};
    if (!name.empty()) expected["confirmed/" + name] = "";
    EXPECT_EQ(meta, expected);
  }
}

// It waits for hosts of the copy, and then decides without them.
TEST_F(RollCallTest, AHostThatIsSilentKeepsItsJob) {
  const std::string id = h.SubmitAs("ada", Restartable(2, 2));
  Copy();
  h.silent = second->name();
  h.RestoreCopy(copy_);
  EXPECT_EQ(h.restored_summary, "") << "it waits for the second host";
  h.Advance(seconds(53));
  EXPECT_NE(h.restored_summary, "");
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << "as after any restart, until its lease ends";
  h.silent.clear();
  h.Connect(*second);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Running(id), 4u);
}

// All that ran of it was there: nothing of it runs twice, whatever the host says later.
TEST_F(RollCallTest, AJobOfSilentHostsIsHeldOnceTheyAreLost) {
  h.Disconnect(*first);
  h.Advance(seconds(6));
  const std::string id = h.SubmitAs("ada", Restartable(1, 2));
  ASSERT_EQ(second->Running(id).size(), 2u);
  Copy();
  h.Connect(*first);
  h.silent = second->name();
  h.RestoreCopy(copy_);
  h.Advance(seconds(120));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_WAITING) << h.job(id).reason();
  EXPECT_TRUE(IsHeld(id));
  EXPECT_EQ(first->Running(id).size(), 0u);
}

// One host's ranks have ended well since the copy; the other's compute.
TEST_F(RollCallTest, RanksThatEndedWellAreNotMissed) {
  const std::string id = h.SubmitAs("ada", Restartable(2, 2));
  Copy();
  h.Say(*second, second->ExitAll(id, 0));
  ASSERT_EQ(h.state(id), v1::JOB_STATE_RUNNING);
  h.RestoreCopy(copy_);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_RUNNING) << h.job(id).reason();
  EXPECT_EQ(first->Running(id).size(), 2u);
  h.Say(*first, first->ExitAll(id, 0));
  EXPECT_EQ(h.state(id), v1::JOB_STATE_SUCCEEDED) << h.job(id).reason();
}

TEST_F(RollCallTest, AWorkerMayNotTakeAnothersPlaceNorAnyTerm) {
  const std::string id = h.SubmitAs("ada", MakeSpec(2, 2));
  Copy();
  v1::StateEvent event;
  v1::RestoreEvent& restore = *event.mutable_restore();
  restore.set_term(7);
  restore.mutable_lease()->set_seconds(5);
  restore.set_restored(true);
  restore.mutable_rows()->Add(copy_.begin(), copy_.end());
  event.set_end_of_batch(true);
  StateMachine machine;
  machine.Step(event);
  v1::StateEvent hello;
  hello.mutable_session_message()->set_session_id(5);
  v1::OpenSessionRequest& message = *hello.mutable_session_message()->mutable_message();
  message = first->Hello();
  message.mutable_hello()->set_name("mallory");
  hello.mutable_caller()->set_own_node_only(true);
  hello.mutable_caller()->add_nodes("mallory");
  EXPECT_EQ(std::get<CloseSession>(machine.Step(hello).list.at(0)).status.code(),
            absl::StatusCode::kPermissionDenied);
  hello.clear_caller();
  message = second->Hello();
  message.mutable_fence()->set_term(UINT64_MAX);
  EXPECT_EQ(std::get<CloseSession>(machine.Step(hello).list.at(0)).status.code(),
            absl::StatusCode::kFailedPrecondition);
  // What a worker tells of jobs with impossible ids is not taken, nor what it has not named.
  message = first->Hello();
  machine.Step(hello);
  v1::StateEvent details;
  details.mutable_session_message()->set_session_id(5);
  v1::OpenSessionRequest& told = *details.mutable_session_message()->mutable_message();
  told.mutable_fence()->set_job_id("a/b");
  told.mutable_fence()->set_generation(1);
  told.mutable_generation_details()->mutable_prepare()->set_world_size(1);
  machine.Step(details);
  v1::StateEvent tick;
  tick.mutable_tick();
  tick.set_now_nanos(seconds(61).count());
  tick.set_end_of_batch(true);
  for (const v1::StateRow& row : machine.Step(tick).rows)
    EXPECT_THAT(row.key(), ::testing::Not(HasSubstr("a/b")));
}

TEST_F(RollCallTest, AJobThatWasBeingCancelledIsCancelled) {
  v1::JobSpec spec = MakeSpec(1, 1);
  const std::string id = h.SubmitAs("ada", spec);
  first->deaf = second->deaf = true;
  h.Cancel(id);
  ASSERT_EQ(h.state(id), v1::JOB_STATE_QUIESCING);
  Copy();
  first->deaf = second->deaf = false;
  for (FakeWorker* const worker : {first, second}) h.Say(*worker, worker->ExitAll(id, 0));
  h.RestoreCopy(copy_);
  EXPECT_EQ(h.state(id), v1::JOB_STATE_CANCELLED);
}

TEST_F(RollCallTest, AnArrayKeepsItsPlaces) {
  v1::JobSpec spec = MakeSpec(1, 1);
  for (const uint32_t index : {0, 1, 2}) spec.mutable_array()->add_indices(index);
  spec.mutable_array()->set_at_once(2);
  Copy();
  const std::string array = h.TrySubmitAs("ada", spec).As<v1::SubmitJobResponse>().job().array_id();
  h.RestoreCopy(copy_);
  EXPECT_EQ(h.job(array + "_1").array_id(), array);
  EXPECT_EQ(h.job(array + "_1").array_index(), 1u);
  EXPECT_FALSE(h.machine().jobs().all().contains(array + "_2")) << "it had not started";
}

}  // namespace
}  // namespace meshrun::coordinator::testing
