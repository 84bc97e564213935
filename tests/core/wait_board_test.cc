#include "core/wait_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Members = std::vector<int>;
using Called = std::map<std::string, uint64_t>;

constexpr SteadyNanos kSettle = WaitBoard::kSettle;
constexpr SteadyNanos kMoment{1};

WaitReport InCollective(int rank, const std::string& group, const Members& members,
                        const Called& called) {
  WaitReport report;
  report.rank = rank;
  report.calls = {{group, members, called.at(group), {}, "all_reduce of " + group, false}};
  report.called = called;
  return report;
}

WaitReport Receiving(int rank, const Members& peers, const Members& members) {
  WaitReport report;
  report.rank = rank;
  report.calls = {{"world", members, 1, peers, "receive", false}};
  report.called = {{"world", 3}};
  report.receiving_from.insert(peers.begin(), peers.end());
  return report;
}

WaitReport Sending(int rank, int peer, const Members& members) {
  WaitReport report = Receiving(rank, {peer}, members);
  report.calls[0].operation = "send";
  std::swap(report.sending_to, report.receiving_from);
  return report;
}

void ReportAll(WaitBoard& board, const std::vector<WaitReport>& reports,
               SteadyNanos now = SteadyNanos{0}) {
  for (const WaitReport& report : reports) board.Report(report, now);
}

std::vector<WaitReport> OppositeOrder() {
  return {InCollective(0, "a", {0, 1}, {{"a", 5}, {"b", 2}}),
          InCollective(1, "b", {0, 1}, {{"a", 4}, {"b", 3}})};
}

TEST(WaitBoardTest, TwoGroupsInOppositeOrderAreADeadlock) {
  WaitBoard board;
  ReportAll(board, OppositeOrder());
  EXPECT_THAT(board.Decide(kSettle - kMoment), IsEmpty());
  const auto verdicts = board.Decide(kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_TRUE(verdicts[0].deadlock);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(verdicts[0].message,
            "ranks 0 and 1 wait for each other in vain: rank 0 is in all_reduce of a, which rank 1 "
            "has not called; rank 1 is in all_reduce of b, which rank 0 has not called. All ranks "
            "must call what they share in one order. Such a wait is an error after 3 s: "
            "MESHRUN_DEADLOCK_SECONDS sets this time (0: only the timeout of the operations ends "
            "them).");
}

TEST(WaitBoardTest, ACycleIsSaidOnceBeforeItIsAnError) {
  WaitBoard board;
  ReportAll(board, OppositeOrder());
  EXPECT_EQ(board.NextDecision(), WaitBoard::kGather);
  EXPECT_THAT(board.Suspect(WaitBoard::kGather),
              ElementsAre("ranks 0 and 1 seem to wait for each other in vain: rank 0 is in "
                          "all_reduce of a, which rank 1 has not called; rank 1 is in all_reduce "
                          "of b, which rank 0 has not called. That is an error after 3 s "
                          "(MESHRUN_DEADLOCK_SECONDS)."));
  EXPECT_THAT(board.Suspect(WaitBoard::kGather), IsEmpty());
  EXPECT_THAT(board.Decide(WaitBoard::kGather), IsEmpty());
  EXPECT_EQ(board.NextDecision(), kSettle);
}

// A thread that has called before may come late.
TEST(WaitBoardTest, ACycleIsNoErrorWhileAnotherThreadMayCall) {
  WaitBoard board;
  std::vector<WaitReport> reports = OppositeOrder();
  reports[1].other_threads = 1;
  ReportAll(board, reports);
  EXPECT_THAT(board.Suspect(kSettle),
              ElementsAre(HasSubstr("No error follows, since rank 1 has another thread")));
  EXPECT_THAT(board.Decide(1000 * kSettle), IsEmpty());
  // It is blocked, too, or has ended.
  reports[1].other_threads = 0;
  ReportAll(board, reports, 1000 * kSettle);
  EXPECT_THAT(board.Decide(1001 * kSettle), SizeIs(1));
}

TEST(WaitBoardTest, TheLongestSettingOfTheCycleCounts) {
  WaitBoard board;
  std::vector<WaitReport> reports = OppositeOrder();
  reports[1].deadlock_after = 30 * kSettle;
  ReportAll(board, reports);
  EXPECT_THAT(board.Decide(28 * kSettle - kMoment), IsEmpty());
  EXPECT_EQ(board.NextDecision(), 28 * kSettle - kMoment + WaitBoard::kGather);
  const auto verdicts = board.Decide(28 * kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].message, HasSubstr("an error after 30 s"));
}

