#include "client/render/progress.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace meshrun::client {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

v1::Progress At(int64_t step, int64_t total = 0, double loss = -1) {
  v1::Progress progress;
  progress.set_step(step);
  if (total > 0) progress.set_total_steps(total);
  if (loss >= 0) progress.set_loss(loss);
  return progress;
}

TEST(ProgressTest, RateAndTimeLeftComeFromTheLastQuarterMinute) {
  ProgressMeter meter;
  meter.Update(At(0, 1000), seconds(0));
  EXPECT_FALSE(meter.Rate().has_value());
  meter.Update(At(10, 1000), seconds(1));
  EXPECT_DOUBLE_EQ(*meter.Rate(), 10);
  EXPECT_EQ(meter.Remaining(), seconds(99));
  // Ten times faster from here: the slow start is forgotten after the window.
  for (int t = 2; t <= 20; ++t) meter.Update(At(10 + 100 * (t - 1), 10000), seconds(t));
  EXPECT_DOUBLE_EQ(*meter.Rate(), 100);
}

TEST(ProgressTest, ANoteIsOneShortLine) {
  ProgressMeter meter;
  v1::Progress progress = At(5, 10);
  progress.set_note("validating\n" + std::string(500, 'x'));
  meter.Update(progress, seconds(0));
  EXPECT_EQ(meter.Line(), "step 5/10 (50%), validating");
  progress.set_note(std::string(500, 'x'));
  meter.Update(progress, seconds(1));
  EXPECT_EQ(meter.Line(), "step 5/10 (50%), " + std::string(57, 'x') + "...");
}

TEST(ProgressTest, ARestartForgetsTheRate) {
  ProgressMeter meter;
  meter.Update(At(500, 1000), seconds(1));
  meter.Update(At(600, 1000), seconds(2));
  meter.Update(At(100, 1000), seconds(3));
  EXPECT_FALSE(meter.Rate().has_value());
  meter.Update(At(150, 1000), seconds(4));
  EXPECT_DOUBLE_EQ(*meter.Rate(), 50);
}

TEST(ProgressTest, TheLineHasWhatIsKnown) {
  ProgressMeter meter;
  EXPECT_TRUE(meter.empty());
  meter.Update(At(5), seconds(0));
  EXPECT_EQ(meter.Line(), "step 5");
  meter.Update(At(1200, 3000, 0.012345), seconds(14));
  EXPECT_EQ(meter.Line(), "step 1200/3000 (40%), loss 0.01235, 85.4 step/s, 22s left");
  meter.Update(At(1201, 3000), seconds(1014));
  EXPECT_THAT(meter.Line(), HasSubstr("s/step"));
}

TEST(ProgressTest, TheBarFitsItsTerminal) {
  ProgressMeter meter;
  meter.Update(At(0, 100, 0.5), seconds(0));
  meter.Update(At(50, 100, 0.25), seconds(5));
  Style style;
  style.width = 120;
  EXPECT_EQ(meter.Bar("geoid", style),
            "geoid ############------------  50%  50/100  loss 0.25  10 step/s  5s left");
  style.width = 52;
  EXPECT_EQ(meter.Bar("geoid", style), "geoid ############------------  50%  50/100");
  style.width = 120;
  style.utf8 = true;
  EXPECT_EQ(meter.Bar("g", style),
            "g ━━━━━━━━━━━━              50%  50/100  loss 0.25  10 step/s  5s left");
}

TEST(ProgressTest, ANarrowTerminalKeepsThePercentage) {
  ProgressMeter meter;
  meter.Update(At(0, 3000, 0.5), seconds(0));
  meter.Update(At(1200, 3000, 0.25), seconds(5));
  Style style;
  for (const std::string name : {"a", "train-k3x9w2", "a-long-name-of-a-job-0123456789-k3x9w2"}) {
    for (style.width = 5; style.width <= 130; ++style.width) {
      const std::string bar = meter.Bar(name, style);
      EXPECT_THAT(bar, HasSubstr(" 40%")) << style.width;
      EXPECT_LT(DisplayWidth(bar), static_cast<size_t>(std::max(style.width, 6))) << bar;
    }
  }
  style.width = 40;
  EXPECT_EQ(meter.Bar("train-k3x9w2", style), "train-k3x9w2 ####------  40%  1200/3000");
  EXPECT_EQ(meter.Bar("a-long-name-of-a-job-k3x9w2", style),
            "a-long-name-of-a-job-k... ###-----  40%");
}

TEST(ProgressTest, EachOfAHundredStepsIsAPercent) {
  ProgressMeter meter;
  for (int step = 0; step <= 100; ++step) {
    meter.Update(At(step, 100), seconds(step));
    EXPECT_THAT(meter.Line(), HasSubstr(fmt::format("step {}/100 ({}%)", step, step)));
  }
}

TEST(ProgressTest, ALossThatIsNotFiniteIsShown) {
  ProgressMeter meter;
  v1::Progress progress = At(7);
  progress.set_loss(std::copysign(std::numeric_limits<double>::quiet_NaN(), -1));
  meter.Update(progress, seconds(0));
  EXPECT_EQ(meter.Line(), "step 7, loss nan");
  progress.set_loss(std::numeric_limits<double>::infinity());
  meter.Update(progress, seconds(1));
  EXPECT_EQ(meter.Line(), "step 7, loss inf");
}

TEST(ProgressTest, AStepWithoutTotalHasNoBar) {
  ProgressMeter meter;
  meter.Update(At(7, 0, 1.5), seconds(0));
  EXPECT_EQ(meter.Bar("job", Style()), "job  step 7  loss 1.5");
}

TEST(ProgressTest, LinesAreRareAndTheLastOneIsAlwaysSaid) {
  ProgressMeter meter;
  int lines = 0;
  for (int step = 0; step <= 1000; ++step) {
    meter.Update(At(step, 1000), std::chrono::milliseconds(20 * step));
    lines += meter.LineDue(std::chrono::milliseconds(20 * step)) ? 1 : 0;
  }
  EXPECT_EQ(lines, 11);
  EXPECT_FALSE(meter.LineDue(seconds(100)));
  // A quick job: its beginning and its end.
  ProgressMeter quick;
  lines = 0;
  for (int step = 0; step <= 1000; ++step) {
    quick.Update(At(step, 1000), std::chrono::microseconds(500 * step));
    lines += quick.LineDue(std::chrono::microseconds(500 * step)) ? 1 : 0;
  }
  EXPECT_EQ(lines, 2);
  // A slow job: by time.
  ProgressMeter slow;
  slow.Update(At(1, 100000), seconds(0));
  EXPECT_TRUE(slow.LineDue(seconds(0)));
  slow.Update(At(2, 100000), seconds(9));
  EXPECT_FALSE(slow.LineDue(seconds(9)));
  EXPECT_TRUE(slow.LineDue(seconds(10)));
}

}  // namespace
}  // namespace meshrun::client
