#include "core/stream_choice.h"

#include <gtest/gtest.h>

namespace meshrun {
namespace {

TEST(StreamChoiceTest, IsForAllRanksOrByRank) {
  const auto both = StreamChoice::Parse("3");
  ASSERT_TRUE(both.ok());
  EXPECT_TRUE(both->Has(0, false) && both->Has(7, true));
  const auto some = StreamChoice::Parse("0:1,12:2,3:0");
  ASSERT_TRUE(some.ok());
  EXPECT_TRUE(some->Has(0, false));
  EXPECT_FALSE(some->Has(0, true));
  EXPECT_TRUE(some->Has(12, true));
  EXPECT_FALSE(some->Has(1, false) || some->Has(3, true));
  EXPECT_FALSE(some->empty());
  EXPECT_TRUE(StreamChoice::Parse("0")->empty());
  EXPECT_TRUE(StreamChoice::Parse("1:0")->empty());
  EXPECT_TRUE(StreamChoice().empty());
}

TEST(StreamChoiceTest, AnythingElseIsRefused) {
  for (const char* text : {"", "4", "-1", "out", "0:", ":1", "0:4", "0:1,", "0:1;1:1", "0:1,2"}) {
    const auto choice = StreamChoice::Parse(text);
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace meshrun
