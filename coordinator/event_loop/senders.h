// How much of the loop's queue each sender has: an event waits for a bounded time, whoever else
// asks for how much.
//
// A sender is the user or the node of a call's certificate, or a session. Of each, as many events
// may wait as take Limits::time to step, judged by the slowest of its kind lately. Nobody is slowed
// down while the loop keeps up. coordinator/services/call_gate.h limits what comes at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "core/clock.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// Threads: one at a time.
class Senders {
 public:
  struct Limits {
    // Waiting events of one sender: by the time that they will take, and by number. A node's calls
    // are those of its ranks: it has four times as much.
    SteadyNanos time = std::chrono::milliseconds(50);
    size_t least = 8;
    size_t most = 1024;
    size_t bytes = 32u << 20;
  };

  explicit Senders(const Limits& limits) : limits_(limits) {}

  struct Event {
    // Empty for what nobody sends, such as the end of a call.
    std::string sender;
    int kind = 0;
    size_t bytes = 0;
    // What it is expected to take; set by OnQueued.
    SteadyNanos cost{0};
  };
  static Event EventOf(const v1::StateEvent& event, size_t bytes);

  // Whether a call may join the queue. RESOURCE_EXHAUSTED (TryAgainLater) names the wait.
  absl::Status Admit(const Event& event) const;
  // True where a session should read nothing more, until HasRoom.
  bool IsFull(const std::string& sender) const;
  bool HasRoom(const std::string& sender) const;
  // An event has joined the queue; has left it; has been stepped, in so long.
  void OnQueued(Event& event, SteadyNanos now);
  void OnTaken(const Event& event);
  void OnStepped(const Event& event, SteadyNanos took);

  // Forgets those that have nothing waiting, and have sent nothing for a while.
  void Forget(SteadyNanos now);
  size_t size() const { return by_name_.size(); }

 private:
  struct Sender {
    size_t waiting = 0;
    size_t bytes = 0;
    SteadyNanos cost{0};
    // The slowest lately, by kind.
    std::map<int, SteadyNanos> slowest;
    SteadyNanos last{0};
  };

  bool IsFull(std::string_view name, const Sender& sender, int part) const;

  const Limits limits_;
  std::unordered_map<std::string, Sender> by_name_;
};

}  // namespace meshrun::coordinator
