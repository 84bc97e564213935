#include "parallel/comm/ucx/engine/execution/executor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/comm/ucx/engine/protocol/offer_message.h"
#include "tests/parallel/comm/ucx/simulation.h"

namespace meshrun::ucx {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Bytes = std::vector<std::byte>;

Bytes bytes(size_t size, int value) { return Bytes(size, static_cast<std::byte>(value)); }

MemoryNetwork::Options options(uint64_t seed = 0) {
  MemoryNetwork::Options options;
  options.seed = seed;
  return options;
}

std::vector<Simulation::Handle> barrier(Simulation& ranks, const std::string& group = "world") {
  std::vector<Simulation::Handle> handles;
  for (const int rank : ranks.members(group)) {
    handles.push_back(ranks.submit(rank, group, barrier_spec()));
  }
  return handles;
}

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

TEST(ExecutorTest, AtMostSixteenCollectivesRunAndTheRestFollowInOrder) {
  Simulation ranks(2, options());
  ranks.add_world();
  std::vector<Simulation::Handle> handles;
  for (int i = 0; i < 100; ++i) handles.push_back(ranks.submit(0, "world", barrier_spec()));
  ranks.settle();
  EXPECT_EQ(ranks.executor(0).counters().messages, Executor::kMaxActive);
  for (int i = 0; i < 100; ++i) ranks.submit(1, "world", barrier_spec());
  ranks.settle();
  for (const auto& handle : handles) EXPECT_TRUE(handle->is_done() && !handle->failure());
}

TEST(ExecutorTest, AFullGroupTakesNoMoreUntilAnOperationEnds) {
  Simulation ranks(2, options());
  ranks.add_world();
  Executor& first = ranks.executor(0);
  for (int i = 0; i < Executor::kMaxActive + Executor::kMaxQueued; ++i) {
    ASSERT_NE(first.try_submit(1, barrier_spec()), nullptr);
  }
  EXPECT_TRUE(first.is_full(1, /*is_point_to_point=*/false));
  EXPECT_FALSE(first.is_full(1, /*is_point_to_point=*/true));
  OperationSpec refused = barrier_spec();
  const auto memory = std::make_shared<int>(1);
  refused.keep_alive = memory;
  EXPECT_EQ(first.try_submit(1, std::move(refused)), nullptr);
  EXPECT_EQ(refused.keep_alive, memory) << "the caller passes it again";
  ranks.submit(1, "world", barrier_spec());
  ranks.settle();
  EXPECT_FALSE(first.is_full(1, /*is_point_to_point=*/false));
  EXPECT_NE(first.try_submit(1, std::move(refused)), nullptr);
  EXPECT_EQ(first.try_submit(1, barrier_spec()), nullptr);
  EXPECT_EQ(first.oldest_collective(1)->sequence(), 2u);
}

TEST(ExecutorTest, AGroupIsFullOfSendsAndReceivesToo) {
  Simulation ranks(2, options());
  ranks.add_world();
  Executor& first = ranks.executor(0);
  Bytes received = bytes(4, 0), sent = bytes(4, 7);
  for (int i = 0; i < Executor::kMaxPointToPoint; ++i) {
    ASSERT_NE(first.try_submit(1, point_to_point_spec(false, 1, received)), nullptr);
  }
  EXPECT_EQ(first.try_submit(1, point_to_point_spec(false, 1, received)), nullptr);
  EXPECT_NE(first.try_submit(1, barrier_spec()), nullptr);
  ranks.submit(1, "world", point_to_point_spec(true, 0, sent));
  ranks.settle();
  EXPECT_NE(first.try_submit(1, point_to_point_spec(false, 1, received)), nullptr);
}

TEST(ExecutorTest, AFullGroupThatFailedSaysSo) {
  Simulation ranks(2, options());
  ranks.add_world();
  Executor& first = ranks.executor(0);
  while (first.try_submit(1, barrier_spec()) != nullptr) continue;
  first.abort(1, {FailureKind::kAborted, "aborted", {0}});
  const auto handle = first.try_submit(1, barrier_spec());
  ASSERT_NE(handle, nullptr);
  EXPECT_TRUE(handle->is_done() && handle->failure());
}

TEST(ExecutorTest, ATimeoutCountsFromWhenTheCallerBeganToWaitForRoom) {
  Simulation ranks(2, options());
  ranks.add_world();
  OperationSpec spec = barrier_spec();
  spec.timeout = std::chrono::seconds(1);
  const SteadyNanos since = ranks.clock.SteadyNow();
  ranks.pass(std::chrono::milliseconds(900));
  const auto handle = ranks.executor(0).submit(1, std::move(spec), since);
  ranks.pass(std::chrono::milliseconds(90));
  EXPECT_FALSE(handle->is_done());
  ranks.pass(std::chrono::milliseconds(10) + Executor::kAskFor);
  ASSERT_TRUE(handle->is_done() && handle->failure());
  EXPECT_EQ(handle->failure()->kind, FailureKind::kTimeout);
}

// Bytes from rank 0 to rank 1, one message each, all offered.
struct ManyMessages {
  ManyMessages(Simulation& ranks, int count) : sent(count), received(count) {
    ScheduleBuilder sender(3), receiver(3);
    sender.set_offers(Offers::kAll);
    receiver.set_offers(Offers::kAll);
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

// Rank 0 passes on to rank 1 what comes late from rank 2, and 2^16 operations later it sends
// something of its own, with the same tag.
TEST(ExecutorTest, AnOperationWaitsForAnOlderOneWithTheSameTags) {
  Simulation ranks(3, options(1));
  ranks.add_world(/*check_headers=*/false);
  Bytes late = bytes(8, 1), own = bytes(8, 2), passed(8), first(8), second(8);
  const auto submit = [&](int rank, Schedule schedule, Bytes& memory) {
    OperationSpec spec;
    spec.schedule = std::make_shared<const Schedule>(std::move(schedule));
    spec.inputs = {ConstStridedSpan(contiguous(memory.data(), 8))};
    spec.outputs = {contiguous(memory.data(), 8)};
    return ranks.submit(rank, "world", std::move(spec));
  };
  constexpr Region kIn{Space::kInput, 0, 0, 8}, kOut{Space::kOutput, 0, 0, 8};
  const auto sends = [&](int peer) {
    ScheduleBuilder builder(3);
    builder.send(peer, kIn);
    return std::move(builder).finish();
  };
  const auto receives = [&](int peer) {
    ScheduleBuilder builder(3);
    builder.receive(peer, kOut);
    return std::move(builder).finish();
  };
  ScheduleBuilder relay(3);
  const StepId received = relay.receive(2, kOut);
  relay.send(1, kOut, {received});
  submit(0, std::move(relay).finish(), passed);
  const auto older = submit(1, receives(0), first);
  Simulation::Handle last;
  for (uint64_t i = 1; i < kSequences; ++i) {
    for (int rank = 0; rank < 2; ++rank) last = ranks.submit(rank, "world", OperationSpec());
  }
  ASSERT_TRUE(last->is_done());
  submit(0, sends(1), own);
  const auto newer = submit(1, receives(0), second);
  EXPECT_EQ(newer->sequence() - older->sequence(), kSequences);
  ranks.settle();
  EXPECT_FALSE(older->is_done() || newer->is_done());
  submit(2, sends(0), late);
  ranks.settle();
  ASSERT_TRUE(older->is_done() && newer->is_done());
  EXPECT_EQ(first, late);
  EXPECT_EQ(second, own);
}

TEST(ExecutorTest, ARankThatHasMadeTooManyGroupsIsNamedByTheOthers) {
  Simulation ranks(2, options());
  ranks.add_world();
  const auto waiting = ranks.submit(0, "world", barrier_spec());
  AddressRecord refused;
  refused.group = 0;
  ranks.executor(0).found(ranks.number(0, "world"), 1, refused, "");
  ASSERT_TRUE(waiting->failure().has_value());
  EXPECT_EQ(waiting->failure()->kind, FailureKind::kInvalidArgument);
  EXPECT_EQ(waiting->failure()->message, too_many_groups("world", 1));
}

TEST(ExecutorTest, GroupsOfTheSamePeersShareOneConnectionAndNeverMix) {
  Simulation ranks(3, options());
  ranks.add_group("a", {0, 1});
  ranks.add_group("b", {1, 0, 2});
  Bytes in_a = bytes(4, 1), in_b = bytes(4, 2), from_a = bytes(4, 0), from_b = bytes(4, 0);
  ranks.submit(1, "b", point_to_point_spec(false, 1, from_b));
  ranks.submit(1, "a", point_to_point_spec(false, 0, from_a));
  ranks.submit(0, "a", point_to_point_spec(true, 1, in_a));
  ranks.submit(0, "b", point_to_point_spec(true, 0, in_b));
  ranks.settle();
  EXPECT_EQ(from_a, in_a);
  EXPECT_EQ(from_b, in_b);
}

TEST(ExecutorTest, RanksOfOneHostAreCountedByProcess) {
  MemoryNetwork network(options());
  FakeClock clock;
  Executor executor(network.create_transport(), clock, /*host=*/7);
  GroupConfig config;
  config.size = 3;
  const uint32_t group = executor.add_group(config);
  EXPECT_EQ(executor.local_ranks(), 1);
  const auto peer = network.create_transport();
  AddressRecord record = executor.address_record(group);
  record.transport_address = peer->address();
  record.process = 1;
  executor.found(group, 1, record, "");
  EXPECT_EQ(executor.local_ranks(), 2);
  record.process = 2;
  record.host = 8;
  executor.found(group, 2, record, "");
  EXPECT_EQ(executor.local_ranks(), 2);
}

TEST(ExecutorTest, DifferentProgramsAreAnErrorAtFirstContact) {
  Simulation ranks(2, options());
  ranks.add_world();
  const auto handle = ranks.submit(0, "world", barrier_spec());
  AddressRecord record = ranks.executor(1).address_record(1);
  record.checks_headers = false;
  ranks.executor(0).found(1, 1, record, "");
  ASSERT_TRUE(handle->is_done());
  EXPECT_EQ(handle->failure()->kind, FailureKind::kMismatch);
  EXPECT_THAT(handle->failure()->message,
              AllOf(HasSubstr("rank 0 checks headers: true"), HasSubstr("rank 1: false")));
}

TEST(ExecutorTest, ARankThatCannotBeFoundFailsTheGroup) {
  Simulation ranks(2, options());
  ranks.add_world();
  const auto handle = ranks.submit(0, "world", barrier_spec());
  ranks.executor(0).found(1, 1, std::nullopt, "no address after 300 s");
  ASSERT_TRUE(handle->is_done());
  EXPECT_EQ(handle->failure()->kind, FailureKind::kTransport);
  EXPECT_THAT(handle->failure()->message, HasSubstr("no address after 300 s"));
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

TEST(ExecutorTest, AGroupRemovedInOrderIsMissedByNobody) {
  Simulation ranks(2, options());
  ranks.add_group("a", {0, 1});
  ranks.add_group("b", {0, 1});
  barrier(ranks, "a");
  ranks.settle();
  ranks.remove_group(0, "a");
  ranks.settle();
  EXPECT_FALSE(ranks.executor(1).group_failure(1).has_value());
  const auto handles = barrier(ranks, "b");
  ranks.settle();
  EXPECT_TRUE(handles[0]->is_done() && !handles[0]->failure());
}

TEST(ExecutorTest, AGroupRemovedWithOperationsUnderWayFailsOnAllRanks) {
  Simulation ranks(2, options());
  ranks.add_world();
  barrier(ranks);
  ranks.settle();
  Bytes memory = bytes(4, 0), other = bytes(4, 0);
  const auto mine = ranks.submit(0, "world", point_to_point_spec(false, 1, memory));
  const auto theirs = ranks.submit(1, "world", point_to_point_spec(false, 0, other));
  ranks.remove_group(0, "world");
  ranks.settle();
  ASSERT_TRUE(mine->is_done() && theirs->is_done());
  EXPECT_EQ(theirs->failure()->kind, FailureKind::kAborted);
  EXPECT_EQ(theirs->failure()->message, mine->failure()->message);
}

// A send that is under way cannot be taken back, and its receiver reads the sender's memory.
TEST(ExecutorTest, MemoryOfAFailedSendIsKept) {
  Simulation ranks(2, options());
  ranks.add_world();
  std::weak_ptr<Bytes> watched;
  Simulation::Handle send;
  {
    auto memory = std::make_shared<Bytes>(bytes(1 << 20, 7));
    watched = memory;
    PointToPointSpec spec = point_to_point_spec(true, 1, *memory);
    spec.keep_alive = memory;
    send = ranks.submit(0, "world", std::move(spec));
  }
  ranks.settle();
  ranks.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
  ranks.step();
  ASSERT_TRUE(send->is_done() && send->failure());
  EXPECT_FALSE(ranks.executor(0).has_unfinished());
  send.reset();
  ranks.finished.clear();
  ranks.settle();
  EXPECT_FALSE(watched.expired());
  ranks.executor(0).close("end");
  EXPECT_FALSE(watched.expired()) << "let go of under the lock";
  ranks.executor(0).take();
  EXPECT_TRUE(watched.expired());
}

TEST(ExecutorTest, MemoryOfAFailedSendIsLetGoOnceItIsTaken) {
  Simulation ranks(2, options());
  ranks.add_world();
  auto memory = std::make_shared<Bytes>(bytes(1 << 20, 7));
  Bytes received = bytes(1 << 20, 0);
  PointToPointSpec spec = point_to_point_spec(true, 1, *memory);
  spec.keep_alive = memory;
  spec.timeout = std::chrono::seconds(1);
  const std::weak_ptr<Bytes> watched = memory;
  memory.reset();
  ranks.submit(0, "world", std::move(spec));
  ranks.settle();
  ranks.hold(1);
  const auto receive = ranks.submit(1, "world", point_to_point_spec(false, 0, received));
  ranks.pass(std::chrono::seconds(2));
  EXPECT_TRUE(ranks.executor(0).group_failure(1).has_value());
  EXPECT_FALSE(watched.expired());
  ranks.release(1);
  ranks.settle();
  // It had been matched before rank 1 heard of the failure, or not: memory is kept only if so.
  EXPECT_TRUE(receive->is_done());
}

// Rank 1 sends to rank 0, whose memory it can write to.
class LentMemoryTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 1000;

  explicit LentMemoryTest(bool check_headers = false) : ranks_(2, options(/*seed=*/1)) {
    ranks_.add_world(check_headers);
    memory_ = std::make_shared<int>(1);
    watched_ = memory_;
    target_ = static_cast<std::byte*>(ranks_.heap(0)->allocate(kBytes));
  }

  Simulation::Handle receive() {
    ScheduleBuilder builder(2);
    const Region staging = by_staging_ ? builder.scratch(kBytes) : Region();
    builder.receive(1, {Space::kOutput, 0, 0, kBytes}, {}, staging);
    OperationSpec spec = barrier_spec();
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    spec.outputs = {contiguous(by_staging_ ? own_.data() : target_, kBytes)};
    spec.keep_alive = std::move(memory_);
    return ranks_.submit(0, "world", std::move(spec));
  }
  Simulation::Handle send(int64_t size = kBytes) {
    ScheduleBuilder builder(2);
    builder.send(0, {Space::kInput, 0, 0, size});
    OperationSpec spec = barrier_spec();
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    spec.inputs = {contiguous(sent_.data(), size)};
    return ranks_.submit(1, "world", std::move(spec));
  }
  void expect_error(int64_t size) {
    const auto received = receive(), sent = send(size);
    ranks_.settle();
    ASSERT_TRUE(received->is_done() && received->failure());
    EXPECT_THAT(received->failure()->message,
                HasSubstr("rank 0 expects 1000 bytes, and rank 1 sent"));
    EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, 0);
  }
  // The receiver fails before it has read that the sender is.
  void expect_kept_until_the_sender_is_through() {
    const auto received = receive();
    ranks_.settle();
    ranks_.asleep = {0};
    const auto sent = send();
    ranks_.settle();
    ASSERT_EQ(ranks_.executor(1).counters().pushed_bytes, kBytes);
    ranks_.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
    ranks_.executor(0).take();
    ASSERT_TRUE(received->is_done() && received->failure());
    EXPECT_TRUE(is_kept());
    ranks_.asleep = {};
    ranks_.settle();
    EXPECT_FALSE(is_kept());
  }
  bool is_kept() const { return !watched_.expired(); }

  Simulation ranks_;
  std::shared_ptr<int> memory_;
  std::weak_ptr<int> watched_;
  std::byte* target_ = nullptr;
  // The receiver's output is not in the heap, its staging is.
  bool by_staging_ = false;
  Bytes own_ = bytes(kBytes, 0);
  Bytes sent_ = bytes(2 * kBytes, 7);
};

class LentBeforeAllAgreeTest : public LentMemoryTest {
 protected:
  LentBeforeAllAgreeTest() : LentMemoryTest(/*check_headers=*/true) {}
};

TEST_F(LentMemoryTest, TheSenderWritesToWhereTheBytesBelong) {
  const auto received = receive(), sent = send();
  ranks_.settle();
  EXPECT_TRUE(received->is_done() && !received->failure());
  EXPECT_TRUE(sent->is_done() && !sent->failure());
  EXPECT_EQ(Bytes(target_, target_ + kBytes), bytes(kBytes, 7));
  EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, kBytes);
  EXPECT_EQ(ranks_.executor(1).counters().sent_bytes, kBytes);
  EXPECT_EQ(ranks_.executor(1).counters().copied_bytes, 0);
  EXPECT_FALSE(is_kept());
}

// Both ends have the message in rows, of different lengths, and can go through scratch memory.
class LentRowsTest : public LentMemoryTest {
 protected:
  static constexpr Layout kReceived{10, 64, 90}, kSent{40, 25, 31};
  // Not from the beginning, nor to the end.
  static constexpr int64_t kOffset = 130, kPart = 400;

