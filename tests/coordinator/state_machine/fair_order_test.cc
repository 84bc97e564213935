// Users take turns: whoever has little is next, however much others have queued.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "coordinator/state_machine/turns.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

void Start(Turns& turns, const std::string& user, const Turn& turn) {
  turns.Start(0, user, turn, turn.begin);
}

TEST(TurnsTest, UsersAlternate) {
  Turns turns;
  const Turn first = turns.Join(0, "bob", 1, 1);
  const Turn second = turns.Join(0, "bob", 1, 1);
  const Turn third = turns.Join(0, "bob", 1, 1);
  const Turn adas = turns.Join(0, "ada", 1, 1);
  EXPECT_EQ(adas.begin, first.begin);
  Start(turns, "bob", first);
  Start(turns, "bob", second);
  // Late, and not before what has been started.
  const Turn late = turns.Join(0, "eve", 1, 1);
  EXPECT_EQ(late.begin, second.begin);
  EXPECT_LT(late.begin, third.begin);
  EXPECT_EQ(turns.Join(1, "bob", 1, 1).begin, 0u) << "another priority, other turns";
}

TEST(TurnsTest, ATurnIsAsLongAsItsSlotsByTheWeight) {
  Turns turns;
  const auto length = [](const Turn& turn) { return turn.end - turn.begin; };
  const uint64_t one = length(turns.Join(0, "a", 1, 1));
  EXPECT_EQ(length(turns.Join(0, "a", 8, 1)), 8 * one);
  EXPECT_EQ(length(turns.Join(0, "b", 8, 2)), 4 * one);
  EXPECT_EQ(length(turns.Join(0, "a", 0, 1)), one) << "no slot is not said";
}

TEST(TurnsTest, WhatWasCancelledIsNotOwed) {
  Turns turns;
  std::vector<Turn> bobs;
  for (int i = 0; i < 100; ++i) bobs.push_back(turns.Join(0, "bob", 1, 1));
  Start(turns, "bob", bobs[0]);
  for (int i = 2; i < 100; ++i) turns.Leave(0, "bob", bobs[i]);
  EXPECT_EQ(turns.Join(0, "bob", 1, 1).begin, bobs[1].end) << "one of them still waits";
}

// A job that goes before others does not take the queue's time with it.
TEST(TurnsTest, WhatGoesBeforeOthersLeavesThemTheirTurn) {
  Turns turns;
  const Turn first = turns.Join(0, "bob", 8, 1);
  turns.Join(0, "bob", 800, 1);
  const Turn last = turns.Join(0, "bob", 1, 1);
  turns.Start(0, "bob", last, first.begin);
  EXPECT_EQ(turns.Join(0, "ada", 8, 1).begin, first.begin);
}

TEST(TurnsTest, WhoHasNothingLeftOwesNothing) {
  Turns turns;
  Start(turns, "ada", turns.Join(0, "ada", 1000, 1));
  turns.Forget("ada");
  turns.Join(0, "bob", 1, 1);
  EXPECT_EQ(turns.Join(0, "ada", 1, 1).begin, 0u);
}

class FairOrderTest : public ::testing::Test {
 protected:
  // Ends the one job that runs, and says which one runs next.
  std::string Next() {
    for (const auto& [id, job] : h.machine().jobs().all()) {
      if (job.view.state() != v1::JOB_STATE_RUNNING) continue;
      h.Say(*node, node->ExitAll(id, 0));
      break;
    }
    for (const auto& [id, job] : h.machine().jobs().all()) {
      if (job.view.state() == v1::JOB_STATE_RUNNING) return id;
    }
    return "";
  }
  std::string RunningOn(const FakeWorker& worker) {
    for (const auto& [id, job] : h.machine().jobs().all()) {
      if (job.view.state() == v1::JOB_STATE_RUNNING && worker.Carries(id)) return id;
    }
    return "";
  }
  std::string UserOf(const std::string& id) { return h.job(id).submitter(); }

  Harness h;
  FakeWorker* node = &h.AddWorker("node1", 4);
};

TEST_F(FairOrderTest, ANewUserIsNextHoweverMuchAnotherHasQueued) {
  const v1::JobSpec whole = MakeSpec(1, 4);
  std::vector<std::string> bobs;
  for (int i = 0; i < 20; ++i) bobs.push_back(h.SubmitAs("bob", whole));
  EXPECT_EQ(Next(), bobs[1]);
  const std::string adas = h.SubmitAs("ada", whole);
  EXPECT_EQ(Next(), adas);
  EXPECT_EQ(Next(), bobs[2]);
  // Two users who both wait alternate.
  const std::string second = h.SubmitAs("ada", whole);
  const std::string third = h.SubmitAs("ada", whole);
  EXPECT_EQ(Next(), second);
  EXPECT_EQ(Next(), bobs[3]);
  EXPECT_EQ(Next(), third);
}

TEST_F(FairOrderTest, JobsOfOneUserStayInTheirOrder) {
  std::vector<std::string> all;
  for (int i = 0; i < 6; ++i) all.push_back(h.SubmitAs("bob", MakeSpec(1, 4)));
  for (int i = 1; i < 6; ++i) EXPECT_EQ(Next(), all[i]);
}

