// Lets calls in by their first bytes alone, before their requests are read: of each holder of a
// certificate so many may be under way at once, so many calls may come in a second, and so many
// bytes. What is refused here costs the coordinator a header. Without it a user could have requests
// of gigabytes read and parsed before anybody looks at one.
//
// A call is under way until its request has been read, and a user's call with one answer until that
// has been sent. Nobody is told of a call that ends before its request has come; its place is free
// after Limits::request_time.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/rpc/roles.h"

namespace meshrun::coordinator {

// Thread-safe.
class CallGate {
 public:
  struct Limits {
    // Calls under way: as many as make up so many bytes, if each has those of the largest request
    // or answer lately, and within these numbers.
    double bytes = 4 << 20;
    size_t least = 2;
    size_t most = 64;
    // What is taken for the largest of a holder whom nobody knows yet.
    double largest = 256 << 10;
    SteadyNanos request_time = std::chrono::seconds(10);
    // And how much may come at once after a pause.
    double calls_per_second = 1000;
    double calls_at_once = 4000;
    double bytes_per_second = 4 << 20;
    double bytes_at_once = 8 << 20;
    // A node speaks for its ranks: it has so many times as much of all, and no rate of calls. A
    // certificate of all nodes (`*`) has no limits.
    size_t node_share = 4;
    // Refused calls of a holder, and how many may be refused at once. A client of good will waits
    // before it repeats a call.
    double refusals_per_second = 500;
    double refusals_at_once = 1000;
  };
  // Called while a holder has more refused calls than that, every 100 ms at most, from any thread.
  using OnFlood = std::function<void(const std::string& name)>;

  CallGate(const Limits& limits, const Clock& clock, OnFlood on_flood)
      : limits_(limits), clock_(clock), on_flood_(std::move(on_flood)) {}

  // A certificate of all nodes: of one run over several hosts, or of a cluster whose hosts have
  // one. Nobody knows which host calls.
  static bool SpeaksForAll(const rpc::Identity& caller);
  // What a holder is called: a user and a node of one name are two.
  static std::string NameOf(const rpc::Identity& caller);

  // RESOURCE_EXHAUSTED (rpc::NotRead) names who makes too many calls, and when to try again.
  absl::Status Admit(const rpc::Identity& caller);
  // The same for a call whose request nobody here sees, as a health check's or a session's: only
  // its rate counts.
  absl::Status AdmitUnseen(const rpc::Identity& caller);
  // The caller's role was refused: counts for a flood.
  void OnDenied(const rpc::Identity& caller);
  // The request of a call that was let in has been read.
  void OnRequest(const rpc::Identity& caller, size_t bytes);
  // A call with one answer begins; its answer has left.
  void OnCall(const rpc::Identity& caller);
  void OnAnswer(const rpc::Identity& caller, size_t bytes);

 private:
  // What may be taken from it at any time: it fills up at a rate.
  struct Bucket {
    double left = 0;
    void Fill(double seconds, double rate, double most) {
      left = std::min(most, left + seconds * rate);
    }
  };
  struct Holder {
    // When each request on its way was let in.
    std::deque<SteadyNanos> coming;
    size_t waiting = 0;
    Bucket calls;
    Bucket bytes;
    Bucket refusals;
    // When it was told last.
    SteadyNanos flooded_at = -std::chrono::seconds(1);
    // Bytes of the largest request or answer lately.
    double largest = 0;
    SteadyNanos as_of{0};
  };

  size_t Most(const Holder& holder) const;
  size_t ShareOf(const rpc::Identity& caller) const;
  Holder& Find(const rpc::Identity& caller, SteadyNanos now) MESHRUN_REQUIRES(mu_);
  void Forget(SteadyNanos now) MESHRUN_REQUIRES(mu_);
  absl::Status Check(const rpc::Identity& caller, const Holder& holder) const;
  absl::Status CheckRate(const rpc::Identity& caller, const Holder& holder) const;
  // Takes the call, or counts a refusal. `begins`: its request will be seen.
  absl::Status Take(const rpc::Identity& caller, bool begins, absl::Status denied);
  // True where the flood is to be told.
  bool OnRefusal(Holder& holder, size_t share, SteadyNanos now) MESHRUN_REQUIRES(mu_);

  const Limits limits_;
  const Clock& clock_;
  const OnFlood on_flood_;
  Mutex mu_;
  std::unordered_map<std::string, Holder> holders_ MESHRUN_GUARDED_BY(mu_);
  SteadyNanos forgotten_at_ MESHRUN_GUARDED_BY(mu_){0};
};

}  // namespace meshrun::coordinator
