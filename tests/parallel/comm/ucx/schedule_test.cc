#include "parallel/comm/ucx/engine/planning/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "parallel/base/strided_span.h"
#include "parallel/comm/ucx/engine/planning/schedule_cache.h"
#include "parallel/comm/ucx/engine/planning/shared_scratch.h"

namespace meshrun::ucx {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr Region kIn{Space::kInput, 0, 0, 8};
constexpr Region kOut{Space::kOutput, 0, 0, 8};

std::vector<StepId> successors(const Schedule& schedule, StepId step) {
  const auto begin = schedule.successors.begin() + schedule.steps[step].first_successor;
  return {begin, begin + schedule.steps[step].successor_count};
}

// Receives from rank 1 and sends the sum of that and its own to rank 2.
Schedule small_schedule() {
  ScheduleBuilder builder(3);
  const Region slot = builder.scratch(8);
  const Region staging{Space::kScratch, 0, 8, 8};  // of the padding
  const StepId received = builder.receive(1, slot, {}, staging);
  const StepId added = builder.reduce(std::vector{kIn, slot}, kOut, std::vector{received});
  builder.send(2, kOut, {added});
  builder.copy(kIn, kOut, {received});
  return std::move(builder).finish({{ReductionOp::kSum, DType::kFloat64}});
}

TEST(ScheduleTest, MessagesAreNumberedByPeerAndDirection) {
  ScheduleBuilder builder(3);
  builder.send(1, kIn);
  builder.send(2, kIn);
  builder.send(1, kIn);
  builder.receive(1, kOut);
  const Schedule schedule = std::move(builder).finish();
  std::vector<uint32_t> numbers;
  for (const Step& step : schedule.steps) numbers.push_back(step.message);
  EXPECT_THAT(numbers, ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(schedule.sent, ElementsAre(0, 2, 1));
  EXPECT_THAT(schedule.received, ElementsAre(0, 1, 0));
  EXPECT_EQ(schedule.most_messages, 2u);
}

TEST(ScheduleTest, StepsKnowWhatWaitsForThem) {
  const Schedule schedule = small_schedule();
  EXPECT_THAT(successors(schedule, 0), UnorderedElementsAre(1, 3));
  EXPECT_THAT(successors(schedule, 1), ElementsAre(2));
  EXPECT_THAT(successors(schedule, 2), ElementsAre());
  EXPECT_EQ(schedule.steps[0].dependencies, 0u);
  EXPECT_EQ(schedule.steps[3].dependencies, 1u);
  EXPECT_EQ(schedule.copied_bytes(), 16) << "staged, and the copy";
}

TEST(ScheduleTest, ScratchIsAligned) {
  ScheduleBuilder builder(1);
  EXPECT_EQ(builder.scratch(1).offset, 0);
  EXPECT_EQ(builder.scratch(65).offset, 64);
  EXPECT_EQ(builder.scratch(8).offset, 192);
}

TEST(ScheduleTest, JoinedSchedulesShareNothing) {
  const Schedule joined = join(small_schedule(), small_schedule(), 1, 1);
  ASSERT_EQ(joined.steps.size(), 8u);
  EXPECT_THAT(successors(joined, 4), UnorderedElementsAre(5, 7));
  EXPECT_EQ(joined.steps[4].message, 1u);
  EXPECT_EQ(joined.steps[4].to.offset, 64);
  EXPECT_EQ(joined.steps[5].reduction, 1u);
  EXPECT_EQ(joined.steps[5].to.piece, 1);
  EXPECT_EQ(joined.steps[6].message, 1u);
  EXPECT_EQ(joined.steps[6].from.piece, 1);
  const uint32_t source = joined.steps[5].first_source;
  EXPECT_EQ(joined.sources[source].piece, 1);
  EXPECT_EQ(joined.sources[source + 1].offset, 64);
  EXPECT_EQ(joined.scratch_bytes, 128);
  EXPECT_EQ(joined.steps[0].staging.offset, 8);
  EXPECT_EQ(joined.steps[4].staging.offset, 72);
  EXPECT_EQ(joined.reductions.size(), 2u);
  EXPECT_THAT(joined.sent, ElementsAre(0, 0, 2));
  EXPECT_THAT(joined.received, ElementsAre(0, 2, 0));
  EXPECT_EQ(joined.most_messages, 2u);
}

// Receives through scratch memory what it sends on.
Schedule part(int64_t scratch) {
  ScheduleBuilder builder(2);
  const Region slot = builder.scratch(scratch);
  const StepId received = builder.receive(1, slot);
  builder.send(1, slot, {received});
  builder.send(1, {Space::kInput, 0, 0, scratch});
  return std::move(builder).finish();
}

// Whether `later` runs only after `earlier`.
bool waits_for(const Schedule& schedule, StepId later, StepId earlier) {
  std::vector<bool> is_later(schedule.steps.size());
  is_later[earlier] = true;
  // A step waits for earlier ones only.
  for (StepId step = earlier; step < later; ++step) {
    if (!is_later[step]) continue;
    for (const StepId next : successors(schedule, step)) is_later[next] = true;
  }
  return is_later[later];
}

// Steps that send or receive, by part.
std::vector<StepId> messages(const Schedule& schedule) {
  std::vector<StepId> ids;
  for (StepId id = 0; id < schedule.steps.size(); ++id) {
    if (schedule.steps[id].kind != StepKind::kCopy) ids.push_back(id);
  }
  return ids;
}

Schedule joined_parts(const std::vector<int64_t>& sizes) {
  Schedule all = part(sizes[0]);
  for (size_t i = 1; i < sizes.size(); ++i) {
    all = join(std::move(all), part(sizes[i]), static_cast<int32_t>(i), 0);
  }
  return all;
}

TEST(SharedScratchTest, ManyPartsNeedNoMoreThanAFew) {
  constexpr int64_t kPart = 1 << 20;
  constexpr size_t kParts = 400, kAtOnce = kJoinedScratch / kPart;
  const Schedule all = joined_parts(std::vector<int64_t>(kParts, kPart));
  EXPECT_EQ(all.scratch_bytes, kJoinedScratch);
  const std::vector<StepId> ids = messages(all);
  ASSERT_EQ(ids.size(), 3 * kParts);
  for (size_t i = 0; i < kParts; ++i) {
    const Step& received = all.steps[ids[3 * i]];
    EXPECT_EQ(received.to.offset, static_cast<int64_t>(i % kAtOnce) * kPart);
    EXPECT_EQ(received.message, i);
    // The first ones all at once, each later one after whoever had its memory; what needs none, at
    // once.
    EXPECT_EQ(received.dependencies, i < kAtOnce ? 0u : 1u);
    EXPECT_EQ(all.steps[ids[3 * i + 2]].dependencies, 0u);
    if (i < kAtOnce) continue;
    EXPECT_TRUE(waits_for(all, ids[3 * i], ids[3 * (i - kAtOnce) + 1]));
    EXPECT_FALSE(waits_for(all, ids[3 * i], ids[3 * (i - kAtOnce) + 3]));
  }
}

// With parts of any size, a part that overlaps an earlier one waits for it, and all steps run.
TEST(SharedScratchTest, PartsThatOverlapRunOneAfterTheOther) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> sizes;
    for (int i = 0; i < 12; ++i) {
      sizes.push_back(random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % kJoinedScratch));
    }
    const Schedule all = joined_parts(sizes);
    EXPECT_LE(all.scratch_bytes, kJoinedScratch);
    const std::vector<StepId> ids = messages(all);
    for (size_t later = 0; later < sizes.size(); ++later) {
      const Region& own = all.steps[ids[3 * later]].to;
      for (size_t earlier = 0; earlier < later; ++earlier) {
        const Region& other = all.steps[ids[3 * earlier]].to;
        if (own.offset >= other.offset + other.bytes || other.offset >= own.offset + own.bytes) {
          continue;
        }
        EXPECT_TRUE(waits_for(all, ids[3 * later], ids[3 * earlier + 1]))
            << later << " beside " << earlier << " in round " << round;
      }
    }
    // In the order of the list, each after those that it waits for.
    std::vector<uint32_t> left;
    for (const Step& step : all.steps) left.push_back(step.dependencies);
    std::vector<StepId> ready;
    for (StepId id = 0; id < left.size(); ++id) {
      if (left[id] == 0) ready.push_back(id);
    }
    for (size_t next = 0; next < ready.size(); ++next) {
      for (const StepId id : successors(all, ready[next])) {
        if (--left[id] == 0) ready.push_back(id);
      }
    }
    EXPECT_EQ(ready.size(), all.steps.size());
  }
}

