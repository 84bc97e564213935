#include "core/suggest.h"

#include <gtest/gtest.h>

namespace meshrun {
namespace {

const std::vector<std::string> kWords = {"run",  "submit", "ps",   "describe",
                                         "logs", "cancel", "nodes"};

TEST(SuggestTest, FindsTheNearestWord) {
  EXPECT_EQ(Nearest("rnu", kWords), "run");
  EXPECT_EQ(Nearest("sumbit", kWords), "submit");
  EXPECT_EQ(Nearest("log", kWords), "logs");
  EXPECT_EQ(Nearest("desc", kWords), "describe");
}

TEST(SuggestTest, SaysNothingWhereNothingIsNear) {
  EXPECT_EQ(Nearest("kubectl", kWords), "");
  EXPECT_EQ(Nearest("ls", kWords), "");
  EXPECT_EQ(Nearest("--batch-size", {"--mesh", "--slots", "--nproc"}), "");
  EXPECT_EQ(Nearest("train-abcdef", {"train-ghijkl", "train-abczzz"}), "");
  EXPECT_EQ(DidYouMean("kubectl", kWords), "");
  EXPECT_EQ(DidYouMean("cancle", kWords), ": did you mean 'cancel'?");
}

}  // namespace
}  // namespace meshrun
