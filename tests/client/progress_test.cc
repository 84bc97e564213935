#include "client/render/progress.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "core/proto_time.h"

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
  EXPECT_FALSE(meter.Rate(seconds(0)).has_value());
  meter.Update(At(10, 1000), seconds(1));
  EXPECT_DOUBLE_EQ(*meter.Rate(seconds(1)), 10);
  EXPECT_EQ(meter.Remaining(seconds(1)), seconds(99));
  // Ten times faster from here: the slow start is forgotten after the window.
  for (int t = 2; t <= 20; ++t) meter.Update(At(10 + 100 * (t - 1), 10000), seconds(t));
  EXPECT_DOUBLE_EQ(*meter.Rate(seconds(20)), 100);
}

// The page's rule: units.js has onlyAJobThatMakesStepsHasASpeedAndATimeLeft.
TEST(ProgressTest, OnlyAJobThatMakesStepsHasASpeedAndATimeLeft) {
  ProgressMeter meter;
  v1::Job job;
  const auto look = [&](int64_t step, int at) {
    *job.mutable_progress() = At(step, 130);
    meter.Update(job, seconds(at));
  };
  // The line; the bar has the same facts.
  const auto said = [&](int at) {
    const std::string line = meter.Line(seconds(at));
    Style style;
    style.width = 120;
    EXPECT_EQ(meter.Bar("j", style, seconds(at)).find("step/s") == std::string::npos,
              line.find("step/s") == std::string::npos);
    return line;
  };
  job.set_state(v1::JOB_STATE_RUNNING);
  look(10, 100);
  look(20, 101);
  look(30, 102);
  EXPECT_EQ(said(103), "step 30/130 (23%), 10 step/s, 10s left");
  EXPECT_EQ(said(116), "step 30/130 (23%), 10 step/s, 10s left") << "a step that takes longer";
  EXPECT_EQ(said(118), "step 30/130 (23%)") << "no step for longer than a few intervals";
  job.set_hang("no step for 1s");
  look(30, 103);
  EXPECT_EQ(said(103), "step 30/130 (23%)") << "it hangs";
  job.clear_hang();
  *job.mutable_paused_since() = ToProtoTimestamp(seconds(103));
  look(30, 103);
  EXPECT_EQ(said(103), "step 30/130 (23%)") << "it is paused";
  job.clear_paused_since();
  for (const v1::JobState state :
       {v1::JOB_STATE_QUEUED, v1::JOB_STATE_RENDEZVOUS, v1::JOB_STATE_QUIESCING,
        v1::JOB_STATE_WAITING, v1::JOB_STATE_SUSPENDED, v1::JOB_STATE_SUCCEEDED,
        v1::JOB_STATE_FAILED, v1::JOB_STATE_CANCELLED}) {
    job.set_state(state);
    look(30, 103);
    EXPECT_EQ(said(103), "step 30/130 (23%)") << v1::JobState_Name(state);
  }
}

// Its last steps and its end may be one change.
TEST(ProgressTest, AJobThatHasSucceededHasNeitherASpeedNorATimeLeft) {
  ProgressMeter meter;
  v1::Job job;
  job.set_state(v1::JOB_STATE_RUNNING);
  *job.mutable_progress() = At(10, 130);
  meter.Update(job, seconds(100));
  *job.mutable_progress() = At(30, 130);
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  meter.Update(job, seconds(102));
  EXPECT_EQ(meter.Line(seconds(103)), "step 30/130 (23%)");
}

TEST(ProgressTest, ATimeWithoutStepsIsNotInTheSpeed) {
  ProgressMeter meter;
  v1::Job job;
  job.set_state(v1::JOB_STATE_RUNNING);
  const auto look = [&](int64_t step, int at) {
    *job.mutable_progress() = At(step, 1000);
    meter.Update(job, seconds(at));
    return meter.Rate(seconds(at));
  };
  look(10, 0);
  EXPECT_EQ(look(20, 1), 10);
  *job.mutable_paused_since() = ToProtoTimestamp(seconds(2));
  EXPECT_EQ(look(20, 2), std::nullopt);
  job.clear_paused_since();
  EXPECT_EQ(look(20, 3602), std::nullopt) << "it goes on, without a step yet";
  EXPECT_EQ(look(25, 3603), std::nullopt);
  EXPECT_EQ(look(35, 3604), 10);
  // Nobody has paused it.
  EXPECT_EQ(look(40, 7204), std::nullopt);
  EXPECT_EQ(look(50, 7205), 10);
}