TEST(WaitBoardTest, ASettingOfZeroLeavesTheEndToTheTimeout) {
  WaitBoard board;
  std::vector<WaitReport> reports = OppositeOrder();
  reports[0].deadlock_after = SteadyNanos::zero();
  ReportAll(board, reports);
  EXPECT_THAT(board.Decide(1000 * kSettle), IsEmpty());
  EXPECT_EQ(board.NextDecision(), std::nullopt);
  EXPECT_THAT(board.Suspect(1000 * kSettle),
              ElementsAre(HasSubstr("MESHRUN_DEADLOCK_SECONDS is 0")));
}

// Rank 0's second thread waits for rank 2, and goes on when that calls.
TEST(WaitBoardTest, ARankIsStuckOnlyWhereEachOfItsThreadsIs) {
  WaitBoard board;
  std::vector<WaitReport> reports = OppositeOrder();
  reports[0].called["c"] = 1;
  reports[0].calls.push_back({"c", {0, 2}, 1, {}, "barrier of c", false});
  ReportAll(board, reports);
  EXPECT_THAT(board.Suspect(10 * kSettle), IsEmpty());
  EXPECT_THAT(board.Decide(10 * kSettle), IsEmpty());
  // Rank 2 waits for rank 1.
  board.Report(InCollective(2, "d", {1, 2}, {{"d", 1}}), 10 * kSettle);
  EXPECT_THAT(board.Suspect(10 * kSettle), SizeIs(1));
  const auto verdicts = board.Decide(11 * kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(verdicts[0].message,
              AllOf(HasSubstr("rank 0 is in barrier of c, which rank 2 has not called"),
                    HasSubstr("rank 2 is in all_reduce of d, which rank 1 has not called")));
  EXPECT_THAT(verdicts[0].groups, SizeIs(4));
}

TEST(WaitBoardTest, ARankThatLeftIsNotNamedWhileAnotherThreadMayCall) {
  WaitBoard board;
  WaitReport late = InCollective(1, "b", {1, 3}, {{"b", 1}});
  late.other_threads = 1;
  ReportAll(board, {InCollective(0, "a", {0, 1, 2}, {{"a", 7}}), late});
  board.Left(2, SteadyNanos{0});
  EXPECT_THAT(board.Decide(10 * kSettle), IsEmpty());
  late.other_threads = 0;
  board.Report(late, 10 * kSettle);
  EXPECT_THAT(board.Decide(11 * kSettle), SizeIs(1));
}

// Rank 1 computes, or waits for one that computes, or waits for what all have called.
TEST(WaitBoardTest, ASlowRankIsNone) {
  WaitBoard board;
  board.Report(OppositeOrder()[0], SteadyNanos{0});
  EXPECT_THAT(board.Decide(100 * kSettle), IsEmpty());

  board.Report(InCollective(1, "c", {1, 2}, {{"a", 4}, {"c", 1}}), SteadyNanos{0});
  EXPECT_THAT(board.Decide(100 * kSettle), IsEmpty());

  board.Report(InCollective(2, "c", {1, 2}, {{"c", 1}}), SteadyNanos{0});
  EXPECT_THAT(board.Decide(200 * kSettle), IsEmpty());

  board.Report(InCollective(1, "b", {0, 1}, {{"a", 5}, {"b", 3}}), SteadyNanos{0});
  EXPECT_THAT(board.Decide(300 * kSettle), IsEmpty());
}

TEST(WaitBoardTest, ARankThatIsBlockedNoLongerIsNone) {
  WaitBoard board;
  ReportAll(board, OppositeOrder());
  board.Withdraw(1);
  EXPECT_THAT(board.Decide(100 * kSettle), IsEmpty());
}

TEST(WaitBoardTest, ARankThatLeftIsNamed) {
  WaitBoard board;
  board.Report(InCollective(0, "a", {0, 1, 2}, {{"a", 7}}), SteadyNanos{0});
  board.Left(2, 10 * kSettle);
  EXPECT_THAT(board.Decide(20 * kSettle), IsEmpty()) << "rank 1 computes";
  EXPECT_THAT(board.Silent({0, 1, 2}), ElementsAre(1));
  board.Left(1, 30 * kSettle);
  board.Left(3, 30 * kSettle);
  const auto verdicts = board.Decide(31 * kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_FALSE(verdicts[0].deadlock);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(1, 2));
  EXPECT_EQ(verdicts[0].message,
            "ranks 1 and 2 left without calling all_reduce of a, in which rank 0 waits.");
  ASSERT_THAT(verdicts[0].groups, SizeIs(1));
  EXPECT_EQ(verdicts[0].groups[0].name, "a");
  EXPECT_EQ(verdicts[0].groups[0].resume_at, 8u);
  EXPECT_THAT(board.Decide(100 * kSettle), IsEmpty());
}

// What it sent last may still be on its way.
TEST(WaitBoardTest, ARankThatLeftJustNowIsNotNamedYet) {
  WaitBoard board;
  board.Report(InCollective(0, "a", {0, 1}, {{"a", 7}}), SteadyNanos{0});
  board.Left(1, 10 * kSettle);
  EXPECT_THAT(board.Decide(11 * kSettle - kMoment), IsEmpty());
  EXPECT_THAT(board.Decide(11 * kSettle), SizeIs(1));
}

TEST(WaitBoardTest, ARankMayLeaveWhileTheDataOfOthersMoves) {
  WaitBoard board;
  WaitReport receiver = InCollective(0, "a", {0, 1, 2}, {{"a", 7}});
  receiver.calls[0].is_moving = true;
  ReportAll(board, {receiver, InCollective(1, "a", {0, 1, 2}, {{"a", 7}})});
  board.Left(2, SteadyNanos{0});
  EXPECT_THAT(board.Decide(100 * kSettle), IsEmpty());
}

TEST(WaitBoardTest, AVerdictComesOnceAndTellsWhereGroupsGoOn) {
  WaitBoard board;
  // Rank 2 is behind in the same operation as rank 0; rank 3 has called more of b than rank 1, and
  // is blocked in a third group that is not part of it.
  const Members a = {0, 1, 2}, b = {3, 0, 1};
  ReportAll(
      board,
      {InCollective(0, "a", a, {{"a", 5}, {"b", 2}}), InCollective(1, "b", b, {{"a", 4}, {"b", 3}}),
       InCollective(2, "a", a, {{"a", 5}}), InCollective(3, "c", {3, 4}, {{"b", 6}, {"c", 9}})});
  const auto verdicts = board.Decide(kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(0, 1));
  ASSERT_THAT(verdicts[0].groups, SizeIs(2));
  EXPECT_EQ(verdicts[0].groups[0].name, "a");
  EXPECT_EQ(verdicts[0].groups[0].members, a);
  EXPECT_EQ(verdicts[0].groups[0].resume_at, 6u);
  EXPECT_EQ(verdicts[0].groups[1].name, "b");
  EXPECT_EQ(verdicts[0].groups[1].members, b);
  EXPECT_EQ(verdicts[0].groups[1].resume_at, 7u);
  EXPECT_THAT(board.Decide(100 * kSettle), IsEmpty());
  // What it has ended is forgotten, the rest is not.
  EXPECT_THAT(board.Silent({0, 1, 2, 3}), ElementsAre(0, 1, 2));

  // Said again, it is due again.
  ReportAll(board, OppositeOrder(), 200 * kSettle);
  EXPECT_THAT(board.Decide(200 * kSettle), IsEmpty());
  EXPECT_THAT(board.Decide(201 * kSettle), SizeIs(1));
}

TEST(WaitBoardTest, AReportThatChangesStartsItsTimeAgain) {
  WaitBoard board;
  std::vector<WaitReport> reports = OppositeOrder();
  ReportAll(board, reports);
  reports[1].called["c"] = 1;
  ReportAll(board, reports, kSettle / 2);
  EXPECT_THAT(board.Decide(kSettle), IsEmpty());
  ReportAll(board, reports, kSettle);
  EXPECT_THAT(board.Decide(kSettle * 3 / 2 - kMoment), IsEmpty());
  EXPECT_THAT(board.Decide(kSettle * 3 / 2), SizeIs(1)) << "what is said again goes on";
}

// Rows {0, 1} and {2, 3}, columns {0, 2} and {1, 3} of a mesh; rank 4 waits for one of them.
TEST(WaitBoardTest, ACycleMayPassThroughGroupsOfTheSameName) {
  WaitBoard board;
  ReportAll(board, {InCollective(0, "row", {0, 1}, {{"row", 2}, {"column", 0}}),
                    InCollective(1, "column", {1, 3}, {{"row", 1}, {"column", 8}}),
                    InCollective(3, "row", {2, 3}, {{"row", 5}, {"column", 7}}),
                    InCollective(2, "column", {0, 2}, {{"row", 4}, {"column", 1}}),
                    InCollective(4, "all", {0, 1, 2, 3, 4}, {{"all", 1}})});
  const auto verdicts = board.Decide(kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(0, 1, 2, 3));
  std::vector<std::pair<Members, uint64_t>> goes_on;
  for (const auto& group : verdicts[0].groups) {
    goes_on.emplace_back(group.members, group.resume_at);
  }
  EXPECT_THAT(goes_on, ElementsAre(std::pair(Members{0, 2}, 2), std::pair(Members{1, 3}, 9),
                                   std::pair(Members{0, 1}, 3), std::pair(Members{2, 3}, 6)));
  EXPECT_THAT(board.Silent({4}), IsEmpty());
}

TEST(WaitBoardTest, ThreeRanksInACycle) {
  WaitBoard board;
  const WaitReport last = InCollective(2, "c", {0, 2}, {{"b", 0}, {"c", 1}});
  ReportAll(board, {InCollective(0, "a", {0, 1}, {{"a", 1}, {"c", 0}}),
                    InCollective(1, "b", {1, 2}, {{"a", 0}, {"b", 1}})});
  EXPECT_THAT(board.Decide(10 * kSettle), IsEmpty());
  board.Report(last, 10 * kSettle);
  EXPECT_THAT(board.Decide(11 * kSettle - kMoment), IsEmpty());
  const auto verdicts = board.Decide(11 * kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(
      verdicts[0].message,
      AllOf(HasSubstr("ranks 0, 1 and 2 wait"), HasSubstr("of a, which rank 1 has not"),
            HasSubstr("of b, which rank 2 has not"), HasSubstr("of c, which rank 0 has not")));
}

TEST(WaitBoardTest, TwoCyclesAreTwoVerdicts) {
  WaitBoard board;
  const Members pair = {2, 3}, all = {0, 1, 2, 3};
  ReportAll(board, OppositeOrder());
  // Ranks 0 and 1 wait for rank 2 as well.
  board.Report(InCollective(0, "a", all, {{"a", 5}, {"b", 2}}), SteadyNanos{0});
  ReportAll(board,
            {InCollective(2, "c", pair, {{"c", 1}}), InCollective(3, "d", pair, {{"d", 1}})});
  const auto verdicts = board.Decide(kSettle);
  ASSERT_THAT(verdicts, SizeIs(2));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(2, 3));
  EXPECT_THAT(verdicts[1].ranks, ElementsAre(0, 1));
}

TEST(WaitBoardTest, AThousandRanksMakeAShortSentence) {
  WaitBoard board;
  Members all;
  for (int rank = 0; rank < 1000; ++rank) all.push_back(rank);
  for (const int rank : all) {
    board.Report(InCollective(rank, rank < 500 ? "a" : "b", all,
                              {{rank < 500 ? "a" : "b", 1}, {rank < 500 ? "b" : "a", 0}}),
                 SteadyNanos{0});
  }
  const auto verdicts = board.Decide(kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, SizeIs(1000));
  EXPECT_THAT(verdicts[0].message,
              HasSubstr("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 492 more are in all_reduce of a, which "
                        "ranks 500, 501, 502, 503, 504, 505, 506, 507 and 492 more have not"));
  EXPECT_LT(verdicts[0].message.size(), 600u);
}

TEST(WaitBoardTest, PointToPointBothReceiving) {
  WaitBoard board;
  const Members pair = {0, 1};
  ReportAll(board, {Receiving(0, {1}, pair), Receiving(1, {0}, pair)});
  const auto verdicts = board.Decide(kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_TRUE(verdicts[0].deadlock);
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(verdicts[0].message, HasSubstr("rank 1 is in receive and waits for rank 0"));
  ASSERT_THAT(verdicts[0].groups, SizeIs(1));
  EXPECT_EQ(verdicts[0].groups[0].resume_at, 0u) << "collectives are not concerned";
}

TEST(WaitBoardTest, PointToPointBothSending) {
  WaitBoard board;
  ReportAll(board, {Sending(0, 1, {0, 1}), Sending(1, 0, {0, 1})});
  EXPECT_THAT(board.Decide(kSettle), SizeIs(1));
}

// A message that takes long, with or without an answer that was asked for before.
TEST(WaitBoardTest, RanksThatExchangeMessagesAreNone) {
  WaitBoard board;
  const Members pair = {0, 1};
  ReportAll(board, {Sending(0, 1, pair), Receiving(1, {0}, pair)});
  EXPECT_THAT(board.Decide(100 * kSettle), IsEmpty());
  WaitReport first = Sending(0, 1, pair), second = Sending(1, 0, pair);
  first.receiving_from = {1};
  second.receiving_from = {0};
  ReportAll(board, {first, second});
  EXPECT_THAT(board.Decide(100 * kSettle), IsEmpty());
}

TEST(WaitBoardTest, AMessageAndACollectiveMakeACycle) {
  WaitBoard board;
  const Members pair = {0, 1};
  ReportAll(board, {Receiving(0, {1}, pair), InCollective(1, "world", pair, {{"world", 4}})});
  const auto verdicts = board.Decide(kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  ASSERT_THAT(verdicts[0].groups, SizeIs(1));
  EXPECT_EQ(verdicts[0].groups[0].resume_at, 5u);
}

TEST(WaitBoardTest, OfSeveralPeersAnyOneWillDo) {
  WaitBoard board;
  const Members all = {0, 1, 2};
  ReportAll(board, {Receiving(0, {1, 2}, all), Receiving(1, {0}, all)});
  EXPECT_THAT(board.Decide(100 * kSettle), IsEmpty()) << "rank 2 may send";
  board.Report(Receiving(2, {1}, all), SteadyNanos{0});
  const auto verdicts = board.Decide(100 * kSettle);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].ranks, ElementsAre(0, 1, 2));

  ReportAll(board, {Receiving(0, {1, 2}, all), Receiving(1, {0}, all)});
  board.Left(2, SteadyNanos{0});
  EXPECT_THAT(board.Decide(200 * kSettle), SizeIs(1)) << "rank 2 no longer";
}

}  // namespace
}  // namespace meshrun
