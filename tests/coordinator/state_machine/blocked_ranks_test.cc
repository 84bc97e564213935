#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class BlockedRanksTest : public ::testing::Test {
 protected:
  // Two nodes with two ranks each.
  void RunFour() { id_ = h.Submit(MakeSpec(2, 2)); }

  v1::OpenSessionRequest Of(FakeWorker& worker) {
    v1::OpenSessionRequest message = worker.Heartbeat();
    message.mutable_fence()->set_job_id(id_);
    message.mutable_fence()->set_generation(h.job(id_).generation());
    message.clear_heartbeat();
    return message;
  }
  // Blocked in the first barrier of `group`, which has `members`; an error after 3 s.
  void Report(FakeWorker& worker, int rank, const std::string& group, std::vector<int> members,
              int other_threads = 0) {
    v1::OpenSessionRequest message = Of(worker);
    v1::WaitReport& report = *message.mutable_wait_report();
    report.set_rank(rank);
    v1::WaitCall& call = *report.add_calls();
    call.set_group(group);
    for (const int member : members) call.add_members(member);
    call.set_sequence(1);
    call.set_operation("barrier number 1 of group \"" + group + "\"");
    (*report.mutable_called())[group] = 1;
    report.set_other_threads(other_threads);
    report.mutable_deadlock_after()->set_seconds(3);
    h.Say(worker, {message});
  }
  void Withdraw(FakeWorker& worker, int rank) {
    v1::OpenSessionRequest message = Of(worker);
    message.mutable_wait_withdrawn()->set_rank(rank);
    h.Say(worker, {message});
  }
  // All that the worker was told, in one.
  static v1::PeerNews NewsOf(const FakeWorker& worker) {
    v1::PeerNews all;
    for (const auto& message : worker.received) all.MergeFrom(message.peer_news());
    return all;
  }

  Harness h;
  FakeWorker& first = h.AddWorker("node1");
  FakeWorker& second = h.AddWorker("node2");
  std::string id_;
};

TEST_F(BlockedRanksTest, RanksThatWaitForEachOtherMakeOneVerdictForAll) {
  RunFour();
  Report(first, 1, "a", {1, 2});
  Report(second, 2, "b", {1, 2});
  EXPECT_THAT(NewsOf(first).verdicts(), IsEmpty());
  h.Advance(seconds(1));
  for (const FakeWorker* worker : {&first, &second}) {
    const v1::PeerNews news = NewsOf(*worker);
    ASSERT_THAT(news.verdicts(), SizeIs(1));
    EXPECT_THAT(news.verdicts(0).message(), HasSubstr("ranks 1 and 2 wait for each other"));
    EXPECT_TRUE(news.verdicts(0).deadlock());
    EXPECT_THAT(news.verdicts(0).ranks(), ElementsAre(1, 2));
    EXPECT_EQ(news.verdicts(0).groups(0).resume_at(), 2u);
  }
  EXPECT_TRUE(h.HasEvent("RanksWaitInVain"));
  EXPECT_EQ(h.state(id_), v1::JOB_STATE_RUNNING);
  h.Advance(seconds(10));
  EXPECT_THAT(NewsOf(first).verdicts(), SizeIs(1));
}

TEST_F(BlockedRanksTest, AWorkerThatReturnsHearsTheVerdict) {
  RunFour();
  Report(first, 1, "a", {1, 2});
  Report(second, 2, "b", {1, 2});
  h.Disconnect(second);
  h.Advance(seconds(1));
  ASSERT_THAT(NewsOf(first).verdicts(), SizeIs(1));
  EXPECT_THAT(NewsOf(second).verdicts(), IsEmpty());
  h.Connect(second);
  ASSERT_THAT(NewsOf(second).verdicts(), SizeIs(1));
  // Whether a message was lost with its session nobody knows: ranks tell a repetition by the
  // number.
  h.Disconnect(first);
  h.Connect(first);
  ASSERT_THAT(NewsOf(first).verdicts(), SizeIs(2));
  EXPECT_NE(NewsOf(first).verdicts(0).number(), 0u);
  EXPECT_EQ(NewsOf(first).verdicts(0).number(), NewsOf(first).verdicts(1).number());
  EXPECT_EQ(NewsOf(first).verdicts(0).number(), NewsOf(second).verdicts(0).number());
}