  void exchange(StridedSpan output) {
    for (size_t i = 0; i < sent_.size(); ++i) sent_[i] = static_cast<std::byte>(i % 251 + 1);
    const auto run = [&](int rank, bool is_send) {
      ScheduleBuilder builder(2);
      const Region staging = builder.scratch(kPart);
      if (is_send) {
        builder.send(0, {Space::kInput, 0, kOffset, kPart}, {}, staging);
      } else {
        builder.receive(1, {Space::kOutput, 0, kOffset, kPart}, {}, staging);
      }
      OperationSpec spec = barrier_spec();
      spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
      spec.inputs = {ConstStridedSpan(sent_.data(), kSent)};
      spec.outputs = {output};
      return ranks_.submit(rank, "world", std::move(spec));
    };
    const auto received = run(0, false), sent = run(1, true);
    ranks_.settle();
    EXPECT_TRUE(received->is_done() && !received->failure());
    EXPECT_TRUE(sent->is_done() && !sent->failure());
    Bytes expected(kPart), found(kPart);
    pack(ConstStridedSpan(sent_.data(), kSent), kOffset, expected);
    pack(output, kOffset, found);
    EXPECT_EQ(found, expected);
    const Layout& rows = output.layout;
    for (int64_t at = 0; at < rows.extent(); ++at) {
      const int64_t in_row = at % rows.pitch;
      const int64_t packed = at / rows.pitch * rows.row_bytes + in_row;
      if (in_row < rows.row_bytes && packed >= kOffset && packed < kOffset + kPart) continue;
      ASSERT_EQ(output.data[at], std::byte{0}) << "beside what was received, at " << at;
    }
  }
  int64_t copied(int rank) { return ranks_.executor(rank).counters().copied_bytes; }
};

TEST_F(LentRowsTest, TheSenderWritesRowsToWhereTheyBelong) {
  auto* const memory = static_cast<std::byte*>(ranks_.heap(0)->allocate(kReceived.extent()));
  exchange({memory, kReceived});
  EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, kPart);
  EXPECT_EQ(copied(0) + copied(1), 0);
}