TEST_F(FairOrderTest, APriorityGoesBeforeATurn) {
  const v1::JobSpec whole = MakeSpec(1, 4);
  v1::JobSpec urgent = whole;
  urgent.set_priority(5);
  for (int i = 0; i < 3; ++i) h.SubmitAs("bob", whole);
  h.SubmitAs("ada", whole);
  const std::string first = h.SubmitAs("bob", urgent);
  EXPECT_EQ(Next(), first);
  EXPECT_EQ(UserOf(Next()), "ada");
}

TEST_F(FairOrderTest, JobsThatWereHeldDoNotAllGoFirst) {
  const v1::JobSpec whole = MakeSpec(1, 4);
  v1::JobSpec held = whole;
  held.set_hold(true);
  h.SubmitAs("bob", whole);
  std::vector<std::string> holds;
  for (int i = 0; i < 3; ++i) holds.push_back(h.SubmitAs("bob", held));
  for (int i = 0; i < 6; ++i) h.SubmitAs("ada", whole);
  EXPECT_EQ(UserOf(Next()), "ada");
  EXPECT_EQ(UserOf(Next()), "ada");
  EXPECT_EQ(UserOf(Next()), "ada");
  for (const std::string& id : holds) {
    v1::StateEvent event;
    event.mutable_update_job()->set_job_id(id);
    event.mutable_update_job()->set_hold(false);
    h.Call(std::move(event));
  }
  std::map<std::string, int> of;
  for (int i = 0; i < 3; ++i) ++of[UserOf(Next())];
  EXPECT_EQ(of["bob"], 2);
  EXPECT_EQ(of["ada"], 1);
}

TEST_F(FairOrderTest, ARestartKeepsTheOrder) {
  const v1::JobSpec whole = MakeSpec(1, 4);
  std::vector<std::string> bobs;
  for (int i = 0; i < 6; ++i) bobs.push_back(h.SubmitAs("bob", whole));
  EXPECT_EQ(Next(), bobs[1]);
  const std::string adas = h.SubmitAs("ada", whole);
  h.StartCoordinator();
  h.Connect(*node);
  const std::string late = h.SubmitAs("ada", whole);
  EXPECT_EQ(Next(), adas);
  EXPECT_EQ(Next(), bobs[2]);
  EXPECT_EQ(Next(), late);
  EXPECT_EQ(Next(), bobs[3]);
}

// bob's last turn was started at once on a node that nobody else wanted.
TEST_F(FairOrderTest, ABackfilledJobDoesNotPutNewcomersBehindAll) {
  h.AddWorker("node2", 1);
  for (int i = 0; i < 20; ++i) h.SubmitAs("bob", MakeSpec(1, 4));
  const std::string small = h.SubmitAs("bob", MakeSpec(1, 1));
  ASSERT_EQ(h.state(small), v1::JOB_STATE_RUNNING);
  const std::string adas = h.SubmitAs("ada", MakeSpec(1, 4));
  h.Say(*node, node->ExitAll(RunningOn(*node), 0));
  EXPECT_EQ(h.state(adas), v1::JOB_STATE_RUNNING) << h.job(adas).reason();
}

// She had the idle cluster for herself last month.
TEST_F(FairOrderTest, AnOldDebtIsForgotten) {
  const std::string large = h.SubmitAs("ada", MakeSpec(1, 4));
  h.Say(*node, node->ExitAll(large, 0));
  for (int i = 0; i < 10; ++i) h.SubmitAs("bob", MakeSpec(1, 4));
  const std::string adas = h.SubmitAs("ada", MakeSpec(1, 4));
  EXPECT_EQ(Next(), adas);
}

// Users of any sizes of jobs who always wait get equal numbers of slots.
TEST_F(FairOrderTest, UsersWhoAllWaitGetEqualShares) {
  h.record = false;
  std::mt19937 random(7);
  std::map<std::string, uint64_t> slots;
  std::map<std::string, int> waiting;
  const std::vector<std::string> users = {"ada", "bob", "eve"};
  const auto refill = [&] {
    for (size_t u = 0; u < users.size(); ++u) {
      for (; waiting[users[u]] < 8; ++waiting[users[u]]) {
        // One has small jobs, one large ones, one both.
        const uint32_t procs = u == 0 ? 1 : u == 1 ? 4 : 1 + random() % 4;
        h.SubmitAs(users[u], MakeSpec(1, procs));
      }
    }
  };
  refill();
  for (int i = 0; i < 1500; ++i) {
    std::string running;
    for (const auto& [id, job] : h.machine().jobs().all()) {
      if (job.view.state() == v1::JOB_STATE_RUNNING) running = id;
    }
    ASSERT_FALSE(running.empty());
    slots[UserOf(running)] += h.job(running).world_size();
    --waiting[UserOf(running)];
    h.Say(*node, node->ExitAll(running, 0));
    refill();
  }
  const double third = static_cast<double>(slots["ada"] + slots["bob"] + slots["eve"]) / 3;
  for (const std::string& user : users)
    EXPECT_NEAR(static_cast<double>(slots[user]) / third, 1, 0.05) << user;
}

}  // namespace
}  // namespace meshrun::coordinator::testing
