// Runs callbacks that may block, on threads that nobody waits for with a lock in hand.
//
// Callbacks of one order run one after the other, in which they took their turns: those that call
// collectives call them alike on all ranks. One that takes longer than kPatience no longer holds up
// the next, which it may wait for. A turn that is taken on such a thread, in a callback, belongs to
// the next lane of its order: the callback can wait for it at once.
//
// A thread that has had nothing to do for a second ends. In a child of fork() there are new ones.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace meshrun {

class CallbackTurn {
 public:
  static constexpr std::chrono::seconds kPatience{2};

  // Takes its turn in `order`, an address; null: in none, it runs when it is ready.
  CallbackTurn(const void* order, std::function<void()> callback);
  // Gives it up, where it was not ready.
  ~CallbackTurn();
  CallbackTurn(const CallbackTurn&) = delete;
  CallbackTurn& operator=(const CallbackTurn&) = delete;

  // The callback may run, on another thread. It must not throw.
  void ready();

  // Whether a turn that this thread takes now would have one before it that has not ended.
  static bool has_one_before(const void* order);
  // Waits for the callbacks that may run, and for those that become ready meanwhile. False where
  // some are left at that time, or on a thread of callbacks.
  static bool await_all(std::chrono::steady_clock::time_point until);

 private:
  struct Entry;
  class Lane;
  class Process;
  const std::shared_ptr<Entry> entry_;
};

// Finds calls on one group that other ranks may make in another order: a callback's calls belong
// where it took its turn, before all that the program calls later.
//
// Threads: any. Program's threads among each other are not looked at.
class CallOrder {
 public:
  // A call by this thread. False: a later one was made before it.
  bool add();

 private:
  std::atomic<uint64_t> last_{0};
};

}  // namespace meshrun
