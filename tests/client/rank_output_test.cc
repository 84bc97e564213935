#include "client/render/rank_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/text.h"

namespace meshrun::client {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RankOutputTest : public ::testing::Test {
 protected:
  LineSink Sink() {
    return [this](const RankLine& line) {
      seen_.push_back(FormatRanks(line.ranks) + (line.is_stderr ? "! " : ": ") + line.text);
    };
  }
  std::vector<std::string> seen_;
};

TEST_F(RankOutputTest, BytesBecomeLinesByRankAndStream) {
  LineAssembler assembler(Sink());
  assembler.Append(0, false, "hel");
  assembler.Append(1, false, "other\n");
  assembler.Append(0, true, "warning\n");
  assembler.Append(0, false, "lo\nworld\nrest");
  EXPECT_THAT(seen_, ElementsAre("1: other", "0! warning", "0: hello", "0: world"));
  assembler.Flush();
  EXPECT_EQ(seen_.back(), "0: rest");
}

TEST_F(RankOutputTest, ALineThatRedrawsItselfArrivesAsItsLastForm) {
  LineAssembler assembler(Sink());
  assembler.Append(0, false, "10%\r20%\r100%\ndos\r\n");
  EXPECT_THAT(seen_, ElementsAre("0: 100%", "0: dos"));
}

TEST_F(RankOutputTest, ALineWithoutEndIsCut) {
  LineAssembler assembler(Sink());
  assembler.Append(0, false, std::string(200 << 10, 'x'));
  EXPECT_EQ(seen_.size(), 3u);
  assembler.Flush();
  EXPECT_EQ(seen_.size(), 4u);
}

TEST_F(RankOutputTest, TheSameLineOfAllRanksIsOneAtOnce) {
  LineMerger merger(3, milliseconds(50), Sink());
  for (const int rank : {2, 0, 1}) merger.Add({{rank}, false, "ready"}, milliseconds(0));
  EXPECT_THAT(seen_, ElementsAre("0-2: ready"));
  EXPECT_TRUE(merger.empty());
}

TEST_F(RankOutputTest, ALineWaitsForItsEqualsNoLongerThanTheWindow) {
  LineMerger merger(3, milliseconds(50), Sink());
  merger.Add({{0}, false, "a"}, milliseconds(0));
  merger.Add({{2}, false, "a"}, milliseconds(20));
  merger.Release(milliseconds(49));
  EXPECT_THAT(seen_, IsEmpty());
  merger.Release(milliseconds(50));
  EXPECT_THAT(seen_, ElementsAre("0,2: a"));
}

TEST_F(RankOutputTest, EachRanksOwnOrderStays) {
  LineMerger merger(2, milliseconds(50), Sink());
  merger.Add({{0}, false, "a"}, milliseconds(0));
  merger.Add({{0}, false, "b"}, milliseconds(0));
  merger.Add({{1}, false, "b"}, milliseconds(0));
  // Rank 1's "a" comes after its "b": it must not join the earlier "a".
  merger.Add({{1}, false, "a"}, milliseconds(0));
  merger.ReleaseAll();
  EXPECT_THAT(seen_, ElementsAre("0: a", "0-1: b", "1: a"));
}

TEST_F(RankOutputTest, RepeatedLinesOfOneRankStayRepeated) {
  LineMerger merger(2, milliseconds(50), Sink());
  for (int i = 0; i < 2; ++i) merger.Add({{0}, false, "x"}, milliseconds(0));
  for (int i = 0; i < 2; ++i) merger.Add({{1}, false, "x"}, milliseconds(0));
  EXPECT_THAT(seen_, ElementsAre("0-1: x", "0-1: x"));
}

TEST_F(RankOutputTest, StandardErrorIsNotMergedWithOutput) {
  LineMerger merger(2, milliseconds(50), Sink());
  merger.Add({{0}, false, "x"}, milliseconds(0));
  merger.Add({{1}, true, "x"}, milliseconds(0));
  merger.ReleaseAll();
  EXPECT_THAT(seen_, ElementsAre("0: x", "1! x"));
}

TEST_F(RankOutputTest, AFloodPassesWithoutWaiting) {
  LineMerger merger(2, milliseconds(50), Sink());
  for (int i = 0; i < 10'000; ++i) merger.Add({{0}, false, std::to_string(i)}, milliseconds(0));
  EXPECT_EQ(seen_.size(), 10'000 - LineMerger::kMaxPending);
  EXPECT_EQ(seen_.front(), "0: 0");
}

TEST_F(RankOutputTest, WithoutWindowEveryLinePasses) {
  LineMerger merger(2, milliseconds(0), Sink());
  merger.Add({{0}, false, "x"}, milliseconds(0));
  merger.Add({{1}, false, "x"}, milliseconds(0));
  EXPECT_THAT(seen_, ElementsAre("0: x", "1: x"));
}

TEST_F(RankOutputTest, PrefixesAlignAndASingleRankHasNone) {
  EXPECT_EQ(RankPrefix({3}, 16, Style()), " 3: ");
  EXPECT_EQ(RankPrefix({12}, 16, Style()), "12: ");
  EXPECT_EQ(RankPrefix({0, 1, 2, 5}, 16, Style()), "0-2,5: ");
  EXPECT_EQ(RankPrefix({0}, 1, Style()), "");
  Style colour;
  colour.colour = true;
  EXPECT_EQ(RankPrefix({0}, 2, colour), "\x1b[36m0:\x1b[0m ");
}

}  // namespace
}  // namespace meshrun::client
