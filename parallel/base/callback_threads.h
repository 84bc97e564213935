// Runs callbacks that may block, on threads that nobody waits for with a lock in hand.
//
// Callbacks of one order run one after the other, in which they took their turns: those that call
// collectives call them alike on all ranks. One that takes longer than kPatience no longer holds up
// the next, which it may wait for. A turn that is taken on such a thread, in a callback, belongs to
// the next lane of its order: the callback can wait for it at once.
//
// A thread that has had nothing to do for a second ends. In a child of fork() there are new ones.
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "core/mutex.h"

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

// A place in the program's order of calls: its own calls are numbered, and those of a callback come
// below the number at which it took its turn. Callbacks deeper than kDepth have one place.
class CallPlace {
 public:
  static constexpr size_t kDepth = 4;
  // The place of what this thread calls next.
  static CallPlace next();

  friend auto operator<=>(const CallPlace&, const CallPlace&) = default;

 private:
  std::array<uint64_t, kDepth> numbers_{};
};

// Finds calls on one group that other ranks may make in another order: a callback's calls belong
// where it took its turn, before all that the program calls later.
//
// Threads: any. Program's threads among each other are not looked at.
class CallOrder {
 public:
  // A call by this thread. No other one is made as long as this lives: until the operation has its
  // number.
  class Call {
   public:
    explicit Call(CallOrder& order);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    // A later one was made before it.
    bool is_late() const { return is_late_; }

   private:
    CallOrder& order_;
    bool is_late_ = false;
  };

 private:
  Mutex mu_;
  CallPlace last_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun
