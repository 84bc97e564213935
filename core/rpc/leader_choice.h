// Which of several coordinators to speak to: one of them leads, and the others are standbys, which
// answer at once and name the leader.
//
// A call's end decides:
//   a standby names the leader        the leader is next
//   a standby knows of none           the next of the list
//   nobody was reached                the next of the list
//   anything else, errors too         the leader has answered: nothing changes
//
// Until a new leader is elected, standbys name the one that is gone. So no address is tried twice
// within a short time, which grows for one that was not reached again and again. With one address,
// and no standby that names another, nothing ever changes.
//
// Pure, except that it may be shared: by the channels of a process, so that what one of them finds
// out holds for all. Threads: any.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace meshrun::rpc {

// Addresses of "a:1,b:1,c:1" in their order, each once. "unix:PATH" may hold commas: in a text that
// begins so, addresses are separated by ",unix:". An empty piece stays, for whoever checks them.
std::vector<std::string> SplitAddresses(std::string_view text);
// "a:1, b:1, c:1", for sentences.
std::string JoinAddresses(const std::vector<std::string>& addresses);

class LeaderChoice {
 public:
  // Between the end of an attempt at an address and the next one there.
  static constexpr std::chrono::milliseconds kLeastDistance{250};
  // It doubles with each attempt that reaches nobody, up to this.
  static constexpr std::chrono::seconds kLongestDistance{4};

  // `addresses`: one at least. `clock` outlives this.
  explicit LeaderChoice(std::vector<std::string> addresses, const Clock& clock = Clock::Real());
  // `text`: as SplitAddresses.
  static std::shared_ptr<LeaderChoice> Of(std::string_view text) {
    return std::make_shared<LeaderChoice>(SplitAddresses(text));
  }

  // The one to speak to.
  std::string address() const MESHRUN_EXCLUDES(mu_);
  // How long to wait before that; 0: it is time.
  SteadyNanos Wait() const MESHRUN_EXCLUDES(mu_);
  // Whether there is another one to turn to. It can become true, where a standby names one.
  bool HasOthers() const MESHRUN_EXCLUDES(mu_);
  // Those that were given.
  const std::vector<std::string>& given() const { return given_; }

  // Whether OnEnd leaves an address whose call has ended so.
  static bool MovesOn(const absl::Status& status);

  // The one at `address` leads: it takes part in a session.
  void OnLeads(const std::string& address) MESHRUN_EXCLUDES(mu_);
  // A call at `address` has ended so.
  void OnEnd(const std::string& address, const absl::Status& status) MESHRUN_EXCLUDES(mu_);
  // An attempt at `address` reached nobody: a connection stands still, or none can be made.
  void OnUnreached(const std::string& address) MESHRUN_EXCLUDES(mu_);

 private:
  struct Place {
    std::string address;
    SteadyNanos free_at{0};
    // Attempts in sequence that reached nobody.
    int unreached = 0;
  };

  Place* Find(const std::string& address) MESHRUN_REQUIRES(mu_);
  // `by` has named the leader.
  void Remember(const std::string& leader, const std::string& by) MESHRUN_REQUIRES(mu_);
  // Leaves `place`, if it is the chosen one, for the one that comes next.
  void Leave(const Place& place) MESHRUN_REQUIRES(mu_);

  const std::vector<std::string> given_;
  const Clock& clock_;
  mutable Mutex mu_;
  // Those given, then some that standbys have named: the leader, and those still spoken to.
  std::vector<Place> places_ MESHRUN_GUARDED_BY(mu_);
  size_t chosen_ MESHRUN_GUARDED_BY(mu_) = 0;
  // The leader as it was last named; empty: by nobody.
  std::string named_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::rpc
