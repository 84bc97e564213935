#include "coordinator/services/call_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/clock.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

rpc::Identity User(const std::string& name) { return {.roles = rpc::kSubmitRole, .name = name}; }
rpc::Identity Node(const std::string& name) {
  return {.roles = rpc::kWorkerRole, .name = name, .nodes = {name}};
}

int Admitted(CallGate& gate, const rpc::Identity& caller, int count) {
  int admitted = 0;
  for (int i = 0; i < count; ++i) admitted += gate.Admit(caller).ok();
  return admitted;
}

TEST(CallGateTest, SoManyRequestsAreOnTheirWay) {
  FakeClock clock;
  CallGate gate({.most = 3, .largest = 1, .node_share = 2}, clock, nullptr);
  EXPECT_EQ(Admitted(gate, User("bob"), 10), 3);
  EXPECT_THAT(std::string(gate.Admit(User("bob")).message()),
              HasSubstr("user bob has 3 calls under way already"));
  EXPECT_EQ(Admitted(gate, User("ada"), 10), 3);
  EXPECT_EQ(Admitted(gate, Node("bob"), 10), 6);
  gate.OnRequest(User("bob"), 10);
  EXPECT_EQ(Admitted(gate, User("bob"), 10), 1);
}

TEST(CallGateTest, RequestsThatNeverComeGrowOldBesideOthers) {
  FakeClock clock;
  CallGate gate({.most = 3, .largest = 1, .request_time = seconds(10)}, clock, nullptr);
  EXPECT_EQ(Admitted(gate, User("bob"), 2), 2);
  for (int i = 0; i < 11; ++i) {
    clock.Advance(seconds(1));
    if (gate.Admit(User("bob")).ok()) gate.OnRequest(User("bob"), 1);
  }
  EXPECT_EQ(Admitted(gate, User("bob"), 9), 3);
}

TEST(CallGateTest, WhoWaitsForAnAnswerIsNotForgotten) {
  FakeClock clock;
  CallGate gate({.most = 2, .largest = 1}, clock, nullptr);
  ASSERT_TRUE(gate.Admit(User("bob")).ok());
  gate.OnRequest(User("bob"), 1);
  gate.OnCall(User("bob"));
  for (int i = 0; i < 3; ++i) {
    clock.Advance(seconds(61));
    gate.Admit(User("ada")).IgnoreError();
  }
  gate.OnAnswer(User("bob"), 1);
  EXPECT_EQ(Admitted(gate, User("bob"), 9), 2);
}

TEST(CallGateTest, ARefusalSaysHowLongToWait) {
  FakeClock clock;
  CallGate gate({.most = 9,
                 .largest = 1,
                 .calls_per_second = 2,
                 .calls_at_once = 1,
                 .bytes_per_second = 1000,
                 .bytes_at_once = 100},
                clock, nullptr);
  const auto waits = [&](const rpc::Identity& caller) {
    return *rpc::WaitBeforeRepeating(gate.Admit(caller));
  };
  ASSERT_TRUE(gate.Admit(User("bob")).ok());
  EXPECT_EQ(waits(User("bob")), milliseconds(500));
  clock.Advance(milliseconds(400));
  EXPECT_LE(waits(User("bob")), milliseconds(101));
  clock.Advance(milliseconds(101));
  EXPECT_TRUE(gate.Admit(User("bob")).ok());
  ASSERT_TRUE(gate.Admit(User("ada")).ok());
  gate.OnRequest(User("ada"), 400);
  EXPECT_EQ(waits(User("ada")), milliseconds(300));
}

TEST(CallGateTest, ACertificateOfAllNodesHasNoLimits) {
  FakeClock clock;
  int told = 0;
  CallGate gate({.most = 1, .largest = 1, .refusals_at_once = 1}, clock,
                [&](const std::string&) { ++told; });
  EXPECT_EQ(Admitted(gate, Node("*"), 1000), 1000);
  gate.OnRequest(Node("*"), 1 << 30);
  EXPECT_TRUE(gate.Admit(Node("*")).ok());
  for (int i = 0; i < 1000; ++i) gate.OnDenied(Node("*"));
  EXPECT_EQ(told, 0);
}

TEST(CallGateTest, WhatNobodyReadsHasARateAndDenialsAreAFlood) {
  FakeClock clock;
  int told = 0;
  CallGate gate({.most = 1,
                 .largest = 1,
                 .calls_per_second = 10,
                 .calls_at_once = 20,
                 .refusals_per_second = 10,
                 .refusals_at_once = 20},
                clock, [&](const std::string&) { ++told; });
  int admitted = 0;
  for (int i = 0; i < 30; ++i) admitted += gate.AdmitUnseen(User("bob")).ok();
  EXPECT_EQ(admitted, 20) << "they take no places";
  EXPECT_EQ(told, 0);
  for (int i = 0; i < 11; ++i) gate.OnDenied(User("bob"));
  EXPECT_EQ(told, 1);
}

