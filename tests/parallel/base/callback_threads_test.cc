#include "parallel/base/callback_threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

bool comes_in_order(CallOrder& order) { return !CallOrder::Call(order).is_late(); }

TEST(CallbackThreadsTest, CallbacksOfOneOrderStartAsTheirTurnsWereTaken) {
  std::mutex mu;
  std::vector<int> ran;
  std::promise<void> last;
  const int order = 0;
  std::vector<std::unique_ptr<CallbackTurn>> turns;
  for (int i = 0; i < 20; ++i) {
    turns.push_back(std::make_unique<CallbackTurn>(&order, [&, i] {
      const std::lock_guard lock(mu);
      ran.push_back(i);
      if (i == 19) last.set_value();
    }));
  }
  turns[7].reset();  // gives its turn up
  for (int i = 19; i >= 0; --i) {
    if (turns[static_cast<size_t>(i)]) turns[static_cast<size_t>(i)]->ready();
  }
  last.get_future().get();
  const std::lock_guard lock(mu);
  EXPECT_EQ(ran,
            std::vector<int>({0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
}

TEST(CallbackThreadsTest, ACallbackWaitsForOneThatItMakes) {
  const int order = 0;
  std::promise<void> outer;
  CallbackTurn first(&order, [&] {
    std::promise<void> inner;
    CallbackTurn turn(&order, [&] { inner.set_value(); });
    turn.ready();
    inner.get_future().get();
    outer.set_value();
  });
  const auto since = steady_clock::now();
  first.ready();
  outer.get_future().get();
  EXPECT_LT(steady_clock::now() - since, CallbackTurn::kPatience);
}

TEST(CallbackThreadsTest, ACallbackWaitsForOneWhoseTurnIsLater) {
  const int order = 0;
  std::promise<void> second_ran, both;
  CallbackTurn first(&order, [&] {
    second_ran.get_future().get();
    both.set_value();
  });
  CallbackTurn second(&order, [&] { second_ran.set_value(); });
  first.ready();
  second.ready();
  both.get_future().get();
}

TEST(CallbackThreadsTest, ACallbackOfAnotherOrderIsNotHeldUp) {
  const int one = 0, other = 0;
  std::promise<void> other_ran, both;
  CallbackTurn first(&one, [&] {
    other_ran.get_future().get();
    both.set_value();
  });
  CallbackTurn second(&other, [&] { other_ran.set_value(); });
  const auto since = steady_clock::now();
  first.ready();
  second.ready();
  both.get_future().get();
  EXPECT_LT(steady_clock::now() - since, CallbackTurn::kPatience);
}

TEST(CallbackThreadsTest, ATurnHasOneBeforeItUntilThatHasEnded) {
  const int order = 0;
  EXPECT_FALSE(CallbackTurn::has_one_before(&order));
  std::promise<void> goes_on;
  CallbackTurn turn(&order, [&] { goes_on.get_future().get(); });
  EXPECT_TRUE(CallbackTurn::has_one_before(&order));
  turn.ready();
  EXPECT_FALSE(CallbackTurn::await_all(steady_clock::now() + milliseconds(20)));
  EXPECT_TRUE(CallbackTurn::has_one_before(&order));
  goes_on.set_value();
  EXPECT_TRUE(CallbackTurn::await_all(steady_clock::now() + seconds(20)));
  {
    CallbackTurn given_up(&order, [] {});
    EXPECT_TRUE(CallbackTurn::has_one_before(&order));
  }
  EXPECT_TRUE(CallbackTurn::await_all(steady_clock::now()));
}

TEST(CallbackThreadsTest, CallsOfACallbackBelongBeforeThoseThatTheProgramMakesLater) {
  const int order = 0;
  CallOrder one, other;
  bool in_time = false, late = true, nested = true, elsewhere = false;
  std::promise<void> first_ended, second_ended;
  EXPECT_TRUE(comes_in_order(one));
  CallbackTurn first(&order, [&] {
    in_time = comes_in_order(one) && comes_in_order(one);
    first_ended.set_value();
  });
  first.ready();
  first_ended.get_future().get();
  EXPECT_TRUE(comes_in_order(one));
  CallbackTurn second(&order, [&] {
    late = comes_in_order(one);
    elsewhere = comes_in_order(other);
    std::promise<void> inner;
    CallbackTurn turn(&order, [&] {
      nested = comes_in_order(one);
      inner.set_value();
    });
    turn.ready();
    inner.get_future().get();
    second_ended.set_value();
  });
  EXPECT_TRUE(comes_in_order(one));
  second.ready();
  second_ended.get_future().get();
  EXPECT_TRUE(in_time);
  EXPECT_FALSE(late);
  EXPECT_FALSE(nested);
  EXPECT_TRUE(elsewhere);
}

TEST(CallbackThreadsTest, CallsOfAnInnerCallbackBelongBeforeThoseThatTheOuterOneMakesLater) {
  const int order = 0;
  for (const bool outer_goes_on : {false, true}) {
    CallOrder calls;
    std::promise<bool> inner_ended, outer_ended;
    CallbackTurn outer(&order, [&] {
      bool in_order = comes_in_order(calls);
      CallbackTurn inner(&order, [&] { inner_ended.set_value(comes_in_order(calls)); });
      if (outer_goes_on) in_order = comes_in_order(calls) && in_order;
      inner.ready();
      outer_ended.set_value(inner_ended.get_future().get());
      if (!outer_goes_on) in_order = comes_in_order(calls) && in_order;
      EXPECT_TRUE(in_order);
    });
    outer.ready();
    EXPECT_EQ(outer_ended.get_future().get(), !outer_goes_on);
    EXPECT_TRUE(CallbackTurn::await_all(steady_clock::now() + seconds(10)));
  }
}

TEST(CallbackThreadsTest, WithoutAnOrderItRunsWhenItIsReady) {
  std::promise<void> ran;
  CallbackTurn waits(nullptr, [] {});
  CallbackTurn turn(nullptr, [&] { ran.set_value(); });
  turn.ready();
  turn.ready();
  ran.get_future().get();
}

}  // namespace
}  // namespace meshrun