TEST_F(LentRowsTest, RowsElsewhereAreWrittenToTheReceiversStaging) {
  Bytes memory = bytes(kReceived.extent(), 0);
  exchange({memory.data(), kReceived});
  EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, kPart);
  EXPECT_EQ(copied(0), kPart);
  EXPECT_EQ(copied(1), 0);
}

TEST_F(LentRowsTest, RowsShorterThanACacheLineAreWrittenToTheReceiversStaging) {
  auto* const memory = static_cast<std::byte*>(ranks_.heap(0)->allocate(4096));
  exchange({memory, {20, 30, 45}});
  EXPECT_EQ(ranks_.executor(1).counters().pushed_bytes, kPart);
  EXPECT_EQ(copied(0), kPart);
}

// Ranks of other seeds have no heaps.
TEST(ExecutorTest, RowsAreStagedAtBothEndsWhereNoMemoryIsShared) {
  Simulation ranks(2, options(/*seed=*/0));
  ASSERT_EQ(ranks.heap(0), nullptr);
  ranks.add_world();
  const Layout rows{10, 60, 90};
  Bytes sent(rows.extent()), received = bytes(rows.extent(), 0);
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] = i % 90 < 60 ? static_cast<std::byte>(i % 251 + 1) : std::byte{0};
  }
  for (const int rank : {0, 1}) {
    ScheduleBuilder builder(2);
    const Region staging = builder.scratch(rows.bytes());
    if (rank == 1) {
      builder.send(0, {Space::kInput, 0, 0, rows.bytes()}, {}, staging);
    } else {
      builder.receive(1, {Space::kOutput, 0, 0, rows.bytes()}, {}, staging);
    }
    OperationSpec spec = barrier_spec();
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    spec.inputs = {ConstStridedSpan(sent.data(), rows)};
    spec.outputs = {StridedSpan{received.data(), rows}};
    ranks.submit(rank, "world", std::move(spec));
  }
  ranks.settle();
  EXPECT_EQ(received, sent);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(ranks.executor(rank).counters().copied_bytes, rows.bytes());
  }
}

