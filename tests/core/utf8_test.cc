#include "core/utf8.h"

#include <gtest/gtest.h>

#include "core/env_entries.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun {
namespace {

TEST(Utf8Test, EscapesWhatIsNotUtf8AndNothingElse) {
  const std::string text = "plain, h\xC3\xA9, \xE2\x82\xAC, \xF0\x9F\x8C\x8D\n\\x41";
  EXPECT_EQ(EscapeBytes(text), text);
  EXPECT_TRUE(IsUtf8(text));
  EXPECT_EQ(EscapeBytes("caf\xE9"), "caf\\xe9");
  EXPECT_FALSE(IsUtf8("caf\xE9"));
  EXPECT_EQ(EscapeBytes("\xC3"), "\\xc3");
  EXPECT_EQ(EscapeBytes("\xC0\xAF"), "\\xc0\\xaf");
  EXPECT_EQ(EscapeBytes("\xED\xA0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(EscapeBytes("\xF4\x90\x80\x80z"), "\\xf4\\x90\\x80\\x80z");
}

TEST(Utf8Test, SentencesHoldNoControlCharacters) {
  EXPECT_EQ(EscapeControls("plain, h\xC3\xA9"), "plain, h\xC3\xA9");
  EXPECT_EQ(EscapeControls("a\x1b[31mb\nc\td\x7F"), "a\\x1b[31mb\\x0ac\\x09d\\x7f");
  EXPECT_EQ(EscapeControls(std::string("a\0z\xFF", 4)), "a\\x00z\\xff");
  // U+0080 to U+009F: terminals take U+009B for the beginning of an escape sequence.
  EXPECT_EQ(EscapeControls("a\xC2\x9B"
                           "31m, \xC2\x80, \xC2\x9F, \xC2\xA0"),
            "a\\xc2\\x9b31m, \\xc2\\x80, \\xc2\\x9f, \xC2\xA0");
}

TEST(Utf8Test, ReplacesByteByByte) {
  EXPECT_EQ(ReplaceBytes("plain, h\xC3\xA9, \xE2\x82\xAC, \xF0\x9F\x8C\x8D"),
            "plain, h\xC3\xA9, \xE2\x82\xAC, \xF0\x9F\x8C\x8D");
  EXPECT_EQ(ReplaceBytes("a\xFFz"), "a?z");
  EXPECT_EQ(ReplaceBytes("\xC3"), "?");
  EXPECT_EQ(ReplaceBytes("\xC0\xAF"), "??");
  EXPECT_EQ(ReplaceBytes("\xED\xA0\x80"), "???");
}

TEST(EnvEntriesTest, TheLastEntryOfANameCounts) {
  EnvEntries env;
  SetEnv(env, "A", "1");
  SetEnv(env, "A", "2");
  EXPECT_EQ(env.size(), 1);
  // As a client may send it.
  env.Add()->set_name("A");
  env[1].set_value("3");
  EXPECT_EQ(*FindEnv(env, "A"), "3");
  EXPECT_EQ(EnvMap(env).at("A"), "3");
  EXPECT_EQ(FindEnv(env, "B"), nullptr);
}

// A daemon that is started again after an update reads what the one before it wrote.
TEST(EnvEntriesTest, ALaunchFileOfTheTimeOfMapsIsReadAsItWasMeant) {
  constexpr char kOf129c765[] =
      "\x12"
      "6\x08\x03\x12\x07./train\x12\x01x\x1a\t\n\x04RANK\x12\x01"
      "3\x1a\n\n\x01"
      "A\x12\x05"
      "caf\xc3\xa9\"\x05/data*\x08/l/3.out";
  v1::SupervisorLaunch launch;
  ASSERT_TRUE(launch.ParseFromString(std::string(kOf129c765, sizeof(kOf129c765) - 1)));
  ASSERT_EQ(launch.ranks_size(), 1);
  EXPECT_EQ(launch.ranks(0).argv(1), "x");
  EXPECT_EQ(launch.ranks(0).stdout_path(), "/l/3.out");
  const std::map<std::string, std::string> expected = {{"RANK", "3"}, {"A", "caf\xc3\xa9"}};
  EXPECT_EQ(EnvMap(launch.ranks(0).env()), expected);
}

}  // namespace
}  // namespace meshrun