TEST_F(BlockedRanksTest, ARestartedCoordinatorGivesNoNumberASecondTime) {
  RunFour();
  std::vector<uint64_t> numbers;
  for (int term = 0; term < 2; ++term) {
    if (term > 0) h.StartCoordinator();
    for (FakeWorker* worker : {&first, &second}) {
      worker->received.clear();
      if (term > 0) h.Connect(*worker);
    }
    Report(first, 1, "a", {1, 2});
    Report(second, 2, "b", {1, 2});
    h.Advance(seconds(10));
    ASSERT_THAT(NewsOf(first).verdicts(), SizeIs(1));
    numbers.push_back(NewsOf(first).verdicts(0).number());
  }
  EXPECT_GT(numbers[1], numbers[0]);
}

TEST_F(BlockedRanksTest, ACycleIsAnEventWhereAThreadMayStillEndIt) {
  RunFour();
  Report(first, 1, "a", {1, 2}, /*other_threads=*/1);
  Report(second, 2, "b", {1, 2});
  h.Advance(std::chrono::milliseconds(100));
  EXPECT_TRUE(h.HasEvent("RanksMayWaitInVain"));
  h.Advance(std::chrono::hours(1));
  EXPECT_THAT(NewsOf(first).verdicts(), IsEmpty());
  EXPECT_FALSE(h.HasEvent("RanksWaitInVain"));
}

TEST_F(BlockedRanksTest, ARankThatRunsOnMakesNoVerdict) {
  RunFour();
  Report(first, 1, "a", {1, 2});
  Report(second, 2, "b", {1, 2});
  Withdraw(second, 2);
  h.Advance(std::chrono::hours(1));
  EXPECT_THAT(NewsOf(first).verdicts(), IsEmpty());
}

TEST_F(BlockedRanksTest, ARankThatLeftIsNamedOnceNobodyElseCanCall) {
  RunFour();
  Report(first, 0, "a", {0, 1});
  h.Say(first, first.Exit(id_, 1, 0));
  EXPECT_THAT(NewsOf(first).left(), ElementsAre(1));
  EXPECT_THAT(NewsOf(second).left(), ElementsAre(1));
  h.Advance(seconds(1));
  ASSERT_THAT(NewsOf(first).verdicts(), SizeIs(1));
  EXPECT_THAT(NewsOf(first).verdicts(0).message(), HasSubstr("rank 1 left without calling"));
}

TEST_F(BlockedRanksTest, AllHearOfADeathBeforeTheyAreStopped) {
  RunFour();
  second.stubborn = true;
  h.Say(first, first.Exit(id_, 0, 0, SIGKILL));
  int told = -1, stopped = -1;
  for (size_t i = 0; i < second.received.size(); ++i) {
    if (second.received[i].has_peer_news() && told < 0) told = static_cast<int>(i);
    if (second.received[i].has_stop()) stopped = static_cast<int>(i);
  }
  ASSERT_GE(told, 0);
  EXPECT_LT(told, stopped);
  const v1::PeerNews& news = second.received[told].peer_news();
  ASSERT_THAT(news.lost(), SizeIs(1));
  EXPECT_EQ(news.lost(0).rank(), 0);
  EXPECT_EQ(news.lost(0).reason(), "it was killed by signal 9 (SIGKILL) on node1");
}

TEST_F(BlockedRanksTest, RanksOfALostNodeAreLost) {
  RunFour();
  second.stubborn = true;
  h.Disconnect(first);
  h.Advance(seconds(30));
  const v1::PeerNews news = NewsOf(second);
  ASSERT_THAT(news.lost(), SizeIs(2));
  EXPECT_EQ(news.lost(1).rank(), 1);
  EXPECT_EQ(news.lost(1).reason(), "its host node1 was lost");
}