TEST(OfferMessageTest, NumbersThatDescribeNoMemoryAreRefused) {
  OfferMessage good;
  good.describe({10, 60, 90}, {Space::kOutput, 0, 130, 400});
  ASSERT_TRUE(good.layout());
  EXPECT_EQ(good.layout()->rows, 7);
  const auto with = [&](auto change) {
    OfferMessage message = good;
    change(message);
    return message.layout().has_value();
  };
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_FALSE(with([](OfferMessage& m) { m.row_bytes = 0; })) << "skips bytes of no row";
  EXPECT_FALSE(with([](OfferMessage& m) { m.row_bytes = -60; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.pitch = 59; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.skipped = 60; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.skipped = -1; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.bytes = -1; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.bytes = kHuge; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.pitch = kHuge; }));
  EXPECT_FALSE(with([](OfferMessage& m) { m.bytes = m.pitch = int64_t{1} << 46; }));
}

TEST_F(LentMemoryTest, FewerBytesThanExpectedAreAnErrorAndNotWritten) { expect_error(kBytes - 1); }
TEST_F(LentMemoryTest, MoreBytesThanExpectedAreAnErrorAndNotWritten) { expect_error(kBytes + 1); }

// The sender has passed the comparison of headers, the receiver has not looked yet.
TEST_F(LentBeforeAllAgreeTest, IsKeptUntilTheSenderIsThrough) {
  expect_kept_until_the_sender_is_through();
}

