#include "parallel/comm/ucx/engine/execution/header_rounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallel/comm/ucx/engine/values/tag.h"
#include "tests/parallel/comm/ucx/recorded_transport.h"

namespace meshrun::ucx {
namespace {

using State = HeaderRounds::State;

// This process is rank 0; the test speaks for the others.
class HeaderRoundsTest : public ::testing::Test {
 protected:
  OperationPtr begin() {
    const OperationPtr operation = add_collective(*group_, {}, OperationState::kChecking);
    operation->spec.text = [] { return std::string("what rank 0 called"); };
    return operation;
  }
  // What `rank`, which has heard nothing yet, says in round 0.
  std::vector<std::byte> header_of(int rank, uint64_t sequence, uint64_t digest = 0,
                                   const std::vector<int>& carried = {}) {
    Signature signature;
    signature.sequence = sequence;
    signature.digest = digest;
    std::vector<std::byte> bytes(HeaderCheck::kMessageBytes);
    bytes.resize(HeaderCheck(rank, 3, signature).message(bytes));
    for (const int byte : carried) bytes.push_back(static_cast<std::byte>(byte));
    return bytes;
  }
  // An operation whose ranks contribute a byte each: 10, 11 and 12.
  OperationPtr begin_with_bytes() {
    const OperationPtr operation = begin();
    ScheduleBuilder builder(3);
    builder.piggyback(std::vector<int64_t>{1, 1, 1}, {{Space::kInput, 0, 0, 1}});
    operation->schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    operation->spec.inputs.push_back({&own_byte_, {1, 1, 1}});
    operation->scratch = scratch_.take(operation->schedule->scratch_bytes);
    return operation;
  }
  State answer(RunningOperation& operation, const std::vector<std::byte>& bytes) {
    return rounds_.received(operation, transport_.arrive(bytes, transport_.posted.back().tag));
  }

