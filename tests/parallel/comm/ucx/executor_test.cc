#include "parallel/comm/ucx/engine/execution/executor.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/comm/ucx/executor_cases.h"

namespace meshrun::ucx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(ExecutorTest, ABarrierCostsTheLogarithmInMessages) {
  for (const auto& [size, rounds] :
       std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {5, 3}, {8, 3}}) {
    Simulation ranks(size, options());
    ranks.add_world();
    const auto handles = barrier(ranks);
    ranks.settle();
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(handles[rank]->is_done());
      EXPECT_FALSE(handles[rank]->failure().has_value());
      EXPECT_EQ(ranks.executor(rank).counters().messages, rounds);
      EXPECT_EQ(ranks.executor(rank).sequence(1), 1u);
      EXPECT_FALSE(ranks.executor(rank).has_unfinished());
    }
  }
}

TEST(ExecutorTest, ABarrierWaitsForTheLastRank) {
  Simulation ranks(3, options());
  ranks.add_world();
  const auto first = ranks.submit(0, "world", barrier_spec());
  const auto second = ranks.submit(1, "world", barrier_spec());
  ranks.settle();
  EXPECT_FALSE(first->is_done());
  EXPECT_FALSE(second->is_done());
  ranks.submit(2, "world", barrier_spec());
  ranks.settle();
  EXPECT_TRUE(first->is_done());
  EXPECT_TRUE(second->is_done());
}

TEST(ExecutorTest, SendsAndReceivesMeetInAnyOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Simulation ranks(2, options(seed));
    ranks.add_world();
    constexpr int kMessages = 40;
    std::vector<Bytes> sent, received;
    for (int i = 0; i < kMessages; ++i) {
      sent.push_back(bytes(i % 3 ? 10 + i : 20000, i));
      received.push_back(bytes(sent[i].size(), 0xff));
    }
    for (int i = 0; i < kMessages; ++i) {
      ranks.submit(0, "world", point_to_point_spec(true, 1, sent[i], i));
      const int other = kMessages - 1 - i;
      ranks.submit(1, "world",
                   point_to_point_spec(false, other % 2 ? 0 : -1, received[other], other));
      ranks.step();
    }
    ranks.settle();
    ASSERT_THAT(ranks.finished, SizeIs(2 * kMessages));
    EXPECT_EQ(sent, received);
  }
}

TEST(ExecutorTest, ReceivesAreMatchedInTheOrderOfSubmission) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Simulation ranks(2, options(seed));
    ranks.add_world();
    std::vector<Bytes> sent, received;
    for (int i = 0; i < 4; ++i) sent.push_back(bytes(8, i)), received.push_back(bytes(8, 0xff));
    for (int i = 0; i < 4; ++i) {
      ranks.submit(1, "world", point_to_point_spec(false, i % 2 ? -1 : 0, received[i]));
    }
    for (Bytes& message : sent) ranks.submit(0, "world", point_to_point_spec(true, 1, message));
    ranks.settle();
    EXPECT_EQ(sent, received);
  }
}

TEST(ExecutorTest, AReceiveFromAnyRankNamesTheSender) {
  Simulation ranks(3, options());
  ranks.add_world();
  Bytes sent = bytes(4, 7), received = bytes(4, 0);
  const auto receive = ranks.submit(0, "world", point_to_point_spec(false, -1, received));
  ranks.submit(2, "world", point_to_point_spec(true, 0, sent));
  ranks.settle();
  ASSERT_TRUE(receive->is_done());
  EXPECT_EQ(receive->source_rank(), 2);
  EXPECT_EQ(received, sent);
}

TEST(ExecutorTest, ARankSendsToItself) {
  Simulation ranks(1, options());
  ranks.add_world();
  Bytes sent = bytes(20000, 7), received = bytes(20000, 0);
  ranks.submit(0, "world", point_to_point_spec(false, 0, received));
  ranks.submit(0, "world", point_to_point_spec(true, 0, sent));
  ranks.settle();
  EXPECT_EQ(received, sent);
}

