#include "client/render/stacks.h"

#include <gtest/gtest.h>

namespace meshrun::client {
namespace {

v1::RankStack Stack(int rank, const std::string& place, const std::string& text) {
  v1::RankStack stack;
  stack.set_rank(rank);
  stack.set_place(place);
  stack.set_text(text);
  return stack;
}

v1::RankStack Error(int rank, const std::string& error) {
  v1::RankStack stack;
  stack.set_rank(rank);
  stack.set_error(error);
  return stack;
}

v1::RankStack Refused(int rank, const std::string& error, const std::string& text) {
  v1::RankStack stack = Stack(rank, "", text);
  stack.set_error(error);
  return stack;
}

TEST(StacksTest, ShowEachRankInOrderWithWhereItStands) {
  EXPECT_EQ(DescribeStacks({Error(2, "it has ended"), Refused(1, "no gdb", "call stacks: no gdb\n"),
                            Stack(0, "step (train.py:3)", "frames:\n\n    step\x1b[2J\n")},
                           Style()),
            "rank 0 is in step (train.py:3)\n"
            "  frames:\n"
            "      step\\x1b[2J\n"
            "rank 1: no gdb\n"
            "  call stacks: no gdb\n"
            "rank 2: it has ended\n");
}

TEST(StacksTest, TheJsonHasAnEntryForEachRank) {
  const std::string json =
      StacksJson({Error(1, "it has ended"), Stack(0, "step (train.py:3)", "frames\n")});
  EXPECT_EQ(json, R"j({"stacks":[{"rank":0,"place":"step (train.py:3)","text":"frames\n"},)j"
                  R"j({"rank":1,"error":"it has ended"}]})j"
                  "\n");
}

}  // namespace
}  // namespace meshrun::client
