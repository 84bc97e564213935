#include "parallel/comm/ucx/engine/execution/timeouts.h"

#include <chrono>
#include <cstring>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/comm/ucx/executor_cases.h"
#include "tests/parallel/comm/ucx/recorded_transport.h"

namespace meshrun::ucx {
namespace {

using ::testing::HasSubstr;

TEST(TimeoutsTest, ATimeoutCountsFromWhenTheCallerBeganToWaitForRoom) {
  Simulation ranks(2, options());
  ranks.add_world();
  OperationSpec spec = barrier_spec();
  spec.timeout = std::chrono::seconds(1);
  const SteadyNanos since = ranks.clock.SteadyNow();
  ranks.pass(std::chrono::milliseconds(900));
  const auto handle = ranks.executor(0).submit(1, std::move(spec), since);
  ranks.pass(std::chrono::milliseconds(90));
  EXPECT_FALSE(handle->is_done());
  ranks.pass(std::chrono::milliseconds(10) + Timeouts::kAskFor);
  ASSERT_TRUE(handle->is_done() && handle->failure());
  EXPECT_EQ(handle->failure()->kind, FailureKind::kTimeout);
}

class AskingTest : public ::testing::Test {
 protected:
  static constexpr SteadyNanos kNow = std::chrono::seconds(100);

  OperationPtr collective() {
    const OperationPtr operation = add_collective(*group_, {}, OperationState::kChecking);
    operation->check.emplace(0, 3, Signature());
    operation->deadline = kNow;
    return operation;
  }
  void answer(int rank, uint64_t called) {
    timeouts_.answered(*group_, rank,
                       {ControlHead::kAnswer, group_->collectives.back()->sequence(), called},
                       kNow);
  }
  ControlHead sent(size_t index) {
    ControlHead head;
    std::memcpy(&head, transport_.sent[index].bytes.data(), sizeof(head));
    return head;
  }

