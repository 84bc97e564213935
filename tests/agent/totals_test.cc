// Totals of a process: each moment of waiting counts once, and nothing falls.
#include "agent/totals.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "agent/background.h"

namespace meshrun::agent {
namespace {

using std::chrono::seconds;

TEST(TotalsTest, WaitsThatOverlapCountOnce) {
  Totals totals;
  totals.SetCollectivesKnown();
  totals.BeginWait(seconds(10));
  totals.BeginWait(seconds(11));
  EXPECT_EQ(totals.Waited(seconds(12)), seconds(2));
  totals.EndWait(seconds(13));
  totals.EndWait(seconds(15));
  EXPECT_EQ(totals.Waited(seconds(20)), seconds(5));
  totals.BeginWait(seconds(20));
  EXPECT_EQ(totals.Waited(seconds(21)), seconds(6)) << "a wait under way counts up to now";
}

// An operation ends at the time at which its round began, which may be before the last look.
TEST(TotalsTest, WhatWasToldIsNotTakenBack) {
  Totals totals;
  totals.SetCollectivesKnown();
  totals.BeginWait(seconds(10));
  EXPECT_EQ(totals.Waited(seconds(14)), seconds(4));
  totals.EndWait(seconds(13));
  EXPECT_EQ(totals.Waited(seconds(30)), seconds(4));
  totals.BeginWait(seconds(29));
  EXPECT_EQ(totals.Waited(seconds(31)), seconds(5));
}

TEST(TotalsTest, WithoutCollectivesTheWaitsAreNotKnown) {
  Totals totals;
  totals.BeginWait(seconds(1));
  totals.EndWait(seconds(2));
  EXPECT_EQ(totals.Waited(seconds(3)), std::nullopt);
}

TEST(TotalsTest, ManyThreadsThatWaitNeverWaitForLongerThanTheClock) {
  const auto totals = std::make_shared<Totals>();
  totals->SetCollectivesKnown();
  const SteadyNanos begin = Clock::Real().SteadyNow();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int wait = 0; wait < 1000; ++wait) {
        const WaitScope outer(totals);
        const WaitScope inner(totals);
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const SteadyNanos end = Clock::Real().SteadyNow();
  EXPECT_GT(totals->Waited(end), SteadyNanos(0));
  EXPECT_LE(totals->Waited(end), end - begin);
}

TEST(TotalsTest, AThreadInTheBackgroundDoesNotWaitForTheTraining) {
  const auto totals = std::make_shared<Totals>();
  totals->SetCollectivesKnown();
  {
    const InBackground background;
    EXPECT_TRUE(IsInBackground());
    const WaitScope waits(totals);
    std::thread([] { EXPECT_FALSE(IsInBackground()); }).join();
  }
  EXPECT_FALSE(IsInBackground());
  EXPECT_EQ(totals->Waited(Clock::Real().SteadyNow()), SteadyNanos(0));
}

}  // namespace
}  // namespace meshrun::agent