TEST(ExecutorTest, AMessageOfAnotherLengthIsAnErrorAtTheReceiver) {
  for (const size_t size : {3, 5}) {
    Simulation ranks(2, options());
    ranks.add_world();
    Bytes sent = bytes(size, 7), received = bytes(4, 0);
    const auto receive = ranks.submit(1, "world", point_to_point_spec(false, 0, received));
    const auto send = ranks.submit(0, "world", point_to_point_spec(true, 1, sent));
    ranks.settle();
    EXPECT_FALSE(send->failure().has_value());
    ASSERT_TRUE(receive->failure().has_value());
    EXPECT_EQ(receive->failure()->kind, FailureKind::kMismatch);
    EXPECT_THAT(receive->failure()->message,
                AllOf(HasSubstr("recv number 1 from rank 0 of group \"world\""),
                      HasSubstr("rank 1 expects 4 bytes"), HasSubstr("rank 0 sent")));
    // The group lives.
    EXPECT_FALSE(barrier(ranks)[0]->failure().has_value());
    ranks.settle();
    EXPECT_FALSE(ranks.executor(0).has_unfinished());
  }
}

// Bytes from rank 0 to rank 1, one message each, all offered.
struct ManyMessages {
  ManyMessages(Simulation& ranks, int count) : sent(count), received(count) {
    ScheduleBuilder sender(3), receiver(3);
    sender.set_offers(OfferRule::kAll);
    receiver.set_offers(OfferRule::kAll);
    for (int i = 0; i < count; ++i) {
      sent[i] = static_cast<std::byte>(i * 31 >> 3);
      sender.send(1, {Space::kInput, 0, i, 1});
      receiver.receive(0, {Space::kOutput, 0, i, 1});
    }
    std::vector<OperationSpec> specs(3);
    specs[0].inputs = {ConstStridedSpan(contiguous(sent.data(), count))};
    specs[0].schedule = std::make_shared<const Schedule>(std::move(sender).finish());
    specs[1].outputs = {contiguous(received.data(), count)};
    specs[1].schedule = std::make_shared<const Schedule>(std::move(receiver).finish());
    for (int rank = 0; rank < 3; ++rank) {
      specs[rank].signature.kind = OperationKind::kCoalesced;
      specs[rank].text = [] { return std::string("many things"); };
      handles.push_back(ranks.submit(rank, "world", std::move(specs[rank])));
    }
    ranks.settle();
  }

  Bytes sent, received;
  std::vector<Simulation::Handle> handles;
};

TEST(ExecutorTest, MoreMessagesThanTagsNumberAreRefusedOnAllRanks) {
  for (const bool check_headers : {true, false}) {
    Simulation ranks(3, options(1));
    ranks.add_world(check_headers);
    // Rank 2 has no part in it.
    const ManyMessages call(ranks, kMaxMessages + 1);
    for (const auto& handle : call.handles) {
      // Without headers rank 2 hears nothing of it.
      if (!check_headers && handle == call.handles[2]) continue;
      ASSERT_TRUE(handle->failure().has_value());
      EXPECT_EQ(handle->failure()->kind, FailureKind::kInvalidArgument);
      EXPECT_EQ(handle->failure()->group_survives, check_headers);
      if (check_headers) {
        EXPECT_EQ(handle->failure()->message, call.handles[0]->failure()->message);
      }
      EXPECT_THAT(handle->failure()->message,
                  AllOf(HasSubstr("8193 messages, and tags number 8192"), HasSubstr("many things"),
                        HasSubstr("wrong arguments on rank")));
    }
    EXPECT_EQ(call.received, Bytes(kMaxMessages + 1));
    if (!check_headers) continue;
    const auto next = barrier(ranks);
    ranks.settle();
    for (const auto& handle : next) EXPECT_TRUE(handle->is_done() && !handle->failure());
  }
}

TEST(ExecutorTest, AsManyMessagesAsTagsNumberArrive) {
  for (const uint64_t seed : {1, 3}) {
    Simulation ranks(3, options(seed));
    ranks.add_world();
    const ManyMessages call(ranks, kMaxMessages);
    for (const auto& handle : call.handles) EXPECT_TRUE(handle->is_done() && !handle->failure());
    EXPECT_EQ(call.received, call.sent) << seed;
  }
}

TEST(ExecutorTest, WithoutHeadersAWrongArgumentStillEndsOnAllRanks) {
  Simulation ranks(2, options());
  ranks.add_world(/*check_headers=*/false);
  // Connected by a message each way.
  Bytes a = bytes(4, 1), b = bytes(4, 2), c = bytes(4, 0), d = bytes(4, 0);
  for (const int rank : {0, 1}) {
    ranks.submit(rank, "world", point_to_point_spec(true, 1 - rank, rank ? a : b));
    ranks.submit(rank, "world", point_to_point_spec(false, 1 - rank, rank ? c : d));
  }
  ranks.settle();
  OperationSpec spec = barrier_spec();
  spec.signature.flags = kHasProblem;
  spec.text = [] { return "dim 7 of a tensor with 2"; };
  Bytes e = bytes(4, 0);
  const auto waiting = ranks.submit(0, "world", point_to_point_spec(false, 1, e));
  const auto wrong = ranks.submit(1, "world", spec);
  ranks.settle();
  ASSERT_TRUE(waiting->is_done() && wrong->is_done());
  EXPECT_EQ(waiting->failure()->kind, FailureKind::kInvalidArgument);
  EXPECT_EQ(waiting->failure()->message, wrong->failure()->message);
  EXPECT_THAT(wrong->failure()->message, HasSubstr("on rank 1: dim 7 of a tensor with 2"));
}

