#include "worker/clock/coordinator_clock.h"

#include <gtest/gtest.h>

namespace meshrun::worker {
namespace {

using namespace std::chrono_literals;

TEST(CoordinatorClockTest, IsUnknownBeforeTheFirstAnswer) {
  EXPECT_FALSE(CoordinatorClock().Best().has_value());
}

TEST(CoordinatorClockTest, TheMiddleOfSendingAndAnswerIsWhenTheHeartbeatCame) {
  CoordinatorClock clock;
  clock.Add(100s, 5000s, 100s + 4ms);
  ASSERT_TRUE(clock.Best().has_value());
  EXPECT_EQ(clock.Best()->offset, 4900s - 2ms);
  EXPECT_EQ(clock.Best()->error, 2ms);
}

// The coordinator's clock is 7 s ahead; each way takes another time.
TEST(CoordinatorClockTest, TheFastestAnswerCountsAndTheTruthIsWithinItsError) {
  CoordinatorClock clock;
  for (const auto& [there, back] : {std::pair{90ms, 1ms}, {1ms, 3ms}, {2ms, 300ms}}) {
    clock.Add(10s, 17s + there, 10s + there + back);
  }
  EXPECT_EQ(clock.Best()->error, 2ms);
  EXPECT_LE(std::chrono::abs(clock.Best()->offset - 7s), clock.Best()->error);
}

// A commit hung for 20 s, in which the coordinator's clock stood still.
TEST(CoordinatorClockTest, AnswersBeforeAJumpOfAClockDoNotCount) {
  CoordinatorClock clock;
  clock.Add(10s, 17s, 10s + 1ms);
  clock.Add(11s, 18s, 11s + 1ms);
  clock.Add(40s, 27s, 40s + 30ms);
  EXPECT_EQ(clock.Best()->error, 15ms);
  EXPECT_EQ(clock.Best()->offset, -13s - 15ms);
}

TEST(CoordinatorClockTest, OldAnswersAreForgotten) {
  CoordinatorClock clock;
  clock.Add(0s, 1s, 1ms);
  for (size_t i = 0; i < CoordinatorClock::kSamples; ++i) clock.Add(10s, 20s, 10s + 8ms);
  EXPECT_EQ(clock.Best()->error, 4ms);
  clock.Clear();
  EXPECT_FALSE(clock.Best().has_value());
}

}  // namespace
}  // namespace meshrun::worker