TEST(ProgressTest, SlowStepsAreNoStandstill) {
  ProgressMeter meter;
  for (int step = 1; step <= 3; ++step) meter.Update(At(step, 100), seconds(60 * step));
  EXPECT_EQ(meter.Line(seconds(480)), "step 3/100 (3%), 60 s/step, 1h37m left");
  EXPECT_EQ(meter.Line(seconds(481)), "step 3/100 (3%)");
}

TEST(ProgressTest, AFirstLookInTheMiddleOfAStepHasNoPartInTheSpeed) {
  ProgressMeter meter;
  meter.Look(At(7, 100));
  EXPECT_EQ(meter.Line(seconds(0)), "step 7/100 (7%)");
  // Steps of a minute, and the first ends 2 s after the look.
  meter.Update(At(7, 100), seconds(1));
  meter.Update(At(8, 100), seconds(2));
  EXPECT_EQ(meter.Line(seconds(2)), "step 8/100 (8%)");
  meter.Update(At(9, 100), seconds(62));
  EXPECT_THAT(meter.Line(seconds(62)), HasSubstr("60 s/step"));
}

TEST(ProgressTest, AClockThatIsSetBackLeavesNoNegativeSpeed) {
  ProgressMeter meter;
  meter.Update(At(10), seconds(3600));
  meter.Update(At(20), seconds(3601));
  meter.Update(At(30), seconds(2));
  meter.Update(At(40), seconds(3));
  EXPECT_DOUBLE_EQ(*meter.Rate(seconds(3)), 10);
}

TEST(ProgressTest, ANoteIsOneShortLine) {
  ProgressMeter meter;
  v1::Progress progress = At(5, 10);
  progress.set_note("validating\n" + std::string(500, 'x'));
  meter.Update(progress, seconds(0));
  EXPECT_EQ(meter.Line(seconds(0)), "step 5/10 (50%), validating");
  progress.set_note(std::string(500, 'x'));
  meter.Update(progress, seconds(1));
  EXPECT_EQ(meter.Line(seconds(1)), "step 5/10 (50%), " + std::string(57, 'x') + "...");
}

TEST(ProgressTest, ARestartForgetsTheRate) {
  ProgressMeter meter;
  meter.Update(At(500, 1000), seconds(1));
  meter.Update(At(600, 1000), seconds(2));
  meter.Update(At(100, 1000), seconds(3));
  EXPECT_FALSE(meter.Rate(seconds(3)).has_value());
  meter.Update(At(150, 1000), seconds(4));
  EXPECT_DOUBLE_EQ(*meter.Rate(seconds(4)), 50);
}

TEST(ProgressTest, TheLineHasWhatIsKnown) {
  ProgressMeter meter;
  EXPECT_TRUE(meter.empty());
  meter.Update(At(5), seconds(0));
  EXPECT_EQ(meter.Line(seconds(0)), "step 5");
  meter.Update(At(1200, 3000, 0.012345), seconds(14));
  EXPECT_EQ(meter.Line(seconds(14)), "step 1200/3000 (40%), loss 0.01235, 85.4 step/s, 22s left");
  meter.Update(At(1201, 3000), seconds(64));
  EXPECT_THAT(meter.Line(seconds(64)), HasSubstr("50 s/step"));
}

TEST(ProgressTest, TheBarFitsItsTerminal) {
  ProgressMeter meter;
  meter.Update(At(0, 100, 0.5), seconds(0));
  meter.Update(At(50, 100, 0.25), seconds(5));
  Style style;
  style.width = 120;
  EXPECT_EQ(meter.Bar("geoid", style, seconds(5)),
            "geoid ############------------  50%  50/100  loss 0.25  10 step/s  5s left");
  style.width = 52;
  EXPECT_EQ(meter.Bar("geoid", style, seconds(5)), "geoid ############------------  50%  50/100");
  style.width = 120;
  style.utf8 = true;
  EXPECT_EQ(meter.Bar("g", style, seconds(5)),
            "g ━━━━━━━━━━━━              50%  50/100  loss 0.25  10 step/s  5s left");
}

