#include "parallel/base/periodic_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace meshrun {
namespace {

using std::chrono::milliseconds;

// Leaked, as its thread asks.
PeriodicCalls& every_5_ms() {
  static auto* const calls = new PeriodicCalls(milliseconds(5));
  return *calls;
}

void wait_until_above(const std::atomic<int>& count, int than) {
  while (count.load() <= than) std::this_thread::sleep_for(milliseconds(1));
}

TEST(PeriodicCallsTest, MembersAreCalledUntilTheyAreRemoved) {
  std::atomic<int> first{0}, second{0};
  every_5_ms().add(&first, [&] { ++first; });
  wait_until_above(first, 2);
  every_5_ms().add(&second, [&] { ++second; });
  wait_until_above(second, 2);
  every_5_ms().remove(&first);
  const int calls = first.load();
  wait_until_above(second, second.load() + 3);
  EXPECT_EQ(first.load(), calls);
  every_5_ms().remove(&second);
  // It starts again after a time without members.
  const int before = first.load();
  every_5_ms().add(&first, [&] { ++first; });
  wait_until_above(first, before);
  every_5_ms().remove(&first);
}

TEST(PeriodicCallsTest, RemoveWaitsForTheCallThatIsUnderWay) {
  std::atomic<int> begun{0}, ended{0};
  every_5_ms().add(&begun, [&] {
    ++begun;
    std::this_thread::sleep_for(milliseconds(50));
    ++ended;
  });
  wait_until_above(begun, 0);
  every_5_ms().remove(&begun);
  EXPECT_EQ(begun.load(), ended.load());
}

}  // namespace
}  // namespace meshrun