TEST_F(LentBeforeAllAgreeTest, IsLetGoWhenTheSenderHasHeardOfTheFailure) {
  barrier(ranks_);  // or the sender does not know whom to tell, nor where to write
  ranks_.settle();
  const auto received = receive();
  ranks_.settle();
  ranks_.hold(1);
  ranks_.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_TRUE(is_kept());
  ranks_.release(1);
  ranks_.settle();
  EXPECT_FALSE(is_kept());
}

TEST_F(LentBeforeAllAgreeTest, IsLetGoWhereTheSenderIsWhoTellsOfTheFailure) {
  barrier(ranks_);
  ranks_.settle();
  const auto received = receive();
  ranks_.settle();
  EXPECT_TRUE(is_kept());
  ranks_.executor(1).abort(1, {FailureKind::kAborted, "aborted", {1}});
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_FALSE(is_kept());
}

TEST_F(LentBeforeAllAgreeTest, IsLetGoWhereTheRanksDisagree) {
  const auto received = receive();
  OperationSpec other = barrier_spec();
  other.signature.digest = 1;
  const auto sent = ranks_.submit(1, "world", std::move(other));
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_EQ(received->failure()->kind, FailureKind::kMismatch);
  EXPECT_FALSE(is_kept());
}

TEST_F(LentMemoryTest, OfAFailedOperationIsKeptUntilTheSenderIsThrough) {
  expect_kept_until_the_sender_is_through();
}

