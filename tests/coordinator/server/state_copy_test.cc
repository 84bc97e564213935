#include "coordinator/state_copy.h"

#include <gtest/gtest.h>

namespace meshrun::coordinator {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

constexpr uint64_t kTerm = 7;

class StateCopyTest : public ::testing::Test {
 protected:
  StateCopy copy_{true};
};

TEST_F(StateCopyTest, TheFirstLeaderOfACopyMakesTheRollCall) {
  copy_.OnStart(kTerm, false, seconds(0));
  EXPECT_TRUE(copy_.OnTakeover(kTerm, hours(1)));
  copy_.OnRollCallOver();
  EXPECT_FALSE(copy_.OnTakeover(kTerm + 2, hours(2)));
}

TEST_F(StateCopyTest, AStandbyOfThatLeaderMakesNoSecondOne) {
  copy_.OnStart(kTerm, false, seconds(0));
  EXPECT_FALSE(copy_.OnTakeover(kTerm + 2, hours(48)));
  EXPECT_FALSE(copy_.is_copy());
}

TEST_F(StateCopyTest, ARollCallThatItsLeaderDidNotEndIsMadeAgain) {
  copy_.OnStart(kTerm, false, seconds(0));
  EXPECT_TRUE(copy_.OnTakeover(kTerm + 1, seconds(5)));
}

TEST_F(StateCopyTest, OwnAttemptsToTakeOverDoNotCount) {
  copy_.OnStart(kTerm, false, seconds(0));
  for (uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(copy_.OnTakeover(kTerm + i, seconds(i)));
  EXPECT_FALSE(copy_.OnTakeover(kTerm + 7, hours(1)));
}

TEST_F(StateCopyTest, OneThatStartsDuringARollCallMakesItWhereItDoesNotEnd) {
  copy_.OnStart(kTerm, true, seconds(0));
  EXPECT_TRUE(copy_.OnTakeover(kTerm, seconds(20)));
  EXPECT_TRUE(copy_.OnTakeover(kTerm + 1, hours(1)));
}

TEST_F(StateCopyTest, OneThatStartsDuringARollCallMakesNoneWhereItEnds) {
  copy_.OnStart(kTerm, true, seconds(0));
  EXPECT_FALSE(copy_.OnTakeover(kTerm + 1, seconds(20)));
}

// A process of a standby that is started anew, with the flags that it had.
TEST_F(StateCopyTest, OneThatStartsLongAfterARollCallMakesNone) {
  copy_.OnStart(kTerm, true, seconds(0));
  EXPECT_FALSE(copy_.OnTakeover(kTerm, hours(48)));
}

TEST_F(StateCopyTest, AStateThatWasNotReachedAtTheStartMayBeACopy) {
  EXPECT_TRUE(copy_.OnTakeover(kTerm, hours(48)));
}

TEST(NoCopyTest, HasNoRollCall) {
  StateCopy none(false);
  EXPECT_FALSE(none.OnTakeover(kTerm, seconds(0)));
}

}  // namespace
}  // namespace meshrun::coordinator