TEST(SharedScratchTest, APartThatNeedsMoreHasIt) {
  const Schedule all = joined_parts({64, 3 * kJoinedScratch, 128, 2 * kJoinedScratch});
  EXPECT_EQ(all.scratch_bytes, 3 * kJoinedScratch);
  const std::vector<StepId> ids = messages(all);
  EXPECT_TRUE(waits_for(all, ids[3], ids[1]));
  EXPECT_TRUE(waits_for(all, ids[6], ids[4]));
}

using Key = std::vector<int64_t>;

TEST(ScheduleCacheTest, AKnownKeyIsNotBuiltAgain) {
  ScheduleCache cache;
  int built = 0;
  const auto build = [&] {
    ++built;
    return small_schedule();
  };
  const auto first = cache.get(Key{1, 2, 3}, build);
  EXPECT_EQ(cache.get(Key{1, 2, 3}, build), first);
  EXPECT_EQ(built, 1);
  EXPECT_NE(cache.get(Key{1, 2}, build), first);
  EXPECT_NE(cache.get(Key{1, 2, 4}, build), first);
  EXPECT_EQ(built, 3);
}

TEST(ScheduleCacheTest, TheLeastRecentlyUsedGoesFirst) {
  ScheduleCache cache;
  int built = 0;
  const auto get = [&](int64_t key) {
    return cache.get(Key{key}, [&] {
      ++built;
      return Schedule{};
    });
  };
  for (int64_t key = 0; key < ScheduleCache::kEntries; ++key) get(key);
  get(0);
  get(1000);  // takes the place of 1
  EXPECT_EQ(built, ScheduleCache::kEntries + 1);
  get(0);
  get(2);
  EXPECT_EQ(built, ScheduleCache::kEntries + 1);
  get(1);
  EXPECT_EQ(built, ScheduleCache::kEntries + 2);
}

