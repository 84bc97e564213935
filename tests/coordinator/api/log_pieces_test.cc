#include "coordinator/api/log_pieces.h"

#include <gtest/gtest.h>

#include <string>

namespace meshrun::coordinator {
namespace {

v1::ReadLogsResponse Answer(const std::string& data, uint64_t offset,
                            v1::LogStream stream = v1::LOG_STREAM_STDOUT) {
  v1::ReadLogsResponse out;
  out.set_rank(3);
  out.set_stream(stream);
  out.set_generation(2);
  out.set_offset(offset);
  out.set_data(data);
  return out;
}

TEST(LogPiecesTest, APieceSaysWhereItStands) {
  LogPieces pieces;
  EXPECT_EQ(
      pieces.Add(Answer("step 7\n", 40, v1::LOG_STREAM_STDERR)).dump(),
      R"({"rank":3,"stream":"stderr","generation":2,"offset":40,"dropped":0,"text":"step 7\n"})");
}

TEST(LogPiecesTest, ACharacterIsNeverCut) {
  LogPieces pieces;
  EXPECT_EQ(pieces.Add(Answer("caf\xc3", 0))["text"], "caf");
  const auto rest = pieces.Add(Answer("\xa9!", 4));
  EXPECT_EQ(rest["text"], "\xc3\xa9!");
  EXPECT_EQ(rest["offset"], 3);
  EXPECT_TRUE(pieces.Rest().empty());
}

TEST(LogPiecesTest, NothingToSayIsNoPiece) {
  LogPieces pieces;
  EXPECT_TRUE(pieces.Add(Answer("\xf0\x9f", 0)).is_null());
  EXPECT_TRUE(pieces.Add(Answer("\x8c", 2)).is_null());
  EXPECT_EQ(pieces.Add(Answer("\x8d", 3))["text"], "\xf0\x9f\x8c\x8d");
}

TEST(LogPiecesTest, StreamsDoNotMix) {
  LogPieces pieces;
  EXPECT_EQ(pieces.Add(Answer("a\xc3", 0))["text"], "a");
  EXPECT_EQ(pieces.Add(Answer("\xa9", 0, v1::LOG_STREAM_STDERR))["text"], "\\xa9");
  EXPECT_EQ(pieces.Rest().size(), 1u);
}

TEST(LogPiecesTest, BytesThatAreNoTextAreShownAsSuch) {
  LogPieces pieces;
  EXPECT_EQ(pieces.Add(Answer("\xff\xfe.", 0))["text"], "\\xff\\xfe.");
}

TEST(LogPiecesTest, WhatEndsWithinACharacterIsTheRest) {
  LogPieces pieces;
  EXPECT_EQ(pieces.Add(Answer("end\xe2\x82", 10))["text"], "end");
  const auto rest = pieces.Rest();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0]["text"], "\\xe2\\x82");
  EXPECT_EQ(rest[0]["offset"], 13);
}

TEST(LogPiecesTest, AcrossAGapNothingIsJoined) {
  LogPieces pieces;
  EXPECT_EQ(pieces.Add(Answer("a\xc3", 0))["text"], "a");
  auto late = Answer("\xa9 b", 100);
  late.set_dropped(98);
  const auto piece = pieces.Add(late);
  EXPECT_EQ(piece["text"], "\\xa9 b");
  EXPECT_EQ(piece["offset"], 100);
  EXPECT_EQ(piece["dropped"], 98);
}

}  // namespace
}  // namespace meshrun::coordinator