TEST_F(LentMemoryTest, StagingOfAFailedOperationIsKeptUntilTheSenderIsThrough) {
  by_staging_ = true;
  expect_kept_until_the_sender_is_through();
}

TEST_F(LentMemoryTest, IsNobodyElsesWhereTheSenderNeverSaysThatItIsThrough) {
  const auto received = receive();
  ranks_.settle();
  ranks_.kill(1);
  ranks_.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_TRUE(is_kept());
  ranks_.executor(0).close("end");
  ranks_.executor(0).take();
  EXPECT_TRUE(is_kept()) << "the sender may have been in the middle of it";
}

// Rank 1's memory is that of a process of its own, which the kernel knows to be dead or alive.
class LentToAProcessTest : public LentMemoryTest {
 protected:
  LentToAProcessTest() {
    int address_pipe[2];
    EXPECT_EQ(pipe(address_pipe), 0);
    process_ = fork();
    if (process_ == 0) {
      const auto heap = SharedHeap::create(8 << 20);
      const HeapAddress address = heap->address();
      if (write(address_pipe[1], &address, sizeof(address)) != sizeof(address)) _exit(1);
      while (true) pause();
    }
    AddressRecord record = ranks_.executor(1).address_record(1);
    EXPECT_EQ(read(address_pipe[0], &record.heap, sizeof(record.heap)),
              ssize_t{sizeof(record.heap)});
    for (const int fd : address_pipe) close(fd);
    ranks_.executor(0).found(1, 1, record, "");
  }
  ~LentToAProcessTest() override {
    if (process_ != 0) kill_process();
  }

