#include "parallel/comm/ucx/engine/execution/peer_liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/parallel/comm/ucx/recorded_transport.h"

namespace meshrun::ucx {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr SteadyNanos kNow = std::chrono::seconds(100);
constexpr auto kGrace = PeerLiveness::kGrace;

class PeerLivenessTest : public ::testing::Test {
 protected:
  explicit PeerLivenessTest(bool watch_sees_ends = false) : liveness_(watch_sees_ends) {
    // No pause: rounds have been made until now.
    liveness_.note_round(kNow - milliseconds(20));
    liveness_.note_round(kNow - milliseconds(1));
  }
  std::optional<Failure> check(SteadyNanos now) {
    liveness_.begin_checks();
    return liveness_.check(*group_, now);
  }

  std::unique_ptr<MemberGroup> group_ = group_of_three();
  PeerLiveness liveness_;
};

class WatchedEndsTest : public PeerLivenessTest {
 protected:
  WatchedEndsTest() : PeerLivenessTest(/*watch_sees_ends=*/true) {}
};

TEST_F(PeerLivenessTest, AnOperationFailsWhenTheGraceIsOver) {
  add_receive(*group_, 1);
  EXPECT_FALSE(liveness_.is_anyone_gone());
  EXPECT_EQ(liveness_.next_check(), SteadyNanos::max());
  liveness_.lost(11, "killed by SIGKILL", kNow);
  EXPECT_LE(liveness_.next_check(), kNow + kGrace);
  EXPECT_FALSE(check(kNow));
  EXPECT_EQ(liveness_.next_check(), kNow + kGrace);
  EXPECT_FALSE(check(kNow + kGrace - milliseconds(1)));
  const auto failure = check(kNow + kGrace);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, FailureKind::kPeerLost);
  EXPECT_THAT(failure->ranks, ElementsAre(1));
  EXPECT_THAT(failure->message, HasSubstr("rank 1 (rank 11 of the job) was lost during recv number "
                                          "1 from rank 1 of group \"world\""));
  EXPECT_THAT(failure->message, HasSubstr(": killed by SIGKILL."));
}

TEST_F(PeerLivenessTest, AnOperationThatNeedsOthersGoesOn) {
  add_receive(*group_, 2);
  liveness_.lost(11, "killed by SIGKILL", kNow);
  EXPECT_FALSE(check(kNow + std::chrono::hours(1)));
  EXPECT_EQ(liveness_.next_check(), SteadyNanos::max());
}

TEST_F(PeerLivenessTest, TheGraceBeginsAnewWithEachMessage) {
  const OperationPtr operation = add_receive(*group_, 1);
  liveness_.lost(11, "killed by SIGKILL", kNow);
  operation->moved = kNow + milliseconds(150);
  EXPECT_FALSE(check(kNow + kGrace));
  EXPECT_TRUE(check(kNow + milliseconds(150) + kGrace));
}

TEST_F(PeerLivenessTest, TheGraceBeginsAnewAfterAPause) {
  add_receive(*group_, 1);
  liveness_.lost(11, "killed by SIGKILL", kNow);
  // Nobody made rounds for an hour; what rank 1 sent lies unread.
  const SteadyNanos later = kNow + std::chrono::hours(1);
  liveness_.note_round(later);
  EXPECT_FALSE(check(later));
  for (SteadyNanos now = later; now < later + kGrace; now += milliseconds(40)) {
    liveness_.note_round(now);
  }
  EXPECT_TRUE(check(later + kGrace)) << "rounds without a pause do not move it";
}

TEST_F(PeerLivenessTest, AReceiveFromAnyRankFailsWhenTheLastOneIsGone) {
  add_receive(*group_, -1);
  liveness_.lost(11, "killed by SIGKILL", kNow);
  EXPECT_FALSE(check(kNow + kGrace)) << "rank 2 may send";
  liveness_.left(12, kNow + milliseconds(100));
  EXPECT_FALSE(check(kNow + kGrace));
  const auto failure = check(kNow + milliseconds(100) + kGrace);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, FailureKind::kPeerLeft);
  EXPECT_THAT(failure->ranks, ElementsAre(2));
}