  Actions actions_;
  RecordedTransport transport_;
  Connections connections_{transport_, 0, nullptr, actions_};
  ControlChannel control_{transport_};
  Timeouts timeouts_{connections_, control_};
  Groups groups_ = [] {
    Groups groups;
    groups[7] = group_of_three();
    return groups;
  }();
  MemberGroup* const group_ = groups_[7].get();
};

TEST_F(AskingTest, WhatIsDueIsWhatHasNoTimeLeft) {
  EXPECT_EQ(timeouts_.next(), SteadyNanos::max());
  const OperationPtr late = collective(), early = collective();
  late->deadline = kNow + std::chrono::seconds(5);
  timeouts_.watch(early->deadline);
  timeouts_.watch(late->deadline);
  EXPECT_EQ(timeouts_.next(), kNow);
  EXPECT_THAT(timeouts_.due(groups_, kNow), ::testing::ElementsAre(early));
  EXPECT_EQ(timeouts_.next(), late->deadline);
}

TEST_F(AskingTest, MembersAreAskedOnceAndHaveALittleTime) {
  const OperationPtr operation = collective();
  ASSERT_TRUE(timeouts_.ask_members(*operation, kNow));
  EXPECT_EQ(operation->deadline, kNow + Timeouts::kAskFor);
  EXPECT_EQ(timeouts_.next(), kNow + Timeouts::kAskFor);
  ASSERT_EQ(transport_.sent.size(), 2u);
  EXPECT_EQ(transport_.sent[0].to, 1);
  EXPECT_EQ(transport_.sent[1].to, 2);
  EXPECT_EQ(sent(0).type, ControlHead::kQuestion);
  EXPECT_EQ(sent(0).sequence, operation->sequence());
  EXPECT_FALSE(timeouts_.ask_members(*operation, kNow)) << "once";
  EXPECT_FALSE(timeouts_.ask_members(*add_receive(*group_, 1), kNow)) << "its peer is named";
}

TEST_F(AskingTest, AMemberThatIsNotKnownIsLookedUpAndAskedThen) {
  group_->members[2].state = Member::kUnknown;
  const OperationPtr operation = collective();
  ASSERT_TRUE(timeouts_.ask_members(*operation, kNow));
  EXPECT_EQ(transport_.sent.size(), 1u);
  ASSERT_EQ(actions_.make_seldom().look_ups.size(), 1u);
  EXPECT_THAT(actions_.make_seldom().look_ups[0].ranks, ::testing::ElementsAre(2));
  group_->members[2].state = Member::kKnown;
  timeouts_.ask_member(*group_, 2);
  ASSERT_EQ(transport_.sent.size(), 2u);
  EXPECT_EQ(transport_.sent[1].to, 2);
}

TEST_F(AskingTest, ItIsDueAtOnceWhenAllHaveAnsweredAndOneHasNotCalled) {
  const OperationPtr operation = collective();
  ASSERT_TRUE(timeouts_.ask_members(*operation, kNow));
  answer(1, operation->sequence());
  EXPECT_EQ(operation->deadline, kNow + Timeouts::kAskFor);
  answer(2, 0);
  EXPECT_EQ(operation->deadline, kNow);
  EXPECT_EQ(timeouts_.next(), kNow);
  const Failure failure = Timeouts::failure(*operation, " And more.");
  EXPECT_EQ(failure.kind, FailureKind::kTimeout);
  EXPECT_THAT(failure.ranks, ::testing::ElementsAre(2));
  EXPECT_THAT(failure.message,
              HasSubstr("rank 2 has not called it; it has called nothing here yet. "
                        "See its log. And more."));
}

TEST_F(AskingTest, ItHasTheTimeThatIsLeftWhereAllHaveCalled) {
  const OperationPtr operation = collective();
  ASSERT_TRUE(timeouts_.ask_members(*operation, kNow));
  answer(1, operation->sequence());
  answer(2, operation->sequence() + 3);
  EXPECT_EQ(operation->deadline, kNow + Timeouts::kAskFor);
  // Rank 0 waits for rank 2 in the first of two rounds.
  const Failure failure = Timeouts::failure(*operation, "");
  EXPECT_THAT(failure.message,
              HasSubstr("timed out on rank 0 after the timeout of 1800 s: all have called it, and "
                        "it waits for rank 2."));
}

TEST_F(AskingTest, ARankThatIsSilentIsNamed) {
  const OperationPtr operation = collective();
  ASSERT_TRUE(timeouts_.ask_members(*operation, kNow));
  answer(2, operation->sequence());
  EXPECT_THAT(
      Timeouts::failure(*operation, "").message,
      HasSubstr("rank 1 has not called it; nothing was ever heard of it here. See its log."));
  group_->members[1].last_called = operation->sequence();
  EXPECT_THAT(Timeouts::failure(*operation, "").message, HasSubstr("; no answer from rank 1."))
      << "a header had told that it called";
}

TEST_F(AskingTest, AQuestionIsAnsweredWhenTheMemberIsKnown) {
  group_->last_sequence = 9;
  timeouts_.asked(*group_, 1, 4);
  ASSERT_EQ(transport_.sent.size(), 1u);
  EXPECT_EQ(sent(0).type, ControlHead::kAnswer);
  EXPECT_EQ(sent(0).sequence, 4u);
  EXPECT_EQ(sent(0).called, 9u);
  group_->members[2].state = Member::kUnknown;
  timeouts_.asked(*group_, 2, 5);
  EXPECT_EQ(transport_.sent.size(), 1u);
  EXPECT_EQ(actions_.make_seldom().look_ups.size(), 1u);
  group_->members[2].state = Member::kKnown;
  timeouts_.answer_if_asked(*group_, 2);
  EXPECT_EQ(transport_.sent.size(), 2u);
  timeouts_.answer_if_asked(*group_, 2);
  EXPECT_EQ(transport_.sent.size(), 2u) << "once";
}

TEST_F(AskingTest, ASendOrReceiveNamesItsPeer) {
  EXPECT_THAT(Timeouts::failure(*add_receive(*group_, 1), "").message,
              HasSubstr("rank 1 has not sent it."));
  EXPECT_THAT(Timeouts::failure(*add_receive(*group_, -1), "").message,
              HasSubstr("no other rank has sent it."));
}

}  // namespace
}  // namespace meshrun::ucx