TEST_F(BlockedRanksTest, AWorkerThatReturnsHearsWhoIsGone) {
  RunFour();
  h.Disconnect(second);
  h.Say(first, first.Exit(id_, 1, 0));
  EXPECT_THAT(NewsOf(second).left(), IsEmpty());
  h.Connect(second);
  EXPECT_THAT(NewsOf(second).left(), ElementsAre(1));
  h.StartCoordinator();
  h.Connect(first);
  second.received.clear();
  h.Connect(second);
  EXPECT_THAT(NewsOf(second).left(), ElementsAre(1));
}

TEST_F(BlockedRanksTest, AWorkerThatReturnsToARestartedCoordinatorHearsWhoIsLost) {
  RunFour();
  second.stubborn = true;
  h.Say(first, first.Exit(id_, 0, 0, SIGKILL));
  ASSERT_EQ(h.state(id_), v1::JOB_STATE_QUIESCING);
  h.StartCoordinator();
  second.received.clear();
  h.Connect(second);
  const v1::PeerNews news = NewsOf(second);
  ASSERT_THAT(news.lost(), SizeIs(2));
  EXPECT_EQ(news.lost(0).rank(), 0);
  EXPECT_EQ(news.lost(0).reason(), "it was killed by signal 9 (SIGKILL) on node1");
  // It was told to end.
  EXPECT_EQ(news.lost(1).rank(), 1);
  EXPECT_EQ(news.lost(1).reason(), "it was killed by signal 15 (SIGTERM) on node1");
  EXPECT_THAT(news.left(), IsEmpty());
}

TEST_F(BlockedRanksTest, AWorkerThatReturnsToARestartedCoordinatorHearsWhichHostIsLost) {
  RunFour();
  second.stubborn = true;
  h.Disconnect(first);
  h.Advance(seconds(6));
  ASSERT_EQ(h.state(id_), v1::JOB_STATE_QUIESCING);
  h.StartCoordinator();
  second.received.clear();
  h.Connect(second);
  const v1::PeerNews news = NewsOf(second);
  ASSERT_THAT(news.lost(), SizeIs(2));
  for (int rank : {0, 1}) {
    EXPECT_EQ(news.lost(rank).rank(), rank);
    EXPECT_EQ(news.lost(rank).reason(), "its host node1 was lost");
  }
}

TEST_F(BlockedRanksTest, OfManyLostRanksANodeThatReturnsHearsTheFirstInWords) {
  id_ = h.Submit(MakeSpec(2, 20));
  first.stubborn = second.stubborn = true;
  ASSERT_EQ(h.state(id_), v1::JOB_STATE_QUEUED) << "8 slots a node";
  FakeWorker& large = h.AddWorker("node3", 20);
  FakeWorker& other = h.AddWorker("node4", 20);
  large.stubborn = other.stubborn = true;
  ASSERT_EQ(h.state(id_), v1::JOB_STATE_RUNNING);
  for (int rank = 0; rank < 20; ++rank) h.Say(large, large.Exit(id_, rank, 1));
  h.Disconnect(other);
  other.received.clear();
  h.Connect(other);
  const v1::PeerNews news = NewsOf(other);
  ASSERT_THAT(news.lost(), SizeIs(1));
  EXPECT_EQ(news.lost(0).rank(), 0);
  EXPECT_THAT(news.ended(), SizeIs(19));
}

TEST_F(BlockedRanksTest, ReportsOfRanksThatLiveElsewhereAreIgnored) {
  RunFour();
  Report(second, 1, "a", {1, 2});
  Report(second, 2, "b", {1, 2});
  h.Advance(seconds(5));
  EXPECT_THAT(NewsOf(first).verdicts(), IsEmpty());
}