  void kill_process() {
    kill(process_, SIGKILL);
    EXPECT_EQ(waitpid(process_, nullptr, 0), process_);
    process_ = 0;
  }
  // Its receive has failed, and rank 1 says nothing more.
  void fail() {
    const auto received = receive();
    ranks_.settle();
    ranks_.kill(1);
    ranks_.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
    ranks_.settle();
    ASSERT_TRUE(received->is_done() && received->failure());
    ASSERT_TRUE(is_kept());
  }

  pid_t process_ = 0;
};

TEST_F(LentToAProcessTest, IsLetGoWhenTheProcessIsDead) {
  fail();
  kill_process();
  ranks_.settle();
  EXPECT_TRUE(is_kept()) << "nobody has said so";
  ranks_.tell(PeerLost{1, "killed by SIGKILL"});
  EXPECT_FALSE(is_kept());
}

TEST_F(LentToAProcessTest, IsLetGoWhereTheDeathFailsTheOperation) {
  const auto received = receive();
  ranks_.settle();
  ranks_.kill(1);
  kill_process();
  ranks_.tell(PeerLost{1, "killed by SIGKILL"});
  EXPECT_TRUE(is_kept());
  ranks_.pass(std::chrono::seconds(1));
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_FALSE(is_kept());
}

TEST_F(LentToAProcessTest, IsKeptWhileTheProcessLivesWhateverTheNews) {
  fail();
  ranks_.tell(PeerLost{1, "its host was lost"});
  ranks_.pass(std::chrono::seconds(1));
  EXPECT_TRUE(is_kept());
  // It ends after all: seen within kGrace, while anybody makes rounds.
  kill_process();
  ranks_.pass(2 * Executor::kGrace);
  EXPECT_FALSE(is_kept());
}

TEST_F(LentToAProcessTest, IsKeptForEverWhereTheProcessOutlivesTheTransport) {
  fail();
  ranks_.tell(PeerLeft{1});
  ranks_.executor(0).close("end");
  ranks_.executor(0).take();
  EXPECT_TRUE(is_kept());
}

TEST(ExecutorTest, ScratchMemoryIsKeptUpToABound) {
  Simulation ranks(1, options(/*seed=*/1));
  ranks.add_world();
  SharedHeap* const heap = ranks.heap(0);
  ASSERT_NE(heap, nullptr);
  const auto run = [&](int64_t bytes) {
    ScheduleBuilder builder(1);
    const Region scratch = builder.scratch(bytes);
    builder.copy(scratch, scratch);
    OperationSpec spec = barrier_spec();
    spec.schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    const auto handle = ranks.submit(0, "world", std::move(spec));
    ranks.settle();
    EXPECT_TRUE(handle->is_done() && !handle->failure());
  };
  const size_t before = heap->used_bytes();
  constexpr size_t kKept = (4 << 20) + (64 << 10);
  run(64 << 10);
  run(4 << 20);
  EXPECT_EQ(heap->used_bytes() - before, kKept);
  run(100);
  run(1 << 20);
  EXPECT_EQ(heap->used_bytes() - before, kKept) << "they were used again";
  // Longer than all that is kept: from the process's own memory, and given back at once.
  run(Executor::kFreeScratchBytes + 1);
  EXPECT_EQ(heap->used_bytes() - before, kKept);
}

