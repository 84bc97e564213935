// Runs callbacks that may block, on threads that nobody waits for with a lock in hand.
//
// Callbacks of one order start one after the other, in which they took their turns: those that call
// collectives call them alike on all ranks. One that takes longer than kPatience no longer holds up
// the next, which it may wait for. A turn that is taken on such a thread, in a callback, belongs to
// the next lane: the callback can wait for it at once.
//
// A thread that has had nothing to do for a second ends. In a child of fork() there are new ones.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace meshrun {

class CallbackTurn {
 public:
  static constexpr std::chrono::milliseconds kPatience{100};

  // Takes its turn in `order`, an address; null: in none, it runs when it is ready.
  CallbackTurn(const void* order, std::function<void()> callback);
  // Gives it up, where it was not ready.
  ~CallbackTurn();
  CallbackTurn(const CallbackTurn&) = delete;
  CallbackTurn& operator=(const CallbackTurn&) = delete;

  // The callback may run, on another thread. It must not throw.
  void ready();

 private:
  struct Entry;
  const std::shared_ptr<Entry> entry_;
};

}  // namespace meshrun