TEST(CallGateTest, FewerLargeOnes) {
  FakeClock clock;
  CallGate gate({.bytes = 1000, .least = 2, .most = 50, .largest = 500}, clock, nullptr);
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 2) << "nobody knows him yet";
  clock.Advance(seconds(60));
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 50);
  gate.OnRequest(User("bob"), 100);
  clock.Advance(seconds(11));
  gate.OnRequest(User("bob"), 100);
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 10);
  for (int i = 0; i < 10; ++i) gate.OnRequest(User("bob"), i == 3 ? 100'000 : 1);
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 2);
  // Half is forgotten in 5 s, however many small ones come.
  clock.Advance(seconds(40));
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 2);
  clock.Advance(seconds(60));
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 50);
}

TEST(CallGateTest, AUsersCallIsUnderWayUntilItsAnswerHasLeft) {
  FakeClock clock;
  CallGate gate({.bytes = 1000, .least = 1, .most = 10, .largest = 100}, clock, nullptr);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(gate.Admit(User("bob")).ok());
    gate.OnRequest(User("bob"), 1);
    gate.OnCall(User("bob"));
    ASSERT_TRUE(gate.Admit(Node("n1")).ok());
    gate.OnRequest(Node("n1"), 1);
    gate.OnCall(Node("n1"));
  }
  EXPECT_FALSE(gate.Admit(User("bob")).ok());
  EXPECT_TRUE(gate.Admit(Node("n1")).ok());
  gate.OnAnswer(User("bob"), 1);
  EXPECT_TRUE(gate.Admit(User("bob")).ok());
  gate.OnRequest(User("bob"), 1);
  // With large answers there are fewer at once.
  for (int i = 0; i < 9; ++i) gate.OnAnswer(User("bob"), 500);
  EXPECT_EQ(Admitted(gate, User("bob"), 10), 2);
}

TEST(CallGateTest, ARequestThatNeverComesIsForgotten) {
  FakeClock clock;
  CallGate gate({.most = 3, .largest = 1, .request_time = seconds(10)}, clock, nullptr);
  EXPECT_EQ(Admitted(gate, User("bob"), 2), 2);
  clock.Advance(seconds(9));
  EXPECT_EQ(Admitted(gate, User("bob"), 2), 1);
  clock.Advance(seconds(2));
  EXPECT_EQ(Admitted(gate, User("bob"), 9), 2);
}

TEST(CallGateTest, AFloodIsToldOf) {
  FakeClock clock;
  std::vector<std::string> told;
  CallGate gate({.most = 1, .largest = 1, .refusals_per_second = 10, .refusals_at_once = 20}, clock,
                [&](const std::string& name) { told.push_back(name); });
  EXPECT_EQ(Admitted(gate, User("bob"), 21), 1);
  EXPECT_THAT(told, IsEmpty());
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 0);
  EXPECT_THAT(told, ElementsAre("user bob"));
  clock.Advance(std::chrono::milliseconds(110));
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 0);
  EXPECT_THAT(told, ElementsAre("user bob", "user bob"));
  // Who waits between his calls is none.
  for (int i = 0; i < 100; ++i) {
    clock.Advance(std::chrono::milliseconds(110));
    gate.Admit(User("ada")).IgnoreError();
  }
  EXPECT_EQ(told.size(), 2u);
}

TEST(CallGateTest, CallsAndBytesHaveARate) {
  FakeClock clock;
  CallGate gate({.most = 1000,
                 .largest = 1,
                 .calls_per_second = 10,
                 .calls_at_once = 20,
                 .bytes_per_second = 100,
                 .bytes_at_once = 1000,
                 .node_share = 8},
                clock, nullptr);
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 20);
  EXPECT_THAT(std::string(gate.Admit(User("bob")).message()),
              HasSubstr("makes more than 10 calls a second"));
  clock.Advance(seconds(1));
  EXPECT_EQ(Admitted(gate, User("bob"), 100), 10);
  EXPECT_EQ(Admitted(gate, Node("n1"), 100), 100);
  EXPECT_TRUE(gate.Admit(User("ada")).ok());
  gate.OnRequest(User("ada"), 1200);
  EXPECT_THAT(std::string(gate.Admit(User("ada")).message()), HasSubstr("bytes a second"));
  clock.Advance(seconds(2));
  EXPECT_TRUE(gate.Admit(User("ada")).ok());
  // A second of its rate is the most that anybody owes.
  gate.OnRequest(User("ada"), 1'000'000);
  EXPECT_FALSE(gate.Admit(User("ada")).ok());
  clock.Advance(seconds(1));
  EXPECT_TRUE(gate.Admit(User("ada")).ok());
  gate.OnRequest(Node("n1"), 8000);
  EXPECT_TRUE(gate.Admit(Node("n1")).ok());
  gate.OnRequest(Node("n1"), 1);
  EXPECT_FALSE(gate.Admit(Node("n1")).ok());
}

}  // namespace
}  // namespace meshrun::coordinator