TEST_F(PeerLivenessTest, TheWatchKnowsBetterThanAConnection) {
  add_receive(*group_, 1);
  add_receive(*group_, 2);
  liveness_.connection_broke(11, "reset by peer", kNow);
  EXPECT_THAT(check(kNow + kGrace)->message, HasSubstr("its connection broke: reset by peer"));
  liveness_.lost(11, "killed by SIGKILL", kNow);
  EXPECT_THAT(check(kNow + kGrace)->message, HasSubstr("killed by SIGKILL"));
  liveness_.connection_broke(11, "reset by peer", kNow);
  EXPECT_THAT(check(kNow + kGrace)->message, Not(HasSubstr("reset by peer")));
}

TEST_F(PeerLivenessTest, ARankThatLeavesBreaksItsConnectionsToo) {
  add_receive(*group_, 1);
  liveness_.connection_broke(11, "reset by peer", kNow);
  liveness_.left(11, kNow + milliseconds(1));
  const auto failure = check(kNow + kGrace);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, FailureKind::kPeerLeft);
  EXPECT_THAT(failure->message, HasSubstr("left without taking its part in recv number 1"));
  // What comes afterwards changes nothing: it left in order.
  liveness_.lost(11, "killed by SIGKILL", kNow);
  EXPECT_EQ(check(kNow + kGrace)->kind, FailureKind::kPeerLeft);
}

TEST_F(WatchedEndsTest, AWatchThatSeesEndsIsWaitedForBeforeAConnectionIsBelieved) {
  add_receive(*group_, 1);
  liveness_.connection_broke(11, "reset by peer", kNow);
  EXPECT_FALSE(check(kNow + kGrace));
  EXPECT_EQ(liveness_.next_check(), kNow + PeerLiveness::kWord);
  EXPECT_THAT(check(kNow + PeerLiveness::kWord)->message, HasSubstr("reset by peer"));
  liveness_.lost(11, "exited with code 1", kNow + milliseconds(900));
  const auto failure = check(kNow + milliseconds(900));
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->message, HasSubstr("exited with code 1"));
}

TEST_F(WatchedEndsTest, ARankThatSaysThatItLeavesMayHaveFailed) {
  add_receive(*group_, 1);
  group_->members[1].left = kNow;
  liveness_.left_group(kNow);
  EXPECT_FALSE(check(kNow + kGrace));
  // It lives on.
  EXPECT_EQ(check(kNow + PeerLiveness::kWord)->kind, FailureKind::kPeerLeft);
  liveness_.lost(11, "exited with code 1", kNow + milliseconds(900));
  EXPECT_EQ(check(kNow + milliseconds(900) + kGrace)->kind, FailureKind::kPeerLost);
}

TEST_F(PeerLivenessTest, AJobThatStopsIsNamed) {
  add_receive(*group_, 1);
  EXPECT_EQ(liveness_.stopping_sentence(), "");
  liveness_.stopping("its node is preempted");
  liveness_.left(11, kNow);
  EXPECT_THAT(check(kNow + kGrace)->message,
              ::testing::EndsWith(" The job is stopping: its node is preempted."));
}

WaitVerdict verdict_about(std::vector<int> members) {
  WaitVerdict verdict;
  verdict.deadlock = true;
  verdict.message = "ranks wait in vain";
  verdict.ranks = {12, 10};
  verdict.groups = {{"other", {10, 11}, 3}, {"world", std::move(members), 5}};
  return verdict;
}

TEST_F(PeerLivenessTest, AVerdictEndsWhatItNames) {
  const auto found = verdict_on(*group_, verdict_about({10, 11, 12}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->failure.kind, FailureKind::kDeadlock);
  EXPECT_EQ(found->failure.message, "ranks wait in vain");
  EXPECT_TRUE(found->failure.group_survives);
  EXPECT_THAT(found->failure.ranks, ElementsAre(0, 2));
  EXPECT_TRUE(found->names_this_rank);
  EXPECT_EQ(found->resume_at, 5u);
  EXPECT_TRUE(found->ends(*add_receive(*group_, 1)));
  group_->last_sequence = 3;
  EXPECT_TRUE(found->ends(*add_collective(*group_)));
  EXPECT_FALSE(found->ends(*add_collective(*group_))) << "number 5 goes on";
}

TEST_F(PeerLivenessTest, AVerdictOnAnotherGroupOfTheSameNameIsNotMeant) {
  EXPECT_FALSE(verdict_on(*group_, verdict_about({10, 11})));
  EXPECT_FALSE(verdict_on(*group_, verdict_about({12, 11, 10})));
}

}  // namespace
}  // namespace meshrun::ucx
