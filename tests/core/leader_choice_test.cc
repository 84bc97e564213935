#include "core/rpc/leader_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/clock.h"
#include "core/error_detail.h"

namespace meshrun::rpc {
namespace {

using ::testing::ElementsAre;

// What a coordinator answers; `leader` empty: it knows of none.
absl::Status Standby(const std::string& leader) {
  absl::Status status = absl::UnavailableError("is a standby");
  v1::ErrorDetail detail;
  detail.set_origin(v1::ERROR_ORIGIN_COORDINATOR);
  detail.set_standby(true);
  detail.set_leader(leader);
  SetDetail(&status, detail);
  return status;
}
absl::Status OfCoordinator(absl::Status status) {
  v1::ErrorDetail detail;
  detail.set_origin(v1::ERROR_ORIGIN_COORDINATOR);
  SetDetail(&status, detail);
  return status;
}
const absl::Status kNobodyThere = absl::UnavailableError("connection refused");

class LeaderChoiceTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  LeaderChoice choice_{{"a", "b", "c"}, clock_};
};

TEST(AddressesTest, ACommaSeparatesThemAndAPathMayHoldOne) {
  EXPECT_THAT(SplitAddresses("a:1"), ElementsAre("a:1"));
  EXPECT_THAT(SplitAddresses("a:1,b:1,a:1"), ElementsAre("a:1", "b:1"));
  EXPECT_THAT(SplitAddresses("a:1,,b:1"), ElementsAre("a:1", "", "b:1"));
  EXPECT_THAT(SplitAddresses("unix:/a,b/c"), ElementsAre("unix:/a,b/c"));
  EXPECT_THAT(SplitAddresses("unix:/a,unix:/b"), ElementsAre("unix:/a", "unix:/b"));
  EXPECT_EQ(JoinAddresses({"a:1", "b:1"}), "a:1, b:1");
}

TEST_F(LeaderChoiceTest, ALeaderThatAnswersIsKeptWhateverItSays) {
  choice_.OnEnd("a", absl::OkStatus());
  choice_.OnEnd("a", OfCoordinator(absl::NotFoundError("no such job")));
  choice_.OnEnd("a", OfCoordinator(absl::UnavailableError("read-only")));
  choice_.OnEnd("a", absl::DeadlineExceededError("its own deadline"));
  EXPECT_EQ(choice_.address(), "a");
  EXPECT_EQ(choice_.Wait(), SteadyNanos(0));
}

TEST_F(LeaderChoiceTest, TheNamedLeaderIsNextAtOnce) {
  choice_.OnEnd("a", Standby("c"));
  EXPECT_EQ(choice_.address(), "c");
  EXPECT_EQ(choice_.Wait(), SteadyNanos(0));
}

// A call that was under way when its leader lost the leadership.
TEST_F(LeaderChoiceTest, OneThatLeadsNoMoreNamesTheNextLeader) {
  absl::Status status = absl::UnavailableError("c leads");
  v1::ErrorDetail detail;
  detail.set_origin(v1::ERROR_ORIGIN_COORDINATOR);
  detail.set_leader("c");
  SetDetail(&status, detail);
  choice_.OnEnd("a", status);
  EXPECT_EQ(choice_.address(), "c");
}

TEST_F(LeaderChoiceTest, AfterOneThatIsNotReachedComesTheNextOfTheList) {
  for (const char* next : {"b", "c"}) {
    choice_.OnEnd(choice_.address(), kNobodyThere);
    EXPECT_EQ(choice_.address(), next);
    EXPECT_EQ(choice_.Wait(), SteadyNanos(0));
  }
}

// Until the next election standbys name the leader that is gone.
TEST_F(LeaderChoiceTest, ALeaderThatIsGoneIsNotTriedAgainAtOnce) {
  choice_.OnEnd("a", kNobodyThere);
  choice_.OnEnd("b", Standby("a"));
  EXPECT_EQ(choice_.address(), "c");
  choice_.OnEnd("c", Standby("a"));
  // All have been tried: the one that was tried first comes first, and not before its time.
  EXPECT_EQ(choice_.address(), "a");
  EXPECT_EQ(choice_.Wait(), SteadyNanos(LeaderChoice::kLeastDistance));
  clock_.Advance(LeaderChoice::kLeastDistance);
  EXPECT_EQ(choice_.Wait(), SteadyNanos(0));
  choice_.OnEnd("a", kNobodyThere);
  choice_.OnEnd("b", Standby(""));
  EXPECT_EQ(choice_.address(), "c");
}

TEST_F(LeaderChoiceTest, ALeaderIsFoundWithinAShortTimeOfItsElection) {
  choice_.OnEnd("a", kNobodyThere);
  // For 10 s nobody leads; "a" stays away.
  SteadyNanos longest{0};
  SteadyNanos last_at_b{0};
  while (clock_.SteadyNow() < std::chrono::seconds(10)) {
    clock_.Advance(choice_.Wait() + std::chrono::milliseconds(1));
    const std::string at = choice_.address();
    if (at == "b") {
      longest = std::max(longest, clock_.SteadyNow() - last_at_b);
      last_at_b = clock_.SteadyNow();
    }
    choice_.OnEnd(at, at == "a" ? kNobodyThere : Standby("a"));
  }
  EXPECT_LE(longest, 2 * LeaderChoice::kLeastDistance);
  EXPECT_GE(longest, SteadyNanos(LeaderChoice::kLeastDistance));
}

TEST_F(LeaderChoiceTest, OneThatIsNotReachedAgainAndAgainIsTriedEverMoreRarely) {
  int attempts = 0;
  while (clock_.SteadyNow() < std::chrono::seconds(60)) {
    clock_.Advance(choice_.Wait() + std::chrono::milliseconds(1));
    const std::string at = choice_.address();
    attempts += at == "a";
    choice_.OnEnd(at, at == "a" ? kNobodyThere : Standby("a"));
  }
  EXPECT_GE(attempts, 60 / LeaderChoice::kLongestDistance.count());
  EXPECT_LE(attempts, 22);
}

TEST_F(LeaderChoiceTest, OneWhoAnswersAgainIsNotAvoided) {
  for (int i = 0; i < 6; ++i) {
    choice_.OnUnreached("a");
    clock_.Advance(LeaderChoice::kLongestDistance);
  }
  choice_.OnEnd("a", absl::OkStatus());
  choice_.OnEnd(choice_.address(), Standby("a"));
  EXPECT_EQ(choice_.address(), "a");
}

// Many calls end together when a connection breaks.
TEST_F(LeaderChoiceTest, WhatCallsAtAnotherAddressComeToMovesNothing) {
  for (int i = 0; i < 10; ++i) choice_.OnEnd("a", kNobodyThere);
  EXPECT_EQ(choice_.address(), "b");
  choice_.OnEnd("nobody", Standby("c"));
  EXPECT_EQ(choice_.address(), "b");
}

TEST_F(LeaderChoiceTest, OneAddressIsKept) {
  LeaderChoice one({"a"}, clock_);
  EXPECT_FALSE(one.HasOthers());
  one.OnEnd("a", kNobodyThere);
  EXPECT_EQ(one.address(), "a");
  EXPECT_FALSE(one.HasOthers());
}

TEST_F(LeaderChoiceTest, ALeaderThatTheListLacksIsFollowed) {
  LeaderChoice one({"a"}, clock_);
  one.OnEnd("a", Standby("x"));
  EXPECT_EQ(one.address(), "x");
  EXPECT_TRUE(one.HasOthers());
  EXPECT_THAT(one.given(), ElementsAre("a"));
  one.OnEnd("x", Standby("y"));
  EXPECT_EQ(one.address(), "y");
  clock_.Advance(LeaderChoice::kLongestDistance);
  one.OnEnd("y", kNobodyThere);
  EXPECT_EQ(one.address(), "a");
  one.OnLeads("y");
  EXPECT_EQ(one.address(), "y");
}

// Whoever names one stranger after another does not fill memory, and keeps nobody from the list.
TEST_F(LeaderChoiceTest, OfThoseNamedOnlyTheLastAreKept) {
  for (int i = 0; i < 1000; ++i) {
    choice_.OnEnd(choice_.address(), Standby("x" + std::to_string(i)));
  }
  bool seen_a = false;
  for (int i = 0; i < 12; ++i) {
    choice_.OnEnd(choice_.address(), kNobodyThere);
    clock_.Advance(choice_.Wait());
    seen_a |= choice_.address() == "a";
  }
  EXPECT_TRUE(seen_a);
}

}  // namespace
}  // namespace meshrun::rpc