  const std::unique_ptr<MemberGroup> group_ = group_of_three();
  Actions actions_;
  Counters counters_;
  RecordedTransport transport_;
  Connections connections_{transport_, 0, nullptr, actions_};
  Requests requests_{transport_, connections_, counters_};
  HeaderRounds rounds_{requests_};
  ScratchPool scratch_{nullptr, actions_};
  const std::byte own_byte_{10};
};

TEST_F(HeaderRoundsTest, RanksThatAgreeMayMove) {
  const OperationPtr operation = begin();
  EXPECT_EQ(rounds_.begin(*operation), State::kUnderWay);
  ASSERT_EQ(transport_.sent.size(), 1u);
  EXPECT_EQ(transport_.sent[0].tag, collective_tag(TagKind::kHeader, 21, 0, 1, 0));
  EXPECT_EQ(transport_.posted[0].tag, collective_tag(TagKind::kHeader, 7, 2, 1, 0));
  EXPECT_EQ(answer(*operation, header_of(2, 1)), State::kUnderWay);
  EXPECT_EQ(group_->members[2].last_called, 1u);
  EXPECT_EQ(transport_.posted[1].tag, collective_tag(TagKind::kHeader, 7, 1, 1, 1));
  EXPECT_EQ(answer(*operation, header_of(1, 1)), State::kAgree);
}

TEST_F(HeaderRoundsTest, RanksThatDisagreeExplainThemselves) {
  const OperationPtr operation = begin();
  EXPECT_EQ(rounds_.begin(*operation), State::kUnderWay);
  EXPECT_EQ(answer(*operation, header_of(2, 1, /*digest=*/9)), State::kUnderWay);
  EXPECT_EQ(answer(*operation, header_of(1, 1)), State::kUnderWay);
  EXPECT_TRUE(operation->explaining);
  EXPECT_EQ(transport_.posted.back().tag, collective_tag(TagKind::kHeader, 7, 2, 1, kExplainRound));
  EXPECT_FALSE(operation->disagreement);
  // Nothing that is understood comes; the sentence is made all the same.
  EXPECT_EQ(answer(*operation, {}), State::kUnderWay);
  EXPECT_EQ(answer(*operation, {}), State::kDisagree);
  ASSERT_TRUE(operation->disagreement);
  EXPECT_EQ(operation->disagreement->kind, FailureKind::kMismatch);
  EXPECT_THAT(operation->disagreement->message, ::testing::HasSubstr("what rank 0 called"));
}

// One byte of each rank; rank 2 sends its own, rank 1 then its own and, past rank 0, nobody else's.
TEST_F(HeaderRoundsTest, ContributionsTravelWithTheHeaders) {
  const OperationPtr operation = begin_with_bytes();
  EXPECT_EQ(rounds_.begin(*operation), State::kUnderWay);
  EXPECT_EQ(transport_.sent[0].bytes.size(), HeaderCheck::kPlainBytes + 1);
  EXPECT_EQ(transport_.sent[0].bytes.back(), std::byte{10});
  EXPECT_EQ(answer(*operation, header_of(2, 1, 0, {12})), State::kUnderWay);
  EXPECT_EQ(transport_.sent[1].bytes.size(), HeaderCheck::kPlainBytes + 1);
  EXPECT_EQ(answer(*operation, header_of(1, 1, 0, {11})), State::kAgree);
  const std::byte* const scratch = operation->scratch.data.get();
  EXPECT_EQ(std::vector(scratch, scratch + 3),
            (std::vector{std::byte{10}, std::byte{11}, std::byte{12}}));
}

TEST_F(HeaderRoundsTest, NothingTravelsOnceSomebodyMeansSomethingElse) {
  const OperationPtr operation = begin_with_bytes();
  EXPECT_EQ(rounds_.begin(*operation), State::kUnderWay);
  // Another call, which carries more than any buffer for this one would hold.
  EXPECT_EQ(answer(*operation, header_of(2, 1, /*digest=*/9, std::vector<int>(kMostPayload, 7))),
            State::kUnderWay);
  EXPECT_EQ(transport_.sent[1].bytes.size(), HeaderCheck::kPlainBytes);
  EXPECT_EQ(answer(*operation, header_of(1, 1, 0, {11})), State::kUnderWay);
  EXPECT_TRUE(operation->explaining);
}

TEST_F(HeaderRoundsTest, AContributionThatIsTooShortIsNotTaken) {
  const OperationPtr operation = begin_with_bytes();
  EXPECT_EQ(rounds_.begin(*operation), State::kUnderWay);
  EXPECT_EQ(answer(*operation, header_of(2, 1)), State::kUnderWay);
  EXPECT_FALSE(operation->check->agrees_so_far());
}

// It may be all that an operation waits for, since its results need no other message.
TEST_F(HeaderRoundsTest, AHeaderThatDoesNotLeaveNamesItsReceiver) {
  transport_.is_done_at_once = false;
  const OperationPtr operation = begin();
  EXPECT_EQ(rounds_.begin(*operation), State::kUnderWay);
  EXPECT_EQ(answer(*operation, header_of(2, 1)), State::kUnderWay);
  EXPECT_EQ(answer(*operation, header_of(1, 1)), State::kAgree);
  operation->state = OperationState::kMoving;
  EXPECT_EQ(operation->missing_ranks(), (std::vector{1, 2}));
  Request& sent = *transport_.sent[0].request;
  sent.status = MessageStatus::kOk;
  operation->note_done(sent, SteadyNanos(0));
  EXPECT_EQ(operation->missing_ranks(), std::vector{2});
}

TEST_F(HeaderRoundsTest, AHeaderOfAnOperationThatWasSkippedIsPassedOver) {
  add_collective(*group_);
  const OperationPtr operation = begin();
  EXPECT_EQ(rounds_.begin(*operation), State::kUnderWay);
  const size_t posted = transport_.posted.size();
  EXPECT_EQ(answer(*operation, header_of(2, 1)), State::kUnderWay);
  EXPECT_EQ(operation->round, 0);
  ASSERT_EQ(transport_.posted.size(), posted + 1);
  EXPECT_EQ(transport_.posted.back().tag, transport_.posted[posted - 1].tag);
}

TEST(HeaderRoundsAloneTest, AProblemOfTheOnlyRankIsADisagreementAtOnce) {
  Actions actions;
  Counters counters;
  RecordedTransport transport;
  Connections connections(transport, 0, nullptr, actions);
  Requests requests(transport, connections, counters);
  HeaderRounds rounds(requests);
  MemberGroup group(GroupConfig(), 1);
  const OperationPtr right = add_collective(group, {}, OperationState::kChecking);
  EXPECT_EQ(rounds.begin(*right), State::kAgree);
  const OperationPtr wrong = add_collective(group, {}, OperationState::kChecking);
  wrong->spec.signature.flags = kHasProblem;
  wrong->spec.text = [] { return std::string("dim 7 of a tensor with 2"); };
  EXPECT_EQ(rounds.begin(*wrong), State::kDisagree);
  EXPECT_THAT(wrong->disagreement->message, ::testing::HasSubstr("dim 7 of a tensor with 2"));
  EXPECT_TRUE(transport.sent.empty());
}

}  // namespace
}  // namespace meshrun::ucx
