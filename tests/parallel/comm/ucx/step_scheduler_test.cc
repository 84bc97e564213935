#include "parallel/comm/ucx/engine/execution/step_scheduler.h"

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/comm/ucx/engine/values/tag.h"
#include "tests/parallel/comm/ucx/executor_cases.h"
#include "tests/parallel/comm/ucx/recorded_transport.h"

namespace meshrun::ucx {
namespace {

using ::testing::ElementsAre;
TEST(StepSchedulerTest, ACopyIsBrokenOffAfterARound) {
  constexpr int64_t kBytes = 3 * StepScheduler::kRoundBytes + 5;
  Simulation ranks(1, options());
  ranks.add_world();
  Bytes from = bytes(kBytes, 9), to = bytes(kBytes, 0);
  ScheduleBuilder builder(1);
  builder.copy({Space::kInput, 0, 0, kBytes}, {Space::kOutput, 0, 0, kBytes});
  OperationSpec spec = barrier_spec();
  spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
  spec.inputs = {contiguous(from.data(), kBytes)};
  spec.outputs = {contiguous(to.data(), kBytes)};
  const auto handle = ranks.submit(0, "world", std::move(spec));
  for (int round = 1; round <= 3; ++round) {
    EXPECT_EQ(ranks.executor(0).counters().copied_bytes, round * StepScheduler::kRoundBytes);
    EXPECT_FALSE(handle->is_done());
    EXPECT_TRUE(ranks.executor(0).progress());
  }
  EXPECT_TRUE(handle->is_done());
  EXPECT_EQ(from, to);
}

class SchedulingTest : public ::testing::Test, protected StepScheduler::Listener {
 protected:
  // With memory of its own, as Executor prepares it.
  OperationPtr begin(ScheduleBuilder builder) {
    OperationSpec spec;
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    spec.inputs = {ConstStridedSpan(contiguous(from_.data(), 8))};
    spec.outputs = {contiguous(to_.data(), 8)};
    const OperationPtr operation =
        add_collective(*group_, std::move(spec), OperationState::kMoving);
    operation->steps.resize(operation->schedule->steps.size());
    steps_.begin(*operation);
    return operation;
  }
  void steps_done(RunningOperation& operation) override { done.push_back(&operation); }
  void send_failed(RunningOperation& operation, const Request&) override {
    failed.push_back(&operation);
  }

  static constexpr Region kIn{Space::kInput, 0, 0, 8}, kOut{Space::kOutput, 0, 0, 8};
  Actions actions_;
  Counters counters_;
  RecordedTransport transport_;
  Connections connections_{transport_, 0, nullptr, actions_};
  Requests requests_{transport_, connections_, counters_};
  Offers offers_{requests_, counters_, nullptr};
  StepScheduler steps_{requests_, offers_, counters_, *this};
  std::vector<RunningOperation*> done, failed;
  const std::unique_ptr<MemberGroup> group_ = group_of_three();
  Bytes from_ = bytes(8, 3), to_ = bytes(8, 0);
};

TEST_F(SchedulingTest, AStepRunsWhenAllThatItWaitsForIsFinished) {
  ScheduleBuilder builder(3);
  const StepId received = builder.receive(1, kOut);
  const StepId other = builder.receive(2, {Space::kOutput, 0, 0, 0});
  builder.send(2, kOut, {received, other});
  const OperationPtr operation = begin(std::move(builder));
  steps_.run();
  ASSERT_EQ(transport_.posted.size(), 2u);
  EXPECT_EQ(transport_.posted[0].from, 1) << "by which both ends choose a connection";
  EXPECT_TRUE(transport_.sent.empty());
  Request& first = operation->steps[received].request;
  first.bytes = 8;
  EXPECT_TRUE(steps_.message_done(*operation, first));
  steps_.run();
  EXPECT_TRUE(transport_.sent.empty());
  EXPECT_TRUE(steps_.message_done(*operation, operation->steps[other].request));
  EXPECT_TRUE(done.empty());
  steps_.run();
  ASSERT_EQ(transport_.sent.size(), 1u);
  EXPECT_EQ(transport_.sent[0].tag, collective_tag(TagKind::kData, 22, 0, 1, 0));
  EXPECT_THAT(done, ElementsAre(operation.get()));
}

TEST_F(SchedulingTest, AMessageOfAnotherLengthFinishesNothing) {
  ScheduleBuilder builder(3);
  const StepId received = builder.receive(1, kOut);
  const OperationPtr operation = begin(std::move(builder));
  steps_.run();
  Request& request = operation->steps[received].request;
  for (const int64_t bytes : {0, 7, 9}) {
    request.bytes = bytes;
    EXPECT_FALSE(steps_.message_done(*operation, request));
  }
  request.bytes = 8;
  request.status = MessageStatus::kTruncated;
  EXPECT_FALSE(steps_.message_done(*operation, request));
  EXPECT_TRUE(done.empty());
}

TEST_F(SchedulingTest, AnOperationThatIsForgottenRunsNoMore) {
  ScheduleBuilder builder(3);
  builder.send(1, kIn);
  builder.copy(kIn, kOut);
  const OperationPtr operation = begin(std::move(builder));
  EXPECT_TRUE(steps_.has_computations());
  steps_.forget(*operation);
  EXPECT_FALSE(steps_.has_computations());
  steps_.run();
  EXPECT_TRUE(transport_.sent.empty());
  EXPECT_EQ(to_, bytes(8, 0));
}

TEST_F(SchedulingTest, ASendThatFailsAtOnceIsTold) {
  transport_.status = MessageStatus::kFailed;
  ScheduleBuilder builder(3);
  builder.send(1, kIn);
  const OperationPtr operation = begin(std::move(builder));
  steps_.run();
  EXPECT_THAT(failed, ElementsAre(operation.get()));
  EXPECT_TRUE(done.empty());
}

TEST_F(SchedulingTest, ASendThatTheTransportHoldsIsCounted) {
  transport_.is_done_at_once = false;
  ScheduleBuilder builder(3);
  builder.send(1, kIn);
  const OperationPtr operation = begin(std::move(builder));
  steps_.run();
  EXPECT_EQ(operation->outstanding, 1);
  EXPECT_EQ(counters_.messages, 1);
  EXPECT_EQ(counters_.sent_bytes, 8);
  EXPECT_TRUE(done.empty());
}

TEST_F(SchedulingTest, ReceivesAreCancelledWhenTheRoundsCompletionsAreTold) {
  ScheduleBuilder builder(3);
  builder.receive(1, kOut);
  const OperationPtr operation = begin(std::move(builder));
  steps_.run();
  requests_.begin_round();
  requests_.cancel_receives(*operation);
  EXPECT_TRUE(transport_.cancelled.empty()) << "it may be among them";
  operation->state = OperationState::kFailed;
  requests_.end_round();
  EXPECT_THAT(transport_.cancelled, ElementsAre(&operation->steps[0].request));
}

}  // namespace
}  // namespace meshrun::ucx
