#include "core/framing.h"

#include <gtest/gtest.h>

namespace meshrun {
namespace {

constexpr size_t kLongest = 1000;

TEST(FramingTest, FramesComeBackWholeHoweverTheStreamIsCut) {
  const std::string messages[] = {"", "a", std::string(300, 'x'), std::string("\0\1\0", 3)};
  std::string stream;
  for (const std::string& message : messages) AppendFrame(message, &stream);
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{7}, stream.size()}) {
    FrameBuffer buffer;
    std::vector<std::string> found;
    for (size_t at = 0; at < stream.size(); at += piece) {
      buffer.Append(std::string_view(stream).substr(at, piece));
      while (auto message = buffer.Next(kLongest)) found.push_back(*std::move(message));
    }
    EXPECT_EQ(found, std::vector<std::string>(std::begin(messages), std::end(messages))) << piece;
  }
}

TEST(FramingTest, TheLengthIsFourBytesTheLowestFirst) {
  std::string stream;
  AppendFrame(std::string(0x0102, 'x'), &stream);
  EXPECT_EQ(stream.substr(0, 5), std::string("\x02\x01\0\0x", 5));
}

TEST(FramingTest, ALengthBeyondTheLongestIsGarbledForEver) {
  FrameBuffer buffer;
  std::string stream;
  AppendFrame("whole", &stream);
  AppendFrame(std::string(kLongest + 1, 'x'), &stream);
  buffer.Append(stream);
  EXPECT_FALSE(buffer.IsGarbled(kLongest));
  EXPECT_EQ(buffer.Next(kLongest), "whole");
  EXPECT_TRUE(buffer.IsGarbled(kLongest));
  EXPECT_FALSE(buffer.Next(kLongest).has_value());
  EXPECT_FALSE(buffer.IsGarbled(kLongest + 1));
  EXPECT_EQ(buffer.Next(kLongest + 1)->size(), kLongest + 1);
}

}  // namespace
}  // namespace meshrun
