#include "parallel/comm/ucx/engine/execution/member_group.h"

#include <memory>
#include <type_traits>
#include <utility>

#include "gtest/gtest.h"
#include "tests/parallel/comm/ucx/executor_cases.h"
#include "tests/parallel/comm/ucx/recorded_transport.h"

namespace meshrun::ucx {
namespace {

// Null, and `spec` is as it was: group 1 is full.
template <typename Spec>
std::shared_ptr<Operation> try_submit(Executor& executor, Spec&& spec) {
  if (executor.is_full(1, std::is_same_v<Spec, PointToPointSpec>)) return nullptr;
  return executor.submit(1, std::move(spec));
}

TEST(MemberGroupTest, AtMostSixteenCollectivesRunAndTheRestFollowInOrder) {
  Simulation ranks(2, options());
  ranks.add_world();
  std::vector<Simulation::Handle> handles;
  for (int i = 0; i < 100; ++i) handles.push_back(ranks.submit(0, "world", barrier_spec()));
  ranks.settle();
  EXPECT_EQ(ranks.executor(0).counters().messages, MemberGroup::kMaxActive);
  for (int i = 0; i < 100; ++i) ranks.submit(1, "world", barrier_spec());
  ranks.settle();
  for (const auto& handle : handles) EXPECT_TRUE(handle->is_done() && !handle->failure());
}

TEST(MemberGroupTest, AFullGroupTakesNoMoreUntilAnOperationEnds) {
  Simulation ranks(2, options());
  ranks.add_world();
  Executor& first = ranks.executor(0);
  for (int i = 0; i < MemberGroup::kMaxActive + MemberGroup::kMaxQueued; ++i) {
    ASSERT_NE(try_submit(first, barrier_spec()), nullptr);
  }
  EXPECT_TRUE(first.is_full(1, /*is_point_to_point=*/false));
  EXPECT_FALSE(first.is_full(1, /*is_point_to_point=*/true));
  OperationSpec refused = barrier_spec();
  const auto memory = std::make_shared<int>(1);
  refused.keep_alive = memory;
  EXPECT_EQ(try_submit(first, std::move(refused)), nullptr);
  EXPECT_EQ(refused.keep_alive, memory) << "the caller passes it again";
  ranks.submit(1, "world", barrier_spec());
  ranks.settle();
  EXPECT_FALSE(first.is_full(1, /*is_point_to_point=*/false));
  EXPECT_NE(try_submit(first, std::move(refused)), nullptr);
  EXPECT_EQ(try_submit(first, barrier_spec()), nullptr);
  EXPECT_EQ(first.oldest_collective(1)->sequence(), 2u);
}

TEST(MemberGroupTest, AGroupIsFullOfSendsAndReceivesToo) {
  Simulation ranks(2, options());
  ranks.add_world();
  Executor& first = ranks.executor(0);
  Bytes received = bytes(4, 0), sent = bytes(4, 7);
  for (int i = 0; i < MemberGroup::kMaxPointToPoint; ++i) {
    ASSERT_NE(try_submit(first, point_to_point_spec(false, 1, received)), nullptr);
  }
  EXPECT_EQ(try_submit(first, point_to_point_spec(false, 1, received)), nullptr);
  EXPECT_NE(try_submit(first, barrier_spec()), nullptr);
  ranks.submit(1, "world", point_to_point_spec(true, 0, sent));
  ranks.settle();
  EXPECT_NE(try_submit(first, point_to_point_spec(false, 1, received)), nullptr);
}

TEST(MemberGroupTest, AFullGroupThatFailedSaysSo) {
  Simulation ranks(2, options());
  ranks.add_world();
  Executor& first = ranks.executor(0);
  while (try_submit(first, barrier_spec()) != nullptr) continue;
  first.abort(1, {FailureKind::kAborted, "aborted", {0}});
  const auto handle = try_submit(first, barrier_spec());
  ASSERT_NE(handle, nullptr);
  EXPECT_TRUE(handle->is_done() && handle->failure());
}

// Rank 0 passes on to rank 1 what comes late from rank 2, and 2^16 operations later it sends
// something of its own, with the same tag.
TEST(MemberGroupTest, AnOperationWaitsForAnOlderOneWithTheSameTags) {
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

TEST(MemberGroupTest, AGroupRemovedInOrderIsMissedByNobody) {
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

TEST(MemberGroupTest, AGroupRemovedWithOperationsUnderWayFailsOnAllRanks) {
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

TEST(MemberGroupTest, CollectivesStartInOrderAndEndInAny) {
  const auto group = group_of_three();
  EXPECT_EQ(group->start_next(), nullptr);
  for (int i = 0; i < MemberGroup::kMaxActive + 2; ++i) add_collective(*group);
  for (int i = 1; i <= MemberGroup::kMaxActive; ++i) {
    const OperationPtr started = group->start_next();
    ASSERT_NE(started, nullptr);
    EXPECT_EQ(started->sequence(), static_cast<uint64_t>(i));
  }
  EXPECT_EQ(group->start_next(), nullptr);
  // One in the middle ends: the next may start, and only that one.
  group->remove(group->collectives[5]);
  ASSERT_NE(group->start_next(), nullptr);
  EXPECT_EQ(group->start_next(), nullptr);
  EXPECT_EQ(group->unfinished().size(), size_t{MemberGroup::kMaxActive + 1});
}

TEST(MemberGroupTest, NoneStartsBesideOneWithItsTags) {
  const auto group = group_of_three();
  add_collective(*group);
  ASSERT_NE(group->start_next(), nullptr);
  group->last_sequence = kSequences - 1;
  add_collective(*group);
  ASSERT_NE(group->start_next(), nullptr) << "number 2^16 differs from number 1";
  add_collective(*group);
  EXPECT_EQ(group->start_next(), nullptr) << "number 2^16 + 1 does not";
  group->remove(group->collectives.front());
  EXPECT_NE(group->start_next(), nullptr);
}

TEST(MemberGroupTest, AGroupIsFullAtItsBoundAndNotBefore) {
  const auto group = group_of_three();
  for (int i = 1; i < MemberGroup::kMaxQueued; ++i) add_collective(*group);
  EXPECT_FALSE(group->is_full(/*is_point_to_point=*/false));
  const OperationPtr last = add_collective(*group);
  EXPECT_TRUE(group->is_full(/*is_point_to_point=*/false));
  EXPECT_FALSE(group->is_full(/*is_point_to_point=*/true));
  group->remove(last);
  EXPECT_FALSE(group->is_full(/*is_point_to_point=*/false));
}

TEST(MemberGroupTest, WhatIsUnfinishedComesInTheOrderOfSubmissionMessagesLast) {
  const auto group = group_of_three();
  const OperationPtr message = add_receive(*group, 1);
  const OperationPtr first = add_collective(*group), second = add_collective(*group);
  group->start_next();
  const std::vector<OperationPtr> expected = {first, second, message};
  EXPECT_EQ(group->unfinished(), expected);
  group->remove(message);
  EXPECT_EQ(group->unfinished().size(), 2u);
}

}  // namespace
}  // namespace meshrun::ucx