TEST(ExecutorTest, MemoryIsLetGoWithTheOperation) {
  Simulation ranks(2, options());
  ranks.add_world();
  auto memory = std::make_shared<int>(1);
  OperationSpec spec = barrier_spec();
  spec.keep_alive = memory;
  const auto handle = ranks.submit(0, "world", std::move(spec));
  const std::weak_ptr<int> watched = memory;
  memory.reset();
  ranks.settle();
  EXPECT_FALSE(watched.expired());
  ranks.submit(1, "world", barrier_spec());
  ranks.settle();
  EXPECT_TRUE(handle->is_done());
  EXPECT_TRUE(watched.expired()) << "though the handle lives";
}

TEST(ExecutorTest, MemoryOwnedThroughANullPointerIsLetGoWithTheOperationToo) {
  Simulation ranks(1, options());
  ranks.add_world();
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = memory;
  OperationSpec spec = barrier_spec();
  spec.keep_alive = std::shared_ptr<void>(std::move(memory), nullptr);
  const auto handle = ranks.submit(0, "world", std::move(spec));
  ranks.settle();
  EXPECT_TRUE(handle->is_done());
  EXPECT_TRUE(watched.expired());
}

TEST(ExecutorTest, ACopyIsBrokenOffAfterARound) {
  constexpr int64_t kBytes = 3 * Executor::kRoundBytes + 5;
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
    EXPECT_EQ(ranks.executor(0).counters().copied_bytes, round * Executor::kRoundBytes);
    EXPECT_FALSE(handle->is_done());
    EXPECT_TRUE(ranks.executor(0).progress());
  }
  EXPECT_TRUE(handle->is_done());
  EXPECT_EQ(from, to);
}

TEST(ExecutorTest, AReportOfAWaitSaysWhatWasCalled) {
  Simulation ranks(3, options());
  ranks.add_world();
  ranks.add_group("pair", {2, 1});
  barrier(ranks);
  ranks.settle();
  const auto handle = ranks.submit(1, "pair", barrier_spec());
  const WaitReport report = ranks.executor(1).wait_report(*handle);
  EXPECT_EQ(report.rank, 1);
  EXPECT_EQ(report.group, "pair");
  EXPECT_THAT(report.members, ElementsAre(2, 1));
  EXPECT_EQ(report.sequence, 1u);
  EXPECT_THAT(report.peers, IsEmpty());
  EXPECT_EQ(report.operation, "barrier number 1 of group \"pair\"");
  EXPECT_EQ(report.called.at("world"), 1u);
  EXPECT_FALSE(report.is_moving);
  Bytes memory = bytes(4, 0);
  const auto receive = ranks.submit(1, "pair", point_to_point_spec(false, 0, memory));
  EXPECT_THAT(ranks.executor(1).wait_report(*receive).peers, ElementsAre(2));
}

TEST(ExecutorTest, AReportOfAWaitTellsOfTheMessagesUnderWayInAllGroups) {
  Simulation ranks(3, options());
  ranks.add_world();
  ranks.add_group("pair", {2, 1});
  Bytes a = bytes(1 << 20, 1), b = bytes(4, 0), c = bytes(4, 0);
  ranks.submit(1, "pair", point_to_point_spec(true, 0, a));
  ranks.submit(1, "world", point_to_point_spec(false, 0, b));
  const auto handle = ranks.submit(1, "world", barrier_spec());
  WaitReport report = ranks.executor(1).wait_report(*handle);
  EXPECT_THAT(report.sending_to, ElementsAre(2));
  EXPECT_THAT(report.receiving_from, ElementsAre(0));
  ranks.submit(1, "world", point_to_point_spec(false, -1, c));
  report = ranks.executor(1).wait_report(*handle);
  EXPECT_THAT(report.receiving_from, ElementsAre(0, 2));
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
