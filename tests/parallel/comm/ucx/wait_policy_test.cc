#include "parallel/comm/ucx/engine/execution/wait_policy.h"

#include <gtest/gtest.h>

namespace meshrun::ucx {
namespace {

using Move = WaitPolicy::Move;

struct Waited {
  int polls = 0;
  int yields = 0;
  SteadyNanos time{0};
};

// Until it sleeps, where a poll takes `poll` and a yield `yield`.
Waited wait(WaitPolicy& policy, SteadyNanos poll, SteadyNanos yield) {
  Waited waited;
  for (Move move; (move = policy.next(waited.time)) != Move::kSleep;) {
    ++(move == Move::kPoll ? waited.polls : waited.yields);
    waited.time += move == Move::kPoll ? poll : yield;
  }
  return waited;
}

constexpr SteadyNanos kPoll{50};
constexpr SteadyNanos kYield{500};

TEST(WaitPolicyTest, CrowdedRanksSleepSoon) {
  WaitPolicy policy(2, 3);
  const Waited waited = wait(policy, kPoll, kYield);
  EXPECT_EQ(waited.yields, WaitPolicy::kYieldsWhenCrowded);
  EXPECT_LE(waited.polls, WaitPolicy::kPollsBetweenYields * (WaitPolicy::kYieldsWhenCrowded + 1));
}

TEST(WaitPolicyTest, HalfACoreOfAQuotaIsNoCoreForARank) {
  WaitPolicy policy(0.5, 1);
  EXPECT_EQ(wait(policy, kPoll, kYield).yields, WaitPolicy::kYieldsWhenCrowded);
  WaitPolicy enough(1.5, 1);
  EXPECT_GT(wait(enough, kPoll, kYield).yields, WaitPolicy::kYieldsWhenCrowded);
}

TEST(WaitPolicyTest, CrowdedRanksSleepNoLaterThanOthersWhereYieldsAreLong) {
  WaitPolicy policy(2, 3);
  EXPECT_LE(wait(policy, kPoll, WaitPolicy::kYieldingWhenRoomy).yields, 1);
}

TEST(WaitPolicyTest, RanksWithACoreEachYieldForLong) {
  WaitPolicy policy(2, 2);
  const Waited waited = wait(policy, kPoll, kYield);
  EXPECT_GT(waited.yields, WaitPolicy::kYieldsWhenCrowded);
  EXPECT_GE(waited.time, WaitPolicy::kYieldingWhenRoomy);
  EXPECT_LT(waited.time, 2 * WaitPolicy::kYieldingWhenRoomy);
}

TEST(WaitPolicyTest, PollsComeFirstAndAreFew) {
  for (const int local_ranks : {1, 8}) {
    WaitPolicy policy(2, local_ranks);
    int polls = 0;
    while (policy.next(SteadyNanos(0)) == Move::kPoll) ++polls;
    EXPECT_EQ(polls, WaitPolicy::kPollsBetweenYields - 1);
  }
}

TEST(WaitPolicyTest, TheProgressThreadGivesTheCoreBackSoon) {
  for (const int local_ranks : {1, 8}) {
    WaitPolicy policy(2, local_ranks, /*is_progress_thread=*/true);
    EXPECT_LT(wait(policy, kPoll, kYield).time, 2 * WaitPolicy::kYieldingOfProgressThread);
  }
}

TEST(WaitPolicyTest, OnlyAnEventEndsSleeping) {
  WaitPolicy policy(2, 3);
  wait(policy, kPoll, kYield);
  EXPECT_EQ(policy.next(SteadyNanos(0)), Move::kSleep);
  policy.reset();
  EXPECT_EQ(policy.next(SteadyNanos(0)), Move::kPoll);
}

TEST(WaitPolicyTest, ATransportThatStaysBusyIsNotAskedForEver) {
  WaitPolicy policy(2, 3);
  for (int answers = 0; answers < WaitPolicy::kBusyAnswers; ++answers) {
    EXPECT_FALSE(policy.may_sleep(/*armed=*/false));
  }
  EXPECT_TRUE(policy.may_sleep(false));
  EXPECT_TRUE(policy.may_sleep(false));
  EXPECT_TRUE(policy.may_sleep(/*armed=*/true));
  EXPECT_FALSE(policy.may_sleep(false));
}

}  // namespace
}  // namespace meshrun::ucx
