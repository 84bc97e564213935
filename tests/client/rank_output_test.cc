#include "client/render/rank_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/text.h"

namespace meshrun::client {
namespace {

TEST(LinePrefixTest, KnownMacrosBecomeTheirValuesAndTheRestStays) {
  const LinePrefix prefix{.text = "[${role_name}${local_rank}]${hostname}:${rank} ${other}$: ",
                          .role = "trainer",
                          .host = "gpu1"};
  EXPECT_EQ(prefix.Of(5, 1), "[trainer1]gpu1:5 ${other}$: ");
}

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RankOutputTest : public ::testing::Test {
 protected:
  LineSink Sink() {
    return [this](const RankLine& line) {
      seen_.push_back(FormatRanks(line.ranks) + (line.is_stderr ? "! " : ": ") + line.text);
    };
  }
  LineAssembler Assembler(Redraws redraws = Redraws::kLastForm) {
    return LineAssembler({redraws, redraws}, Sink());
  }
  static constexpr std::array<std::chrono::nanoseconds, 2> kWindows = {milliseconds(50),
                                                                       milliseconds(50)};
  static constexpr milliseconds kNow{0};
  std::vector<std::string> seen_;
};

TEST_F(RankOutputTest, BytesBecomeLinesByRankAndStream) {
  LineAssembler assembler = Assembler();
  assembler.Append(0, false, "hel", kNow);
  assembler.Append(1, false, "other\n", kNow);
  assembler.Append(0, true, "warning\n", kNow);
  assembler.Append(0, false, "lo\nworld\nrest", kNow);
  EXPECT_THAT(seen_, ElementsAre("1: other", "0! warning", "0: hello", "0: world"));
  assembler.Flush();
  EXPECT_EQ(seen_.back(), "0: rest");
}

TEST_F(RankOutputTest, ALineThatRedrawsItselfArrivesAsItsLastFormOrWhole) {
  const std::string_view bytes = "10%\r20%\r100%\ndos\r\n";
  LineAssembler on_terminal = Assembler();
  on_terminal.Append(0, false, bytes, kNow);
  EXPECT_THAT(seen_, ElementsAre("0: 100%", "0: dos"));
  seen_.clear();
  LineAssembler in_file = Assembler(Redraws::kKept);
  in_file.Append(0, false, bytes, kNow);
  EXPECT_THAT(seen_, ElementsAre("0: 10%\r20%\r100%", "0: dos\r"));
}

TEST_F(RankOutputTest, ALongLineIsCutOnATerminalAlone) {
  LineAssembler on_terminal = Assembler();
  on_terminal.Append(0, false, std::string(200 << 10, 'x'), kNow);
  EXPECT_EQ(seen_.size(), 3u);
  on_terminal.Flush();
  EXPECT_EQ(seen_.size(), 4u);
  seen_.clear();
  LineAssembler in_file = Assembler(Redraws::kKept);
  const std::string line(200 << 10, 'x');
  in_file.Append(0, false, line, kNow);
  in_file.Append(0, false, "\n", kNow);
  EXPECT_THAT(seen_, ElementsAre("0: " + line));
}

TEST_F(RankOutputTest, LinesWithoutEndAreBounded) {
  LineAssembler in_file = Assembler(Redraws::kKept);
  const std::string piece(1 << 20, 'x');
  const size_t before = LineAssembler::kMostOpen / piece.size();
  for (size_t i = 0; i < before; ++i) in_file.Append(i % 8, false, piece, kNow);
  EXPECT_EQ(in_file.open_bytes(), LineAssembler::kMostOpen);
  EXPECT_THAT(seen_, IsEmpty());
  // One byte more, and the longest line goes.
  in_file.Append(7, false, "x", kNow);
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ(seen_[0].size(), LineAssembler::kMostOpen / 8 + 1 + 3);
  EXPECT_EQ(in_file.open_bytes(), LineAssembler::kMostOpen / 8 * 7);
  in_file.Append(8, false, std::string(LineAssembler::kMostLine, 'y'), kNow);
  EXPECT_EQ(seen_.size(), 2u);
}

TEST_F(RankOutputTest, ALineWithoutEndIsKnownInItsLastForm) {
  LineAssembler assembler = Assembler();
  assembler.Append(1, true, "\r 10%", milliseconds(5));
  assembler.Append(0, false, "(Pdb) ", milliseconds(9));
  assembler.Append(1, true, "\r 20%\r", milliseconds(10));
  const auto open = assembler.OpenLines();
  ASSERT_EQ(open.size(), 2u);
  EXPECT_EQ(open[0].text, "(Pdb) ");
  EXPECT_EQ(open[1].text, " 20%");
  EXPECT_EQ(open[1].since, milliseconds(5));
  EXPECT_FALSE(open[0].redrawn);
  EXPECT_TRUE(open[1].redrawn);
  assembler.Drop(0, false);
  assembler.Append(0, false, "5\n", milliseconds(11));
  EXPECT_THAT(seen_, ElementsAre("0: 5"));
}

constexpr std::array<bool, 2> kBoth = {true, true};

TEST_F(RankOutputTest, ABarInAFileComesEveryFiveSecondsInItsLastForm) {
  LineAssembler assembler = Assembler(Redraws::kKept);
  for (int second = 0; second < 13; ++second) {
    for (const int rank : {0, 1}) {
      assembler.Append(rank, true, "\r " + std::to_string(second) + "%", seconds(second));
    }
    assembler.ShowUnfinished(kBoth, seconds(second));
  }
  EXPECT_THAT(seen_, ElementsAre("0!  5%", "1!  5%", "0!  10%", "1!  10%"));
  seen_.clear();
  assembler.Append(1, true, "\r 99%   \r100%    \nnext", seconds(13));
  assembler.Append(0, true, "\r 50%", seconds(13));
  EXPECT_THAT(seen_, ElementsAre("1! 100%"));
  // The next line is a new one, and a process may end in its bar.
  assembler.ShowUnfinished(kBoth, seconds(14));
  assembler.Flush();
  EXPECT_THAT(seen_, ElementsAre("1! 100%", "0!  50%", "1! next"));
  EXPECT_EQ(assembler.open_bytes(), 0u);
}

TEST_F(RankOutputTest, AFormThatWasShownIsNotShownAgain) {
  LineAssembler assembler = Assembler(Redraws::kKept);
  assembler.Append(0, true, "\r100%", seconds(0));
  assembler.Append(0, false, "name: ", seconds(0));
  for (const int second : {4, 5, 10, 60}) assembler.ShowUnfinished(kBoth, seconds(second));
  EXPECT_THAT(seen_, ElementsAre("0: name: ", "0! 100%"));
  // tqdm covers the bar with blanks where it must not stay.
  assembler.Append(0, true, "\r100%   \n", seconds(61));
  assembler.Append(0, false, "\nagain\n", seconds(61));
  EXPECT_THAT(seen_, ElementsAre("0: name: ", "0! 100%", "0: again"));
  seen_.clear();
  assembler.Append(0, true, "\r50%", seconds(62));
  assembler.ShowUnfinished(kBoth, seconds(67));
  assembler.Append(0, true, "\r    \r\n", seconds(68));
  EXPECT_THAT(seen_, ElementsAre("0! 50%"));
}

TEST_F(RankOutputTest, ALineThatGrowsComesWhole) {
  LineAssembler assembler = Assembler(Redraws::kKept);
  for (int second = 0; second < 8; ++second) {
    assembler.Append(0, false, second == 0 ? "epoch " : ".", seconds(second));
    assembler.ShowUnfinished(kBoth, seconds(second));
  }
  assembler.Append(0, false, " done\n", seconds(8));
  EXPECT_THAT(seen_, ElementsAre("0: epoch .....", "0: epoch ....... done"));
}

TEST_F(RankOutputTest, ALineInTheBufferOfItsRankWaitsForItsEnd) {
  LineAssembler assembler = Assembler(Redraws::kKept);
  const std::string line = std::string(99, 'x') + "\n";
  std::string written;
  while (written.size() < 4096) written += line;
  assembler.Append(0, false, written.substr(0, 4096), seconds(0));
  seen_.clear();
  assembler.ShowUnfinished(kBoth, seconds(20));
  EXPECT_THAT(seen_, IsEmpty());
  assembler.Append(0, false, written.substr(4096), seconds(21));
  EXPECT_THAT(seen_, ElementsAre("0: " + std::string(99, 'x')));
}

TEST_F(RankOutputTest, UnfinishedDataIsNoMessageAndOtherStreamsHaveRows) {
  LineAssembler assembler = Assembler(Redraws::kKept);
  assembler.Append(0, false, std::string(LineAssembler::kMostUnfinished + 1, 'x'), seconds(0));
  assembler.Append(0, true, "\r10%", seconds(0));
  assembler.ShowUnfinished({true, false}, seconds(20));
  EXPECT_THAT(seen_, IsEmpty());
}

TEST_F(RankOutputTest, ABarThatWasShownKeepsOnlyItsLastForm) {
  LineAssembler assembler = Assembler(Redraws::kKept);
  assembler.Append(0, true, "\r10%", seconds(0));
  assembler.ShowUnfinished(kBoth, seconds(5));
  for (int i = 0; i < 1000; ++i) assembler.Append(0, true, "\r20%", seconds(6));
  EXPECT_LT(assembler.open_bytes(), 10u);
}

TEST_F(RankOutputTest, RowsAreTheLinesWithoutEnd) {
  LineAssembler assembler = Assembler();
  for (const int rank : {0, 1, 3}) {
    assembler.Append(rank, true, rank == 3 ? "\r 9%" : "\r 10%", kNow);
  }
  assembler.Append(2, true, "new", milliseconds(90));
  Style style;
  EXPECT_THAT(LiveRows(assembler.OpenLines(), 4, milliseconds(50), 5, style),
              ElementsAre("0-1:  10%", "3:  9%"));
  EXPECT_THAT(LiveRows(assembler.OpenLines(), 4, milliseconds(90), 2, style),
              ElementsAre("0-1:  10%", "and 2 more lines that have no end yet"));
  style.width = 7;
  EXPECT_THAT(LiveRows(assembler.OpenLines(), 4, milliseconds(50), 5, style),
              ElementsAre("0-1:  1", "3:  9%"));
}

TEST_F(RankOutputTest, RowsShowNoControlCharacters) {
  EXPECT_EQ(Visible("\x1b[31mred\x1b[0m\tand \x1b]0;title\a\bplain"), "red and plain");
  EXPECT_EQ(Visible("bar \xe2\x96\x88\xe2\x96"), "bar \xe2\x96\x88");
  EXPECT_EQ(Visible("\xc3\xa9"), "\xc3\xa9");
  EXPECT_EQ(Visible("cut \x1b["), "cut ");
  // U+009B begins a sequence as ESC [ does, U+0090 as ESC P.
  EXPECT_EQ(Visible("a\xc2\x9b"
                    "2Jb\xc2\x90"),
            "a2Jb");
  EXPECT_EQ(Visible("a\x9b"
                    "2J \xe2\x9b\xb5 caf\xe9s"),
            "a2J \xe2\x9b\xb5 caf\xe9s");
}

TEST_F(RankOutputTest, PromptsAreToldFromProgress) {
  for (const char* prompt : {"(Pdb) ", ">>> ", "name: ", "really? [y/n] ", "In [1]: "}) {
    EXPECT_TRUE(LooksLikePrompt(prompt)) << prompt;
  }
  for (const char* text : {"loading...", "", "   ", "50%|#####     |"}) {
    EXPECT_FALSE(LooksLikePrompt(text)) << text;
  }
}

TEST_F(RankOutputTest, TheSameLineOfAllRanksIsOneAtOnce) {
  LineMerger merger(3, kWindows, Sink());
  for (const int rank : {2, 0, 1}) merger.Add({{rank}, false, "ready"}, milliseconds(0));
  EXPECT_THAT(seen_, ElementsAre("0-2: ready"));
  EXPECT_TRUE(merger.empty());
}

TEST_F(RankOutputTest, ALineWaitsForItsEqualsNoLongerThanTheWindow) {
  LineMerger merger(3, kWindows, Sink());
  merger.Add({{0}, false, "a"}, milliseconds(0));
  merger.Add({{2}, false, "a"}, milliseconds(20));
  merger.Release(milliseconds(49));
  EXPECT_THAT(seen_, IsEmpty());
  merger.Release(milliseconds(50));
  EXPECT_THAT(seen_, ElementsAre("0,2: a"));
}

TEST_F(RankOutputTest, EachRanksOwnOrderStays) {
  LineMerger merger(2, kWindows, Sink());
  merger.Add({{0}, false, "a"}, milliseconds(0));
  merger.Add({{0}, false, "b"}, milliseconds(0));
  merger.Add({{1}, false, "b"}, milliseconds(0));
  // Rank 1's "a" comes after its "b": it must not join the earlier "a".
  merger.Add({{1}, false, "a"}, milliseconds(0));
  merger.ReleaseAll();
  EXPECT_THAT(seen_, ElementsAre("0: a", "0-1: b", "1: a"));
}

TEST_F(RankOutputTest, RepeatedLinesOfOneRankStayRepeated) {
  LineMerger merger(2, kWindows, Sink());
  for (int i = 0; i < 2; ++i) merger.Add({{0}, false, "x"}, milliseconds(0));
  for (int i = 0; i < 2; ++i) merger.Add({{1}, false, "x"}, milliseconds(0));
  EXPECT_THAT(seen_, ElementsAre("0-1: x", "0-1: x"));
}

TEST_F(RankOutputTest, StandardErrorIsNotMergedWithOutput) {
  LineMerger merger(2, kWindows, Sink());
  merger.Add({{0}, false, "x"}, milliseconds(0));
  merger.Add({{1}, true, "x"}, milliseconds(0));
  merger.ReleaseAll();
  EXPECT_THAT(seen_, ElementsAre("0: x", "1! x"));
}

TEST_F(RankOutputTest, AFloodPassesWithoutWaiting) {
  LineMerger merger(2, kWindows, Sink());
  for (int i = 0; i < 10'000; ++i) merger.Add({{0}, false, std::to_string(i)}, milliseconds(0));
  EXPECT_EQ(seen_.size(), 10'000 - LineMerger::kMaxPending);
  EXPECT_EQ(seen_.front(), "0: 0");
}

TEST_F(RankOutputTest, WithoutWindowEveryLinePasses) {
  LineMerger merger(2, {milliseconds(0), milliseconds(0)}, Sink());
  merger.Add({{0}, false, "x"}, milliseconds(0));
  merger.Add({{1}, false, "x"}, milliseconds(0));
  EXPECT_THAT(seen_, ElementsAre("0: x", "1: x"));
}

TEST_F(RankOutputTest, EachStreamHasItsOwnWindow) {
  LineMerger merger(2, {milliseconds(0), milliseconds(50)}, Sink());
  merger.Add({{0}, false, "out"}, milliseconds(0));
  merger.Add({{1}, false, "out"}, milliseconds(0));
  merger.Add({{0}, true, "err"}, milliseconds(0));
  merger.Add({{1}, true, "err"}, milliseconds(0));
  EXPECT_THAT(seen_, ElementsAre("0: out", "1: out", "0-1! err"));
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
