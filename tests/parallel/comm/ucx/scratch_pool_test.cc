#include "parallel/comm/ucx/engine/execution/scratch_pool.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/parallel/comm/ucx/executor_cases.h"

namespace meshrun::ucx {
namespace {

TEST(ScratchPoolTest, ScratchMemoryIsKeptUpToABound) {
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
  run(ScratchPool::kFreeBytes + 1);
  EXPECT_EQ(heap->used_bytes() - before, kKept);
}

class PoolTest : public ::testing::Test {
 protected:
  // What the pool gives away is freed here.
  size_t freed() {
    const size_t count = actions_.memory.size();
    actions_.memory.clear();
    return count;
  }
  Actions actions_;
  ScratchPool pool_{nullptr, actions_};
};

TEST_F(PoolTest, ABlockIsNobodyElsesUntilItIsGivenBack) {
  Scratch first = pool_.take(1000), second = pool_.take(1000);
  ASSERT_NE(first.data, nullptr);
  ASSERT_NE(first.data.get(), second.data.get());
  const std::byte* const memory = first.data.get();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
  pool_.give_back(std::move(first));
  Scratch third = pool_.take(900);
  EXPECT_EQ(third.data.get(), memory);
  EXPECT_EQ(third.capacity, 1000);
  EXPECT_NE(pool_.take(900).data.get(), memory) << "it is taken";
  EXPECT_EQ(freed(), 0u);
}

TEST_F(PoolTest, TheSmallestBlockThatIsLongEnoughIsTaken) {
  std::vector<Scratch> blocks;
  for (const int64_t bytes : {4000, 1000, 2000}) blocks.push_back(pool_.take(bytes));
  for (Scratch& block : blocks) pool_.give_back(std::move(block));
  EXPECT_EQ(pool_.take(1500).capacity, 2000);
  EXPECT_EQ(pool_.take(1000).capacity, 1000);
  EXPECT_EQ(pool_.take(4001).capacity, 4001);
  EXPECT_EQ(pool_.take(1).capacity, 4000);
}

TEST_F(PoolTest, NothingIsTakenForNoBytes) {
  EXPECT_EQ(pool_.take(0).data, nullptr);
  pool_.give_back({});
  EXPECT_EQ(freed(), 0u);
}

TEST_F(PoolTest, OfTooManyBlocksTheSmallestGoes) {
  std::vector<Scratch> blocks;
  for (int64_t i = 1; i <= static_cast<int64_t>(ScratchPool::kFreeBlocks) + 1; ++i) {
    blocks.push_back(pool_.take(1000 * i));
  }
  for (Scratch& block : blocks) pool_.give_back(std::move(block));
  EXPECT_EQ(freed(), 1u) << "without the lock";
  EXPECT_EQ(pool_.take(500).capacity, 2000);
}

TEST_F(PoolTest, OfTooManyBytesTheLargestBlockGoes) {
  constexpr int64_t kHalf = ScratchPool::kFreeBytes / 2;
  Scratch small = pool_.take(kHalf), large = pool_.take(kHalf + 1);
  pool_.give_back(std::move(large));
  pool_.give_back(std::move(small));
  EXPECT_EQ(freed(), 1u);
  EXPECT_EQ(pool_.take(1).capacity, kHalf);
}

TEST_F(PoolTest, WhatIsTakenDoesNotCountAsFree) {
  constexpr int64_t kBytes = ScratchPool::kFreeBytes / 2 + 1;
  pool_.give_back(pool_.take(kBytes));
  for (int i = 0; i < 4; ++i) pool_.give_back(pool_.take(kBytes));
  EXPECT_EQ(freed(), 0u) << "there is only one block";
}

}  // namespace
}  // namespace meshrun::ucx
