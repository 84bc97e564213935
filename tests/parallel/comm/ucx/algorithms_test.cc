// Every plan of one level against a plain loop (planned_calls.h), its bytes, messages and copies.
#include "parallel/comm/ucx/engine/planning/algorithms.h"

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/parallel/comm/ucx/planned_calls.h"

namespace meshrun::ucx {
namespace {

using namespace planned;

class AlgorithmsTest : public testing::Test {};
class AlgorithmsOfSizeTest : public testing::TestWithParam<int> {};

TEST_P(AlgorithmsOfSizeTest, EveryPlanMatchesTheOracle) {
  const int size = GetParam();
  // Beyond kWindow peers a lane serves several.
  const bool few = size > 9;
  const uint32_t seeds = few ? 1 : 3;
  uint32_t seed = static_cast<uint32_t>(size);
  for (const Operation& operation : operations()) {
    for (Pattern pattern : kPatterns) {
      if (few && pattern != Pattern::kUneven) continue;
      for (Shape shape : kShapes) {
        for (bool one_host : {true, false}) {
          for (uint32_t repeat = 0; repeat < seeds; ++repeat) {
            ++seed;
            Case c{size,     pattern, shape,
                   one_host, seed,    small_place(0, size, one_host, seed).tuning};
            c.in_place = seed % 4 == 0;
            SCOPED_TRACE(testing::Message()
                         << operation.name << ", pattern " << static_cast<int>(pattern)
                         << ", shape " << static_cast<int>(shape) << ", one host " << one_host
                         << ", seed " << seed << ", in place " << c.in_place);
            const Result result = operation.run(c);
            // All-reduce and reduce have a window for each of their two halves.
            EXPECT_LE(result.most_in_flight, 2 * kMessagesInFlight);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, AlgorithmsOfSizeTest,
                         testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 36));

// What the headers can carry goes with them, whatever its pieces look like, and nothing else is
// sent.
TEST_F(AlgorithmsTest, SmallOperationsGoWithTheHeaders) {
  uint32_t seed = 0;
  for (int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    for (const Operation& operation : operations()) {
      for (Pattern pattern : kPatterns) {
        for (Shape shape : kShapes) {
          ++seed;
          Case c{size, pattern, shape, true, seed, small_place(0, size, true, seed).tuning};
          c.in_place = seed % 4 == 0;
          c.headers_carry = true;
          SCOPED_TRACE(testing::Message() << operation.name << " of " << size << ", pattern "
                                          << static_cast<int>(pattern) << ", shape "
                                          << static_cast<int>(shape) << ", seed " << seed);
          const Result result = operation.run(c);
          if (HasFailure()) return;
          const std::string name = operation.name;
          const bool is_short = size <= 4 && name != "barrier" && name != "all_to_all" &&
                                pattern != Pattern::kOneHasAll;
          for (const int64_t messages : result.messages) {
            ASSERT_TRUE(messages == 0 || !is_short) << messages;
          }
        }
      }
    }
  }
}

TEST_F(AlgorithmsTest, NoHeaderCarriesMoreThanAll) {
  for (int size : {2, 3, 5, 8, 64, 1000}) {
    SCOPED_TRACE(size);
    Place place{.rank = size - 1, .size = size, .headers_carry = true};
    const auto goes = [&](int64_t bytes) {
      return !plan_all_reduce(place, bytes / 4, kSumOfFloats).piggyback.slots.empty();
    };
    int64_t longest = 0;
    while (goes(longest + 4)) longest += 4;
    // Ranks whose data one header carries: as many as the last round brings, or the one before it.
    const int most = static_cast<int>(std::bit_floor(static_cast<unsigned>(size - 1)));
    const int carried = std::max(std::min(most, size - most), most / 2);
    EXPECT_EQ(longest, kMostPayload / std::max(carried, 1) / 4 * 4);
    EXPECT_FALSE(goes(0));
    place.headers_carry = false;
    EXPECT_FALSE(goes(4));
  }
}

// The simulation finds what it is there to find: a schedule without one of its dependencies fails.
TEST_F(AlgorithmsTest, AMissingDependencyIsNoticed) {
  int noticed = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Case c{3, Pattern::kEven, Shape::kDim0, true, seed, small_place(0, 3, true, seed).tuning};
    std::mt19937 random(seed);
    std::vector<Rank> ranks;
    for (int r = 0; r < 3; ++r) {
      auto tensor = std::make_shared<Buffer>(Layout{1, 432, 432}, random);
      Schedule schedule = plan_all_reduce(c.place(r), 108, kSumOfFloats);
      if (r == 1) {
        // Results may come before the own contribution is gone.
        for (Step& step : schedule.steps) {
          if (step.kind == StepKind::kSend && step.from.offset >= 288) {
            for (uint32_t k = 0; k < step.successor_count; ++k) {
              --schedule.steps[schedule.successors[step.first_successor + k]].dependencies;
            }
            step.successor_count = 0;
          }
        }
      }
      ranks.push_back({std::move(schedule), {}, {tensor}});
    }
    noticed += Simulation(ranks, seed).run().empty() ? 0 : 1;
  }
  EXPECT_GT(noticed, 0);
}

TEST_F(AlgorithmsTest, AllReduceOfAnyChunkGivesRankOrderBits) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    Case c{1 + static_cast<int>(seed % 5), Pattern::kUneven, Shape::kDim0, true, seed, {}};
    c.tuning.reduce_chunk = 4 * (1 + seed % 40);
    c.tuning.small_all_reduce = seed % 3 == 0 ? 1 << 20 : 0;
    run_all_reduce(c);
    if (HasFailure()) return;
  }
}

TEST_F(AlgorithmsTest, AlongDim0OnlyTheOwnPieceIsCopied) {
  for (int size = 1; size <= 9; ++size) {
    for (Pattern pattern : kPatterns) {
      for (bool one_host : {true, false}) {
        SCOPED_TRACE(testing::Message() << size << " ranks, pattern " << static_cast<int>(pattern));
        const Case c{size, pattern, Shape::kDim0, one_host, 6, {}};
        const auto own = [&](int r) { return piece_bytes(pattern, size, r); };
        const int root_of_gather = 6 / 3 % size;
        const Result gathered = run_all_gather(c), to_root = run_gather_or_scatter(c, true),
                     dealt = run_gather_or_scatter(c, false), exchanged = run_all_to_all(c),
                     scattered = run_reduce_scatter(c), all_reduced = run_all_reduce(c),
                     broadcast = run_broadcast(c);
        for (int r = 0; r < size; ++r) {
          const auto at = static_cast<size_t>(r);
          EXPECT_EQ(gathered.copied[at], own(r));
          EXPECT_EQ(to_root.copied[at], r == root_of_gather ? own(r) : 0);
          EXPECT_EQ(dealt.copied[at], r == root_of_gather ? own(r) : 0);
          EXPECT_EQ(exchanged.copied[at], piece_bytes(pattern, size, r, r));
          EXPECT_EQ(scattered.copied[at], size == 1 ? own(r) : 0);
          EXPECT_EQ(all_reduced.copied[at], 0);
          EXPECT_EQ(broadcast.copied[at], 0);
        }
        Case in_place = c;
        in_place.in_place = true;
        for (int64_t copied : run_all_gather(in_place).copied) EXPECT_EQ(copied, 0);
      }
    }
  }
}

TEST_F(AlgorithmsTest, AlongDim0APieceIsOneMessage) {
  for (int size = 1; size <= 9; ++size) {
    for (Pattern pattern : kPatterns) {
      SCOPED_TRACE(testing::Message() << size << " ranks, pattern " << static_cast<int>(pattern));
      const Case c{size, pattern, Shape::kDim0, true, 0, {}};
      const Result gathered = run_all_gather(c), exchanged = run_all_to_all(c),
                   to_root = run_gather_or_scatter(c, true), scattered = run_reduce_scatter(c);
      for (int r = 0; r < size; ++r) {
        const auto at = static_cast<size_t>(r);
        int64_t full = 0, exchanges = 0;
        for (int s = 0; s < size; ++s) {
          if (s == r) continue;
          full += piece_bytes(pattern, size, s) > 0;
          exchanges += piece_bytes(pattern, size, r, s) > 0;
        }
        const bool has = piece_bytes(pattern, size, r) > 0;
        EXPECT_EQ(gathered.messages[at], has ? size - 1 : 0);
        EXPECT_EQ(to_root.messages[at], has && r != 0 ? 1 : 0);
        EXPECT_EQ(exchanged.messages[at], exchanges);
        EXPECT_EQ(scattered.messages[at], full);
      }
    }
  }
}

TEST_F(AlgorithmsTest, NoMoreBytesAreSentThanTheBound) {
  for (int size = 2; size <= 9; ++size) {
    for (Pattern pattern : kPatterns) {
      SCOPED_TRACE(testing::Message() << size << " ranks, pattern " << static_cast<int>(pattern));
      Case c{size, pattern, Shape::kDim0, false, 0, {}};
      c.tuning.small_all_reduce = c.tuning.small_reduce = c.tuning.small_broadcast = 0;
      int64_t whole = 0;
      for (int r = 0; r < size; ++r) whole += piece_bytes(pattern, size, r);
      const Result scattered = run_reduce_scatter(c);
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(scattered.sent_bytes[static_cast<size_t>(r)],
                  whole - piece_bytes(pattern, size, r));
      }
      const auto total = [](const Result& result) {
        return std::accumulate(result.sent_bytes.begin(), result.sent_bytes.end(), int64_t{0});
      };
      EXPECT_EQ(total(run_all_gather(c)), whole * (size - 1));
      const int64_t tensor = std::max<int64_t>(tensor_bytes(c), 0);
      EXPECT_EQ(total(run_all_reduce(c)), 2 * tensor * (size - 1));
      const Result broadcast = run_broadcast(c);
      EXPECT_EQ(total(broadcast), tensor * (size - 1));
      if (size > 2) {
        // Not (size - 1) times from the root.
        EXPECT_LE(broadcast.sent_bytes[0], 2 * tensor);
      }
      // To the root come the others' contributions to its slice, and their slices.
      EXPECT_EQ(total(run_reduce(c)), tensor * (size - 1) + tensor - tensor / 4 / size * 4);
    }
  }
}

TEST_F(AlgorithmsTest, LongRowsAreMessagesAndAreNotStaged) {
  for (Shape shape : {Shape::kRowsAtReceiver, Shape::kRowsAtSender, Shape::kRowsAtBoth}) {
    Case c{4, Pattern::kUneven, shape, true, 6, {}};
    c.tuning.direct_row = c.row();
    ASSERT_EQ(c.row(), 48);
    const Result result = run_all_to_all(c);
    for (int r = 0; r < 4; ++r) {
      int64_t rows = 0;
      for (int s = 0; s < 4; ++s) rows += s == r ? 0 : piece_bytes(c.pattern, 4, r, s) / c.row();
      EXPECT_EQ(result.messages[static_cast<size_t>(r)], rows);
      EXPECT_EQ(result.copied[static_cast<size_t>(r)], piece_bytes(c.pattern, 4, r, r));
    }
  }
}

TEST_F(AlgorithmsTest, ShortRowsAreStagedWhereTheyLieApartAndOnlyOnce) {
  Case c{4, Pattern::kEven, Shape::kRowsAtReceiver, true, 0, {}};
  const int64_t piece = piece_bytes(c.pattern, 4, 0);
  for (int64_t copied : run_all_gather(c).copied) EXPECT_EQ(copied, 4 * piece);
  c.shape = Shape::kRowsAtSender;
  for (int64_t copied : run_all_to_all(c).copied) EXPECT_EQ(copied, 4 * piece);
  // For each peer, unless it is written where it belongs there, and moved to the output.
  for (int64_t copied : run_all_gather(c).copied) EXPECT_EQ(copied, 4 * piece);
  // Between hosts nobody writes: packed once for all peers.
  c.one_host = false;
  for (int64_t copied : run_all_gather(c).copied) EXPECT_EQ(copied, 2 * piece);
  c.one_host = true;
  // The receiver adds from scratch memory anyway.
  c.shape = Shape::kRowsAtReceiver;
  for (int64_t copied : run_reduce_scatter(c).copied) EXPECT_LE(copied, piece);
}

TEST_F(AlgorithmsTest, ScratchMemoryIsBounded) {
  const int64_t gigabyte = int64_t{1} << 30;
  for (int size : {2, 3, 8, 9, 33, 64}) {
    SCOPED_TRACE(size);
    const Place place{size - 1, size, true, {}};
    const int64_t two_mb = 2 << 20;
    EXPECT_LE(plan_all_reduce(place, gigabyte / 16, kSumOfFloats).scratch_bytes, two_mb);
    EXPECT_LE(plan_reduce(place, gigabyte / 16, 0, kSumOfFloats).scratch_bytes,
              two_mb + (512 << 10));
    const int64_t bytes = 64 << 20, row = 4 << 10;
    const Piece strided{{bytes / row, row, 2 * row}, row};
    const std::vector<Piece> pieces(static_cast<size_t>(size), strided);
    // Two slots for each of the peers at least, in each direction.
    EXPECT_LE(plan_all_to_all(place, pieces, pieces).scratch_bytes,
              2 * std::max<int64_t>(two_mb, 2 * kWindow * (128 << 10)));
    // No slot where nothing is staged.
    const Piece contiguous{{1, bytes, bytes}, bytes};
    const std::vector<Piece> plain(static_cast<size_t>(size), contiguous);
    EXPECT_EQ(plan_all_to_all(place, plain, plain).scratch_bytes, 0);
    EXPECT_EQ(plan_all_gather(place, contiguous, plain, false).scratch_bytes, 0);
    // Packed once for all.
    EXPECT_LE(plan_all_gather(place, {strided.layout, bytes}, plain, false).scratch_bytes, bytes);
  }
}

TEST_F(AlgorithmsTest, TheChoiceFollowsTheTable) {
  const Place two{0, 2, false, {}}, hosts{0, 5, false, {}}, host{0, 5, true, {}};
  EXPECT_EQ(choose_broadcast(two, 1 << 30), BroadcastAlgorithm::kFlat);
  EXPECT_EQ(choose_broadcast(host, 1 << 30), BroadcastAlgorithm::kFlat);
  EXPECT_EQ(choose_broadcast(hosts, (64 << 10) - 1), BroadcastAlgorithm::kBinomial);
  EXPECT_EQ(choose_broadcast(hosts, 64 << 10), BroadcastAlgorithm::kScatterAllGather);
  EXPECT_EQ(choose_all_reduce(host, 8 << 10), AllReduceAlgorithm::kExchange);
  EXPECT_EQ(choose_all_reduce(host, (8 << 10) + 4), AllReduceAlgorithm::kReduceScatterAllGather);
  EXPECT_EQ(choose_reduce(host, 16 << 10), ReduceAlgorithm::kGather);
  EXPECT_EQ(choose_reduce(host, (16 << 10) + 4), ReduceAlgorithm::kReduceScatterGather);
  const std::vector<int64_t> even(5, 1000), skewed = {5000, 0, 0, 0, 0},
                                            level = {100, 101, 99, 100, 100};
  EXPECT_EQ(choose_all_gather(hosts, even), AllGatherAlgorithm::kDirect);
  EXPECT_EQ(choose_all_gather(hosts, level), AllGatherAlgorithm::kDirect);
  EXPECT_EQ(choose_all_gather(hosts, skewed), AllGatherAlgorithm::kRing);
  EXPECT_EQ(choose_all_gather(host, skewed), AllGatherAlgorithm::kDirect);
  EXPECT_EQ(reduce_chunk_bytes(2), 256 << 10);
  EXPECT_EQ(reduce_chunk_bytes(8), (1 << 20) / 7 / 64 * 64);
  EXPECT_EQ(reduce_chunk_bytes(1000), 16 << 10);
}

TEST_F(AlgorithmsTest, NobodyLeavesABarrierBeforeAllHaveCome) {
  // By which rank has heard of which: a send tells all that its sender has heard by then.
  for (int size = 1; size <= 40; ++size) {
    std::vector<uint64_t> known(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) known[static_cast<size_t>(r)] = uint64_t{1} << r;
    std::vector<Schedule> plans;
    for (int r = 0; r < size; ++r) plans.push_back(plan_barrier({r, size, true, {}}));
    for (size_t step = 0; step < plans[0].steps.size(); step += 2) {
      const std::vector<uint64_t> before = known;
      for (size_t r = 0; r < known.size(); ++r) {
        EXPECT_EQ(plans[r].steps[step].dependencies, step / 2);
        known[static_cast<size_t>(plans[r].steps[step].peer)] |= before[r];
      }
    }
    for (uint64_t ranks : known) EXPECT_EQ(ranks, (uint64_t{1} << size) - 1) << size;
  }
}

}  // namespace
}  // namespace meshrun::ucx
