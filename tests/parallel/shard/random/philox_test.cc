#include "parallel/shard/random/philox.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "parallel/shard/random/box_runs.h"

namespace meshrun {
namespace {

// kat_vectors of Random123.
TEST(PhiloxTest, GivesTheKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(WordSequenceTest, IsMadeOfBlocksOfTheCounter) {
  const WordSequence sequence{0x299f31d0'a4093822, 0x03707344'13198a2e};
  std::vector<uint32_t> words(4);
  sequence.read(0x85a308d3'243f6a88 * 4, 4, words.data());  // the counter loses its upper two bits
  const PhiloxBlock block = philox({0x243f6a88, 0x85a308d3 & 0x3fffffff, 0x13198a2e, 0x03707344},
                                   {0xa4093822, 0x299f31d0});
  EXPECT_EQ(words, std::vector<uint32_t>(block.begin(), block.end()));
}

TEST(WordSequenceTest, AnyPartIsAPartOfTheWhole) {
  const WordSequence sequence{7, 3};
  std::vector<uint32_t> whole(400);
  sequence.read(0, whole.size(), whole.data());
  for (const size_t begin : {0, 1, 2, 3, 5, 63, 64, 67, 130}) {
    for (const size_t count : {1, 3, 4, 61, 64, 65, 200}) {
      std::vector<uint32_t> part(count);
      sequence.read(begin, count, part.data());
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(begin)))
          << begin << " " << count;
    }
  }
}

TEST(BoxRunsTest, VisitsEachElementOnceWhereItLies) {
  const std::vector<int64_t> global = {3, 4, 5, 2};
  const std::vector<int64_t> offsets = {1, 0, 2, 0};
  const std::vector<int64_t> sizes = {2, 4, 3, 2};
  const BoxRuns runs(global, offsets, sizes);
  ASSERT_EQ(runs.num_elements(), 48);
  std::map<int64_t, uint64_t> seen;
  for (const auto& [begin, end] : {std::pair{0, 7}, std::pair{7, 30}, std::pair{30, 48}}) {
    runs.visit(begin, end, [&](int64_t index, uint64_t at, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        EXPECT_TRUE(seen.emplace(index + i, at + static_cast<uint64_t>(i)).second);
      }
    });
  }
  ASSERT_EQ(seen.size(), 48U);
  int64_t index = 0;
  for (int64_t a = 0; a < 2; ++a) {
    for (int64_t b = 0; b < 4; ++b) {
      for (int64_t c = 0; c < 3; ++c) {
        for (int64_t d = 0; d < 2; ++d, ++index) {
          EXPECT_EQ(seen[index], static_cast<uint64_t>((((a + 1) * 4 + b) * 5 + c + 2) * 2 + d));
        }
      }
    }
  }
}

TEST(BoxRunsTest, HasARunOfOneForNoDimensions) {
  const BoxRuns runs({}, {}, {});
  EXPECT_EQ(runs.num_elements(), 1);
  int visits = 0;
  runs.visit(0, 1, [&](int64_t index, uint64_t at, int64_t length) {
    ++visits;
    EXPECT_EQ(index, 0);
    EXPECT_EQ(at, 0U);
    EXPECT_EQ(length, 1);
  });
  EXPECT_EQ(visits, 1);
}

}  // namespace
}  // namespace meshrun