TEST(ExecutorTest, AbortEndsTheGroupOnAllRanksAndForEver) {
  Simulation ranks(4, options());
  ranks.add_world();
  barrier(ranks);
  ranks.settle();
  std::vector<Simulation::Handle> handles;
  for (int rank = 0; rank < 3; ++rank) {
    handles.push_back(ranks.submit(rank, "world", barrier_spec()));
  }
  ranks.settle();
  ranks.executor(3).abort(1, {FailureKind::kAborted, "rank 3 has seen enough", {3}});
  ranks.settle();
  for (const auto& handle : handles) {
    ASSERT_TRUE(handle->is_done());
    EXPECT_EQ(handle->failure()->message, "rank 3 has seen enough");
    EXPECT_FALSE(handle->failure()->group_survives);
  }
  for (const auto& handle : barrier(ranks)) {
    ASSERT_TRUE(handle->is_done());
    EXPECT_EQ(handle->failure()->kind, FailureKind::kAborted);
    EXPECT_THAT(handle->failure()->message, HasSubstr("has failed: rank 3 has seen enough"));
  }
  EXPECT_TRUE(ranks.executor(0).group_failure(1).has_value());
}

// Whoever looks for the failed rank hears of it once it is connected, and does not wait.
TEST(ExecutorTest, AMemberThatIsFoundAfterTheFailureIsToldAtOnce) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Simulation ranks(2, options(seed));
    ranks.add_world();
    // The look-up of rank 1 is under way when the group fails.
    const auto aborted = ranks.submit(0, "world", barrier_spec());
    ranks.executor(0).abort(1, {FailureKind::kAborted, "rank 0 has seen enough", {0}});
    const auto waiting = ranks.submit(1, "world", barrier_spec());
    ranks.settle();
    ASSERT_TRUE(aborted->is_done());
    ASSERT_TRUE(waiting->is_done()) << "seed " << seed;
    ASSERT_TRUE(waiting->failure().has_value());
    EXPECT_EQ(waiting->failure()->message, "rank 0 has seen enough");
  }
}

// The simulation's transport checks what is cancelled.
TEST(ExecutorTest, WhatIsDoneInTheRoundOfAFailureIsNotCancelled) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    MemoryNetwork::Options many = options(seed);
    many.deliveries_per_progress = 4;
    Simulation ranks(2, many);
    ranks.add_world();
    barrier(ranks);
    ranks.settle();
    Bytes sent = bytes(4, 7), received = bytes(4, 0), other = bytes(4, 0);
    const auto receive = ranks.submit(0, "world", point_to_point_spec(false, 1, received));
    const auto open = ranks.submit(0, "world", point_to_point_spec(false, 1, other, 1));
    ranks.submit(1, "world", point_to_point_spec(true, 0, sent));
    ranks.executor(1).abort(1, {FailureKind::kAborted, "aborted", {1}});
    ranks.settle();
    EXPECT_TRUE(receive->is_done());
    EXPECT_TRUE(open->is_done() && open->failure());
  }
}

TEST(ExecutorTest, TheProgressThreadIsNeededWhileItsOperationsAreUnderWay) {
  Simulation ranks(2, options());
  ranks.add_world();
  OperationSpec spec = barrier_spec();
  spec.drive = Drive::kCaller;
  const auto handle = ranks.submit(0, "world", std::move(spec));
  EXPECT_FALSE(ranks.executor(0).has_unfinished_for_thread());
  ranks.executor(0).set_drive(*handle, Drive::kThread);
  EXPECT_TRUE(ranks.executor(0).has_unfinished_for_thread());
  ranks.submit(1, "world", barrier_spec());
  ranks.settle();
  EXPECT_TRUE(handle->is_done());
  EXPECT_FALSE(ranks.executor(0).has_unfinished_for_thread());
}

}  // namespace
}  // namespace meshrun::ucx
