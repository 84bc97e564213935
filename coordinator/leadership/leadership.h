// Which of several coordinators leads: the one whose state machine runs, whose transactions the
// state takes, and to which workers and clients speak. The others are standbys.
//
//   candidate --Campaign() returns OK--> leads --lease not renewed in time, or Stop()--> candidate
//
// Two guards against split brain, neither of which needs the other:
//   - The leader stops by its own steady clock before anybody else can begin: Leads() is false as
//     soon as the last confirmed renewal of its lease was *sent* a TTL ago or longer. That clock
//     goes on while the host is suspended. Nobody's wall clock, and no clock of another host, takes
//     part.
//   - Its term (StateStore::BeginTerm, called after each Campaign) fences every transaction. A
//     process that was stopped between its look at Leads() and its commit writes nothing.
//
// Threads: any method from any thread, except that Campaign is called by one thread at a time. No
// method but Campaign and Stop waits for the network. Destruction stops; by then no call of another
// thread may be under way.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace meshrun::coordinator {

class Leadership {
 public:
  struct Candidate {
    // Unique among the candidates (--name).
    std::string name;
    // Where workers and clients reach it (--advertise).
    std::string address;
    bool leads = false;
  };

  virtual ~Leadership() = default;

  // Waits until this candidate leads. Again after a loss, as often as wanted; where it leads
  // already, returns OK at once. While what it needs cannot be reached it keeps trying, and says so
  // in the log.
  // Errors, after which a further try is of no use:
  //   CANCELLED: Stop was called, before or meanwhile.
  //   UNAUTHENTICATED, PERMISSION_DENIED: user, password or certificate are refused, and were never
  //     accepted. What was accepted once is tried until it is accepted again.
  //   INVALID_ARGUMENT: what we were given is wrong, and was so from the start; the text says what.
  //   ALREADY_EXISTS: another live candidate has the same name.
  virtual absl::Status Campaign() = 0;

  // Whether nobody else can lead now, by our own steady clock. Cheap: one load and a clock.
  virtual bool Leads() const = 0;

  // `lost` is called once after each OK of Campaign, with the reason, as soon as Leads() has become
  // false; also by Stop. It runs on a thread of the leadership's own and may not call Campaign or
  // Stop; whoever needs them wakes another thread. Set before the first Campaign.
  virtual void OnLost(std::function<void(const std::string& reason)> lost) = 0;

  // The leader as last seen; absent where none is known. It may be out of date by a TTL, and is
  // this candidate only while Leads().
  virtual std::optional<Candidate> Leader() const = 0;
  // All that live, in the order of their names, as last seen: with this one, once it has been
  // registered.
  virtual std::vector<Candidate> Candidates() const = 0;

  // Why nobody is known to lead, as a sentence without an end; empty: nothing is wrong, and one
  // will be elected soon.
  virtual std::string Problem() const { return ""; }

  // Gives up, for good: the next leader need not wait for the end of the lease. A Campaign under
  // way returns CANCELLED. Waits for the network for a second at most; what could not be said by
  // then ends with the lease. Call it when nothing more is committed.
  virtual void Stop() = 0;
};

}  // namespace meshrun::coordinator