TEST(StridedSpanTest, AnyPartIsPackedAndUnpackedInRowOrder) {
  for (const Layout layout : {Layout{1, 30, 0}, Layout{5, 6, 6}, Layout{5, 6, 11}, Layout{7, 4, 9},
                              Layout{3, 8, 20}, Layout{2, 16, 17}, Layout{30, 1, 3}}) {
    std::vector<std::byte> memory(120);
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i);
    std::vector<std::byte> all;
    for (int64_t row = 0; row < layout.rows; ++row) {
      for (int64_t i = 0; i < layout.row_bytes; ++i) {
        all.push_back(memory[static_cast<size_t>(row * layout.pitch + i)]);
      }
    }
    for (int64_t begin = 0; begin <= layout.bytes(); ++begin) {
      for (int64_t end = begin; end <= layout.bytes(); ++end) {
        std::vector<std::byte> packed(static_cast<size_t>(end - begin));
        pack({memory.data(), layout}, begin, packed);
        ASSERT_TRUE(std::equal(packed.begin(), packed.end(), all.begin() + begin));
        std::vector<std::byte> blank(memory.size(), std::byte{0xee});
        unpack({blank.data(), layout}, begin, packed);
        size_t written = 0;
        for (size_t i = 0; i < blank.size(); ++i) {
          if (blank[i] == std::byte{0xee}) continue;
          ASSERT_EQ(blank[i], memory[i]);
          ++written;
        }
        ASSERT_EQ(written, packed.size());
      }
    }
  }
}

TEST(StridedSpanTest, RowsOfOneShapeAreCopiedToRowsOfAnother) {
  std::vector<int32_t> from(64), to(64, -1);
  std::iota(from.begin(), from.end(), 0);
  // 6 rows of 2 from rows of 5; to 3 rows of 4, 10 apart.
  const ConstStridedSpan source(reinterpret_cast<const std::byte*>(from.data()), {6, 8, 20});
  copy(source, 0, {reinterpret_cast<std::byte*>(to.data()), {3, 16, 40}}, 0, 48);
  EXPECT_THAT(std::vector(to.begin(), to.begin() + 14),
              ElementsAre(0, 1, 5, 6, -1, -1, -1, -1, -1, -1, 10, 11, 15, 16));
  EXPECT_THAT(std::vector(to.begin() + 20, to.begin() + 25), ElementsAre(20, 21, 25, 26, -1));
}

// Rows of all lengths that are copied in a way of their own.
TEST(StridedSpanTest, RowsArriveWhateverTheirLength) {
  for (const int64_t row :
       {1, 4, 8, 16, 32, 63, 64, 65, 1000, 1024, 1500, 2048, 5000, 8192, 9000}) {
    for (const Prefetch prefetch : {Prefetch::kRows, Prefetch::kAll}) {
      const Layout from{7, row, row + 5}, to{7, row, row + 70};
      std::vector<std::byte> source(from.extent()), target(to.extent(), std::byte{0xee});
      for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 % 251);
      std::vector<std::byte> expected = target;
      for (int64_t r = 0; r < from.rows; ++r) {
        std::copy_n(source.begin() + r * from.pitch, row, expected.begin() + r * to.pitch);
      }
      copy({source.data(), from}, 0, {target.data(), to}, 0, from.bytes(), prefetch);
      EXPECT_EQ(target, expected) << row;
    }
  }
}

TEST(StridedSpanTest, ACopyThatPrefetchesIsTheSame) {
  std::vector<std::byte> from(9000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7);
  const ConstStridedSpan source = contiguous(from.data(), 9000);
  for (const int64_t at : {0, 1, 63}) {
    for (const int64_t bytes : {0, 1, 62, 64, 3071, 3072, 4097, 8900}) {
      std::vector<std::byte> to(9000, std::byte{0xee}), expected = to;
      copy(source, 5, contiguous(to.data(), 9000), at, bytes, Prefetch::kAll);
      std::copy_n(from.begin() + 5, bytes, expected.begin() + at);
      EXPECT_EQ(to, expected) << at << " " << bytes;
    }
  }
}

}  // namespace
}  // namespace meshrun::ucx
