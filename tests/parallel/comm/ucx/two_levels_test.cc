// Plans for several hosts with several ranks each: what one level's are held to (algorithms_test),
// sums in the brackets of two levels, and the bytes that cross between hosts.
#include "parallel/comm/ucx/engine/planning/two_levels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/parallel/comm/ucx/planned_calls.h"

namespace meshrun::ucx {
namespace {

using namespace planned;

std::shared_ptr<const Hosts> hosts_of(const std::vector<int>& numbers) {
  return std::make_shared<const Hosts>(numbers);
}

const std::vector<std::vector<int>> kWorlds = {
    {0, 0, 1},
    {0, 1, 1},
    {0, 0, 1, 1},
    {0, 1, 0, 1},
    {7, 3, 3, 7, 7},
    {0, 1, 1, 2, 2, 2},
    {0, 0, 0, 1, 1, 1},
    {2, 0, 1, 2, 0, 2, 1, 1},
    {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4},
};
std::string words(const std::vector<int>& world) {
  std::string text;
  for (int host : world) text += std::to_string(host);
  return text;
}

Case case_of(const std::vector<int>& world, Pattern pattern, Shape shape, uint32_t seed) {
  const int size = static_cast<int>(world.size());
  Case c{size, pattern, shape, false, seed, small_place(0, size, false, seed).tuning};
  c.tuning.messages = std::max<int64_t>(c.tuning.messages, 4 * size);
  c.hosts = hosts_of(world);
  return c;
}

TEST(HostsTest, AreNumberedByTheirFirstRanks) {
  const Hosts hosts(std::vector<int>{7, 3, 3, 7, 5});
  EXPECT_EQ(hosts.count(), 3);
  EXPECT_EQ(hosts.most_ranks(), 2);
  EXPECT_TRUE(hosts.has_two_levels());
  const int host_of[] = {0, 1, 1, 0, 2}, place_of[] = {0, 0, 1, 1, 0};
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(hosts.host_of(rank), host_of[rank]);
    EXPECT_EQ(hosts.place_of(rank), place_of[rank]);
  }
  EXPECT_EQ(std::vector<int>(hosts.ranks(0).begin(), hosts.ranks(0).end()),
            (std::vector<int>{0, 3}));
  EXPECT_FALSE(Hosts(std::vector<int>{4, 4, 4}).has_two_levels());
  EXPECT_TRUE(Hosts(std::vector<int>{4, 4, 4}).is_one());
  EXPECT_FALSE(Hosts(std::vector<int>{1, 2, 3}).has_two_levels());
  EXPECT_FALSE(Hosts(std::vector<int>{1, 2, 3}).is_one());
  EXPECT_TRUE(Hosts().is_one());
}

class TwoLevelsTest : public testing::TestWithParam<std::vector<int>> {};

TEST_P(TwoLevelsTest, EveryPlanMatchesTheOracle) {
  uint32_t seed = 100;
  for (const Operation& operation : operations()) {
    for (Pattern pattern : kPatterns) {
      for (Shape shape : kShapes) {
        for (int repeat = 0; repeat < 4; ++repeat) {
          Case c = case_of(GetParam(), pattern, shape, ++seed);
          c.in_place = seed % 4 == 0;
          if (repeat == 3) c.tuning.small_all_reduce = c.tuning.small_broadcast = 0;
          c.headers_carry = repeat == 2;
          SCOPED_TRACE(testing::Message()
                       << operation.name << ", pattern " << static_cast<int>(pattern) << ", shape "
                       << static_cast<int>(shape) << ", seed " << seed);
          const Result result = operation.run(c);
          EXPECT_LE(result.most_in_flight, 2 * kMessagesInFlight);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(TwoLevelsTest, NoMoreCrossesBetweenHostsThanMust) {
  for (Pattern pattern : kPatterns) {
    SCOPED_TRACE(static_cast<int>(pattern));
    Case c = case_of(GetParam(), pattern, Shape::kDim0, 3);
    c.tuning.small_all_reduce = c.tuning.small_broadcast = 0;
    const int64_t others = c.hosts->count() - 1;
    int64_t whole = 0;
    std::vector<int64_t> of_host(static_cast<size_t>(c.hosts->count()));
    for (int r = 0; r < c.size; ++r) {
      const int64_t bytes = piece_bytes(pattern, c.size, r);
      whole += bytes;
      of_host[static_cast<size_t>(c.hosts->host_of(r))] += bytes;
    }
    const Result gathered = run_all_gather(c), scattered = run_reduce_scatter(c);
    for (size_t host = 0; host < of_host.size(); ++host) {
      EXPECT_EQ(gathered.bytes_in[host], whole - of_host[host]);
      EXPECT_EQ(gathered.bytes_out[host], others * of_host[host]);
      EXPECT_EQ(scattered.bytes_in[host], others * of_host[host]);
      EXPECT_EQ(scattered.bytes_out[host], whole - of_host[host]);
    }
    const int64_t tensor = std::max<int64_t>(tensor_bytes(c), 0);
    const auto total = [](const std::vector<int64_t>& bytes) {
      return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
    };
    const Result reduced = run_all_reduce(c);
    EXPECT_EQ(total(reduced.bytes_in), 2 * others * tensor);
    for (int64_t bytes : reduced.bytes_out) {
      // An equal share of the elements for each host.
      EXPECT_NEAR(static_cast<double>(bytes),
                  2.0 * static_cast<double>(others * tensor) / static_cast<double>(others + 1),
                  8.0 * static_cast<double>(others + 1));
    }
    const Result broadcast = run_broadcast(c);
    const int64_t sent = total(broadcast.bytes_in);
    EXPECT_EQ(sent % std::max<int64_t>(others, 1), 0);
    for (int host = 0; host < c.hosts->count(); ++host) {
      // Each host gets the tensor once; the root's gets nothing.
      const int64_t bytes = broadcast.bytes_in[static_cast<size_t>(host)];
      EXPECT_EQ(bytes, host == c.hosts->host_of(3 % c.size) ? 0 : sent / others);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, TwoLevelsTest, testing::ValuesIn(kWorlds),
                         [](const auto& info) { return "On" + words(info.param); });

TEST(TwoLevelSumsTest, OfAnyLengthHaveTheSameBrackets) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Case c = case_of(kWorlds[seed % kWorlds.size()], Pattern::kUneven, Shape::kDim0, seed);
    c.tuning.reduce_chunk = 4 * (1 + seed % 40);
    c.tuning.small_all_reduce = seed % 3 == 0 ? 1 << 20 : 0;
    c.tuning.messages = kMaxMessages;
    c.headers_carry = seed % 4 == 0;
    run_all_reduce(c);
    if (HasFailure()) return;
  }
}

// All ranks' tensors of 16 bits after an all_reduce in two levels.
std::vector<std::vector<uint16_t>> all_reduced(const std::vector<std::vector<uint16_t>>& tensors,
                                               const Case& c, const Reduction& reduction,
                                               Result* result = nullptr) {
  std::mt19937 random(c.seed);
  std::vector<planned::Rank> ranks;
  for (size_t r = 0; r < tensors.size(); ++r) {
    const auto bytes = static_cast<int64_t>(tensors[r].size() * 2);
    auto tensor = std::make_shared<Buffer>(Layout{1, bytes, bytes}, random);
    std::vector<std::byte> content(static_cast<size_t>(bytes));
    std::memcpy(content.data(), tensors[r].data(), content.size());
    tensor->write(content);
    ranks.push_back(
        {plan_all_reduce(c.place(static_cast<int>(r)), bytes / 2, reduction), {}, {tensor}});
  }
  const Result got = Runner(c).run(ranks);
  if (result != nullptr) *result = got;
  std::vector<std::vector<uint16_t>> all;
  for (const planned::Rank& rank : ranks) {
    const std::vector<std::byte> content = rank.outputs[0]->read();
    all.emplace_back(content.size() / 2);
    std::memcpy(all.back().data(), content.data(), content.size());
  }
  return all;
}

float value(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }
uint16_t rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::vector<std::vector<uint16_t>> random_bf16(int ranks, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<uint16_t>> tensors(static_cast<size_t>(ranks));
  for (auto& tensor : tensors) {
    for (size_t i = 0; i < count; ++i) {
      tensor.push_back(rounded(static_cast<float>(random() % 20001) * 1e-3f - 10.0f));
    }
  }
  return tensors;
}

// A part of a coalesced call has its share of the messages, which depends on the other parts.
TEST(TwoLevelSumsTest, FewMessagesChangeNoBitOfAnAllReduceAndNoByteBetweenHosts) {
  for (const auto& world : kWorlds) {
    SCOPED_TRACE(words(world));
    const auto tensors = random_bf16(static_cast<int>(world.size()), 3001, 11);
    Case c = case_of(world, Pattern::kEven, Shape::kDim0, 6);
    c.tuning.small_all_reduce = 0;
    const Reduction sum{ReductionOp::kSum, DType::kBFloat16, Accumulate::kWide, c.size};
    c.tuning.messages = kMaxMessages;
    Result many;
    const auto expected = all_reduced(tensors, c, sum, &many);
    for (int64_t messages = 1; messages <= c.hosts->count() + 1; ++messages) {
      SCOPED_TRACE(messages);
      c.tuning.messages = messages;
      Result few;
      EXPECT_EQ(all_reduced(tensors, c, sum, &few), expected);
      EXPECT_EQ(std::accumulate(few.bytes_in.begin(), few.bytes_in.end(), int64_t{0}),
                std::accumulate(many.bytes_in.begin(), many.bytes_in.end(), int64_t{0}));
      for (int rank = 0; rank < c.size; ++rank) {
        EXPECT_LE(plan_all_reduce(c.place(rank), 3001, sum).most_messages, messages);
      }
    }
  }
}

// In float32, rounded once; or in their own type, where each host's sum is rounded.
void expect_sums_of_halves(Accumulate accumulate) {
  const bool in_levels = accumulate == Accumulate::kWideInLevels;
  enum class Way { kLarge, kSmall, kWithHeaders };
  for (const Way way : {Way::kLarge, Way::kSmall, Way::kWithHeaders}) {
    for (const auto& world : kWorlds) {
      SCOPED_TRACE(words(world));
      Case c = case_of(world, Pattern::kEven, Shape::kDim0, 5);
      c.tuning.small_all_reduce = way == Way::kLarge ? 0 : 1 << 20;
      c.headers_carry = way == Way::kWithHeaders;
      constexpr size_t kCount = 301;
      const auto tensors = random_bf16(c.size, kCount, 7);
      for (ReductionOp op : {ReductionOp::kSum, ReductionOp::kAverage, ReductionOp::kMax}) {
        Result result;
        const Schedule plan =
            plan_all_reduce(c.place(0), kCount, {op, DType::kBFloat16, accumulate, c.size});
        ASSERT_EQ(plan.piggyback.slots.empty(), way != Way::kWithHeaders);
        const auto got =
            all_reduced(tensors, c, {op, DType::kBFloat16, accumulate, c.size}, &result);
        for (size_t i = 0; i < kCount; ++i) {
          float total = 0;
          for (int host = 0; host < c.hosts->count(); ++host) {
            float partial = 0;
            bool first = true;
            for (int rank : c.hosts->ranks(host)) {
              const float x = value(tensors[static_cast<size_t>(rank)][i]);
              partial = first ? x : op == ReductionOp::kMax ? std::max(partial, x) : partial + x;
              first = false;
            }
            if (in_levels) partial = value(rounded(partial));
            total = host == 0                 ? partial
                    : op == ReductionOp::kMax ? std::max(total, partial)
                                              : total + partial;
          }
          if (op == ReductionOp::kAverage) total /= static_cast<float>(c.size);
          for (const auto& tensor : got) ASSERT_EQ(tensor[i], rounded(total)) << i;
        }
        if (way != Way::kLarge) continue;
        // Partials have four bytes, or two as results have; nothing is rounded of a maximum.
        const int64_t others = c.hosts->count() - 1;
        EXPECT_EQ(
            std::accumulate(result.bytes_in.begin(), result.bytes_in.end(), int64_t{0}),
            others * static_cast<int64_t>(kCount) * (op == ReductionOp::kMax || in_levels ? 4 : 6));
      }
    }
  }
}

TEST(TwoLevelSumsTest, HalvesTravelInFloat32AndAreRoundedAndDividedOnce) {
  expect_sums_of_halves(Accumulate::kWide);
}

TEST(TwoLevelSumsTest, HalvesMayBeRoundedOnEachHost) {
  expect_sums_of_halves(Accumulate::kWideInLevels);
}

TEST(TwoLevelSumsTest, HalvesWithoutFloat32AreRoundedAfterEachAddition) {
  Case c = case_of({0, 0, 1, 1, 1}, Pattern::kEven, Shape::kDim0, 5);
  const auto tensors = random_bf16(5, 99, 8);
  const auto got =
      all_reduced(tensors, c, {ReductionOp::kSum, DType::kBFloat16, Accumulate::kNative, 5});
  const auto add = [](uint16_t a, uint16_t b) { return rounded(value(a) + value(b)); };
  for (size_t i = 0; i < 99; ++i) {
    const uint16_t expected = add(add(tensors[0][i], tensors[1][i]),
                                  add(add(tensors[2][i], tensors[3][i]), tensors[4][i]));
    for (const auto& tensor : got) ASSERT_EQ(tensor[i], expected) << i;
  }
}

TEST(TwoLevelSumsTest, InRankOrderWhereThatIsAskedForAndWhereMessagesAreFew) {
  Case c = case_of({0, 1, 0, 1}, Pattern::kEven, Shape::kDim0, 5);
  Place place = c.place(0);
  EXPECT_TRUE(has_two_levels(place));
  EXPECT_TRUE(all_reduces_in_two_levels(place));
  EXPECT_TRUE(reduce_scatters_in_two_levels(place));
  place.in_rank_order = true;
  EXPECT_TRUE(has_two_levels(place));
  EXPECT_FALSE(all_reduces_in_two_levels(place));
  EXPECT_FALSE(reduce_scatters_in_two_levels(place));
  EXPECT_EQ(plan_all_reduce(place, 1000, kSumOfFloats).reductions.size(), 1u);
  place.in_rank_order = false;
  place.tuning.messages = 15;
  EXPECT_FALSE(has_two_levels(place));
  EXPECT_TRUE(all_reduces_in_two_levels(place));
  place.tuning.messages = 16;
  EXPECT_TRUE(has_two_levels(place));
  // On one host, and on hosts of one rank, nothing changes.
  for (const std::vector<int>& world :
       {std::vector<int>{0, 0, 0, 0}, std::vector<int>{0, 1, 2, 3}}) {
    const Hosts hosts(world);
    EXPECT_FALSE(has_two_levels({0, 4, hosts.is_one(), {}, &hosts}));
  }
}

TEST(TwoLevelSumsTest, ScratchMemoryIsBounded) {
  for (const auto& world : kWorlds) {
    SCOPED_TRACE(words(world));
    const auto hosts = hosts_of(world);
    const int size = static_cast<int>(world.size());
    const int64_t bytes = 256 << 20;
    for (int rank = 0; rank < size; ++rank) {
      const Place place{rank, size, false, {}, hosts.get()};
      EXPECT_LE(plan_all_reduce(place, bytes / 4, kSumOfFloats).scratch_bytes, 8 << 20);
      const Piece piece{{1, bytes / size / 4 * 4, bytes / size / 4 * 4}, bytes / size / 4 * 4};
      const std::vector<Piece> pieces(static_cast<size_t>(size), piece);
      EXPECT_LE(plan_reduce_scatter(place, pieces, piece, kSumOfFloats).scratch_bytes, 8 << 20);
      EXPECT_EQ(plan_all_gather(place, piece, pieces, false).scratch_bytes, 0);
      EXPECT_EQ(plan_broadcast(place, piece, 1).scratch_bytes, 0);
    }
  }
}

TEST(TwoLevelSumsTest, AllRanksOfAHostTakePart) {
  const auto hosts = hosts_of({0, 0, 0, 0, 1, 1, 1, 1});
  const int64_t bytes = 1 << 20;
  const Piece whole{{1, bytes, bytes}, bytes}, eighth{{1, bytes / 8, bytes / 8}, bytes / 8};
  const std::vector<Piece> pieces(8, eighth);
  for (int rank = 0; rank < 8; ++rank) {
    SCOPED_TRACE(rank);
    const Place place{rank, 8, false, {}, hosts.get()};
    const auto crosses = [&](const Schedule& schedule) {
      int64_t sum = 0;
      for (const Step& step : schedule.steps) {
        const bool moves = step.kind == StepKind::kSend || step.kind == StepKind::kReceive;
        if (moves && hosts->host_of(step.peer) != hosts->host_of(rank)) {
          sum += step.kind == StepKind::kSend ? step.from.bytes : step.to.bytes;
        }
      }
      return sum;
    };
    EXPECT_EQ(crosses(plan_all_reduce(place, bytes / 4, kSumOfFloats)), bytes / 2);
    EXPECT_EQ(crosses(plan_all_gather(place, eighth, pieces, false)), bytes / 4);
    EXPECT_EQ(crosses(plan_reduce_scatter(place, pieces, eighth, kSumOfFloats)), bytes / 4);
    // From the root, to the four of the other host.
    const int64_t brought = crosses(plan_broadcast(place, whole, 0));
    EXPECT_EQ(brought, rank == 0 ? bytes : rank < 4 ? 0 : bytes / 4);
  }
}

}  // namespace
}  // namespace meshrun::ucx