TEST_F(BlockedRanksTest, AGroupIsKnownByItsIdOnceItsMembersWereNamed) {
  RunFour();
  const auto report = [&](FakeWorker& worker, int rank, const std::string& group, bool named) {
    v1::OpenSessionRequest message = Of(worker);
    v1::WaitReport& wait = *message.mutable_wait_report();
    wait.set_rank(rank);
    v1::WaitCall& call = *wait.add_calls();
    call.set_group(group);
    call.set_group_id(group == "a" ? 11 : 12);
    // Ranks 1 and 2: first, count, stride.
    for (const int number : {1, 2, 1}) {
      if (named) call.add_member_rows(number);
    }
    call.set_sequence(1);
    call.set_operation("barrier of " + group);
    (*wait.mutable_called())[group] = 1;
    wait.mutable_deadlock_after()->set_seconds(3);
    h.Say(worker, {message});
  };
  report(first, 1, "a", /*named=*/false);
  report(second, 2, "b", /*named=*/true);
  h.Advance(seconds(5));
  EXPECT_THAT(NewsOf(first).verdicts(), IsEmpty()) << "nobody has said who is in a";
  report(first, 1, "a", /*named=*/true);
  report(second, 2, "b", /*named=*/false);
  h.Advance(seconds(1));
  ASSERT_THAT(NewsOf(first).verdicts(), SizeIs(1));
  EXPECT_THAT(NewsOf(first).verdicts(0).ranks(), ElementsAre(1, 2));
  EXPECT_THAT(NewsOf(first).verdicts(0).groups(0).members(), ElementsAre(1, 2));
}

TEST_F(BlockedRanksTest, AfterTheFirstCauseDeathsAreToldWithoutWords) {
  RunFour();
  second.stubborn = true;
  h.Say(first, first.Exit(id_, 0, 0, SIGKILL));
  h.Say(second, second.Exit(id_, 2, 1));
  h.Advance(seconds(1));
  const v1::PeerNews news = NewsOf(second);
  ASSERT_THAT(news.lost(), SizeIs(1));
  EXPECT_EQ(news.lost(0).rank(), 0);
  EXPECT_THAT(news.ended(), ::testing::Contains(2));
}

// Ten thousand ranks on 1,250 hosts: each death in words to each host took 13 s.
TEST_F(BlockedRanksTest, DeathsOfACancelledJobAreToldWithoutWords) {
  RunFour();
  first.stubborn = second.stubborn = true;
  h.Cancel(id_);
  h.Say(first, first.Exit(id_, 0, 0, SIGTERM));
  h.Advance(seconds(1));
  const v1::PeerNews news = NewsOf(second);
  EXPECT_THAT(news.lost(), IsEmpty());
  EXPECT_THAT(news.ended(), ElementsAre(0));
}

TEST_F(BlockedRanksTest, TheNextGenerationStartsWithoutReports) {
  v1::JobSpec spec = MakeSpec(2, 2);
  spec.set_max_restarts(1);
  id_ = h.Submit(spec);
  Report(first, 1, "a", {1, 2});
  h.Say(first, first.Exit(id_, 0, 3));
  ASSERT_EQ(h.job(id_).generation(), 2u);
  Report(second, 2, "b", {1, 2});
  h.Advance(seconds(5));
  EXPECT_THAT(NewsOf(first).verdicts(), IsEmpty());
}

TEST(PeerNewsTest, OnManyHostsRanksThatLeftAreToldTogether) {
  Harness h;
  std::vector<FakeWorker*> workers;
  for (int i = 0; i < 70; ++i) workers.push_back(&h.AddWorker("node" + std::to_string(i)));
  const std::string id = h.Submit(MakeSpec(70, 1));
  h.Advance(seconds(1));
  workers[69]->received.clear();
  for (int i = 0; i < 20; ++i) h.Say(*workers[i], workers[i]->ExitAll(id, 0));
  const auto news = [&] {
    int messages = 0;
    int left = 0;
    for (const auto& message : workers[69]->received) {
      messages += message.has_peer_news();
      left += message.peer_news().left_size();
    }
    return std::pair(messages, left);
  };
  EXPECT_EQ(news(), std::pair(1, 1));
  h.Advance(seconds(1));
  EXPECT_EQ(news(), std::pair(2, 20));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
