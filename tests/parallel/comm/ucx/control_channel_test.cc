#include "parallel/comm/ucx/engine/execution/control_channel.h"

#include <gtest/gtest.h>

#include "parallel/comm/ucx/engine/values/tag.h"
#include "tests/parallel/comm/ucx/recorded_transport.h"

namespace meshrun::ucx {
namespace {

class ControlChannelTest : public ::testing::Test {
 protected:
  const std::unique_ptr<MemberGroup> group_ = group_of_three();
  RecordedTransport transport_;
  ControlChannel channel_{transport_};
};

TEST_F(ControlChannelTest, OneReceiveTakesMessagesOfAllGroups) {
  ASSERT_EQ(transport_.posted.size(), 1u);
  const auto takes = [&](Tag tag) {
    return (tag & transport_.posted[0].mask) ==
           (transport_.posted[0].tag & transport_.posted[0].mask);
  };
  EXPECT_TRUE(takes(prefix(TagKind::kControl, 1, 0)));
  EXPECT_TRUE(takes(prefix(TagKind::kControl, kMaxGroups - 1, kMaxRanks - 1)));
  for (const TagKind kind : {TagKind::kHeader, TagKind::kData, TagKind::kPointToPoint}) {
    EXPECT_FALSE(takes(prefix(kind, 1, 0)));
  }
}

TEST_F(ControlChannelTest, AQuestionComesAsItWasSent) {
  channel_.send(*group_, 2, {ControlHead::kQuestion, 17});
  ASSERT_EQ(transport_.sent.size(), 1u);
  const RecordedTransport::Sent sent = transport_.sent[0];
  EXPECT_EQ(sent.to, 2);
  EXPECT_EQ(sent.tag, prefix(TagKind::kControl, 22, 0));
  const auto message = channel_.done(transport_.arrive(sent.bytes, sent.tag));
  ASSERT_TRUE(message);
  EXPECT_EQ(message->group, 22u);
  EXPECT_EQ(message->sender, 0);
  EXPECT_EQ(message->head.type, ControlHead::kQuestion);
  EXPECT_EQ(message->head.sequence, 17u);
  EXPECT_FALSE(message->failure);
  EXPECT_EQ(transport_.posted.size(), 2u) << "the next one can come";
}

TEST_F(ControlChannelTest, AFailureIsToldToMembersThatAreKnown) {
  group_->failure = Failure{FailureKind::kTimeout, "its time is up", {1}};
  group_->members[1].state = Member::kLookingUp;
  channel_.send_failure(*group_);
  ASSERT_EQ(transport_.sent.size(), 1u);
  EXPECT_EQ(transport_.sent[0].to, 2);
  const auto message =
      channel_.done(transport_.arrive(transport_.sent[0].bytes, transport_.sent[0].tag));
  ASSERT_TRUE(message && message->failure);
  EXPECT_EQ(message->failure->kind, FailureKind::kTimeout);
  EXPECT_EQ(message->failure->message, "its time is up");
}

TEST_F(ControlChannelTest, WhatIsNotUnderstoodIsIgnored) {
  const std::vector<std::byte> few(sizeof(ControlHead) - 1);
  EXPECT_FALSE(channel_.done(transport_.arrive(few, prefix(TagKind::kControl, 7, 1))));
  EXPECT_EQ(transport_.posted.size(), 2u);
  // A failure without one: the sender writes no more all the same.
  const std::vector<std::byte> head(sizeof(ControlHead));
  const auto message = channel_.done(transport_.arrive(head, prefix(TagKind::kControl, 7, 1)));
  ASSERT_TRUE(message);
  EXPECT_EQ(message->head.type, ControlHead::kFailure);
  EXPECT_FALSE(message->failure);
}

TEST_F(ControlChannelTest, BytesOfASendAreKeptUntilItIsDone) {
  transport_.is_done_at_once = false;
  channel_.send(*group_, 1, {ControlHead::kQuestion, 1});
  channel_.send(*group_, 2, {ControlHead::kQuestion, 2});
  EXPECT_FALSE(channel_.done(*transport_.sent[0].request));
  EXPECT_EQ(transport_.posted.size(), 1u) << "that was not the receive";
  EXPECT_EQ(transport_.sent[1].request->owner, nullptr) << "how the executor knows it";
}

TEST_F(ControlChannelTest, ACancelledReceiveIsNotPostedAgain) {
  channel_.cancel_receive();
  ASSERT_EQ(transport_.cancelled.size(), 1u);
  Request& receive = *transport_.cancelled[0];
  receive.status = MessageStatus::kCancelled;
  EXPECT_FALSE(channel_.done(receive));
  EXPECT_EQ(transport_.posted.size(), 1u);
}

}  // namespace
}  // namespace meshrun::ucx