TEST(ProgressTest, ANarrowTerminalKeepsThePercentage) {
  ProgressMeter meter;
  meter.Update(At(0, 3000, 0.5), seconds(0));
  meter.Update(At(1200, 3000, 0.25), seconds(5));
  Style style;
  for (const std::string name : {"a", "train-k3x9w2", "a-long-name-of-a-job-0123456789-k3x9w2"}) {
    for (style.width = 5; style.width <= 130; ++style.width) {
      const std::string bar = meter.Bar(name, style, seconds(5));
      EXPECT_THAT(bar, HasSubstr(" 40%")) << style.width;
      EXPECT_LT(DisplayWidth(bar), static_cast<size_t>(std::max(style.width, 6))) << bar;
    }
  }
  style.width = 40;
  EXPECT_EQ(meter.Bar("train-k3x9w2", style, seconds(5)),
            "train-k3x9w2 ####------  40%  1200/3000");
  EXPECT_EQ(meter.Bar("a-long-name-of-a-job-k3x9w2", style, seconds(5)),
            "a-long-name-of-a-job-k... ###-----  40%");
}

TEST(ProgressTest, EachOfAHundredStepsIsAPercent) {
  ProgressMeter meter;
  for (int step = 0; step <= 100; ++step) {
    meter.Update(At(step, 100), seconds(step));
    EXPECT_THAT(meter.Line(seconds(step)), HasSubstr(fmt::format("step {}/100 ({}%)", step, step)));
  }
}

// As in units_speed.js. A total may be wrong.
TEST(ProgressTest, APercentageIsRoundedDownAndEndsAtAHundred) {
  for (const auto& [step, total, percent] :
       {std::tuple(29, 100, 29), {999, 1000, 99}, {1000, 1000, 100}, {150, 100, 100}}) {
    ProgressMeter meter;
    meter.Update(At(step, total), seconds(0));
    EXPECT_EQ(meter.Line(seconds(0)), fmt::format("step {}/{} ({}%)", step, total, percent));
    EXPECT_THAT(meter.Bar("j", Style(), seconds(0)), HasSubstr(fmt::format(" {:3}%", percent)));
  }
}

// As in units.js: textIsThatOfTheCommand.
TEST(ProgressTest, ASpeedHasAllDigitsBeforeThePoint) {
  for (const auto& [steps, over, text] : {std::tuple(1, 2, "2 s/step"),
                                          {1234, 10, "123 step/s"},
                                          {12345, 1, "12345 step/s"},
                                          {8544, 100, "85.4 step/s"},
                                          {1, 1234, "1234 s/step"}}) {
    ProgressMeter meter;
    meter.Update(At(0), seconds(0));
    meter.Update(At(steps), seconds(over));
    EXPECT_EQ(meter.Line(seconds(over)), fmt::format("step {}, {}", steps, text));
  }
}

TEST(ProgressTest, ALossThatIsNotFiniteIsShown) {
  ProgressMeter meter;
  v1::Progress progress = At(7);
  progress.set_loss(std::copysign(std::numeric_limits<double>::quiet_NaN(), -1));
  meter.Update(progress, seconds(0));
  EXPECT_EQ(meter.Line(seconds(0)), "step 7, loss nan");
  progress.set_loss(std::numeric_limits<double>::infinity());
  meter.Update(progress, seconds(1));
  EXPECT_EQ(meter.Line(seconds(1)), "step 7, loss inf");
}

TEST(ProgressTest, AStepWithoutTotalHasNoBar) {
  ProgressMeter meter;
  meter.Update(At(7, 0, 1.5), seconds(0));
  EXPECT_EQ(meter.Bar("job", Style(), seconds(0)), "job  step 7  loss 1.5");
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
