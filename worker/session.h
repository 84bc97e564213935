// A worker daemon's session with its coordinator: connects, says Hello, keeps the lease from this
// side, and connects again (after 20 ms, growing to 1 s) when it breaks. Lives on the event loop's
// thread; the stream's own callbacks come from gRPC's threads and are posted there.
//
//   CONNECTING --Welcome--> OPEN --no message for a while, or the stream ends--> WAITING
//       ^                                                                           |
//       +-------------------------------- pause over -------------------------------+
//
// "A while" is a part of the lease, because a network that loses many packets can hold up one TCP
// connection for seconds while others pass. After a silence the next Hello goes over another
// connection. If that is held up too, Hellos go over further connections in parallel until the
// lease is over. The first stream that gets a Welcome is the session. If another one gets a Welcome
// later, both sides take the one with the higher attempt number as the session.
//
// No messages are kept while the session is not open: the next Hello carries the whole state.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/rpc/renewed_channel.h"
#include "meshrun/v1/session.grpc.pb.h"
#include "worker/clock/coordinator_clock.h"
#include "worker/event_loop/event_loop.h"

namespace meshrun::worker {

class SessionStream;

class Session {
 public:
  struct Handler {
    // Before each connection: whether the coordinator's address may be used. A connection that it
    // refuses counts as one that broke.
    std::function<absl::Status()> check_address;
    // What this daemon is and runs, as of now.
    std::function<v1::Hello()> hello;
    // Whether this coordinator may command us; asked before anything of it counts, its Welcome
    // included.
    std::function<absl::Status(const v1::Welcome&)> check_welcome;
    // With the Hello that was sent over this stream. It may be out of date: ranks may have ended
    // since, or another stream was the session meanwhile.
    std::function<void(const v1::Welcome&, const v1::Hello&)> on_welcome;
    // Commands: everything but Welcome and HeartbeatReply.
    std::function<void(const v1::OpenSessionResponse&)> on_message;
    // The coordinator refuses this daemon as it is (FAILED_PRECONDITION, INVALID_ARGUMENT,
    // PERMISSION_DENIED); all of several do, or have a leader that does. True: do not try again.
    std::function<bool(const absl::Status&)> on_refused;
  };

  // `term`: the highest that is known. `renewal_interval`: between two attempts to begin a session
  // with a renewed certificate.
  Session(EventLoop& loop, std::shared_ptr<rpc::RenewedChannel> channel, uint64_t incarnation,
          Handler handler, uint64_t term = 0,
          std::chrono::nanoseconds renewal_interval = std::chrono::seconds(10));
  ~Session();

  // `contact`: what Contact says until the coordinator answers.
  void Start(std::chrono::nanoseconds contact);
  // From now on every heartbeat says that this worker is stopping; the first one is sent at once.
  void Drain();
  // Begins a session anew, with the certificate that lies in its file now: one that shows the old
  // certificate would end with it. Until the coordinator has welcomed it the old one goes on; if it
  // does not, another attempt follows.
  void Renew();
  // Dropped while the session is not open. The fence's term and incarnation are filled in.
  void Send(v1::OpenSessionRequest message);
  bool open() const { return open_ != nullptr; }
  // The highest term seen.
  uint64_t term() const { return term_; }
  // When this worker sent the last heartbeat, or Hello, that was answered; CLOCK_BOOTTIME. The time
  // at which the answer came says nothing: it may have been on its way for long, and the
  // coordinator counts from what it received.
  std::chrono::nanoseconds Contact() const { return contact_; }
  const CoordinatorClock& clock() const { return clock_; }

  // Sends what is queued and Goodbye, ends the stream, and calls `on_closed`, at the latest after
  // `timeout`. The session does not open again.
  void Close(std::chrono::nanoseconds timeout, std::function<void()> on_closed);

 private:
  friend class SessionStream;
  using Time = std::chrono::steady_clock::time_point;

  void Connect();
  // In a hurry: says Hello over another connection too.
  void ConnectInParallel();
  // Whether a stream is under way that may become the session.
  bool connecting() const;
  void OnMessage(SessionStream& stream, const v1::OpenSessionResponse& message);
  // `stream` is null where none could begin.
  void OnDone(const SessionStream* stream, absl::Status status);
  // What the end of a stream to `address` says of refusals.
  void NoteRefusal(const std::string& address, const absl::Status& status, bool is_refused);
  bool AllRefuse() const;
  void OnTick();
  // `old`: once there is another channel than this one.
  void RenewOver(const v1::SessionService::Stub* old);
  // The coordinator did not take it.
  void RetryRenewal(const absl::Status& why);
  // Says Hello over a stream of its own, as the next attempt of number_.
  void BeginStream();
  // The next stream goes over another connection.
  void LeaveConnection(SessionStream& stream);
  // For how long an open session may be silent.
  std::chrono::nanoseconds Patience() const;
  // `is_second_look`: what came while this daemon stood still has been read.
  void WatchSilence(std::chrono::nanoseconds after, bool is_second_look = false);
  void SendHeartbeat();
  void OnWelcome(SessionStream& stream, const v1::OpenSessionResponse& message);

  EventLoop& loop_;
  rpc::StubOf<v1::SessionService> stub_;
  const uint64_t incarnation_;
  Handler handler_;
  std::vector<std::unique_ptr<SessionStream>> streams_;
  // The one among them that was welcomed last, until it ends.
  SessionStream* open_ = nullptr;
  // Hello.session_number. It begins at the wall clock's time, so it is above the numbers of an
  // earlier daemon that ran with the same incarnation, from a copy of the state directory.
  uint64_t number_;
  uint32_t attempt_ = 0;
  bool number_is_welcomed_ = false;
  uint64_t term_ = 0;
  const std::chrono::nanoseconds renewal_interval_;
  uint64_t sequence_ = 0;
  std::chrono::nanoseconds lease_{std::chrono::seconds(5)};
  std::chrono::nanoseconds heartbeat_interval_{std::chrono::seconds(1)};
  std::chrono::nanoseconds backoff_{0};
  Time last_heard_;
  std::chrono::nanoseconds contact_{0};
  CoordinatorClock clock_;
  // Those of the open stream that are not answered yet.
  std::deque<std::pair<uint64_t, std::chrono::nanoseconds>> heartbeats_sent_;
  // After a silence: when the lease is over.
  Time hurry_until_;
  EventLoop::TimerId tick_ = 0;
  EventLoop::TimerId silence_ = 0;
  EventLoop::TimerId parallel_connect_timer_ = 0;
  EventLoop::TimerId reconnect_ = 0;
  EventLoop::TimerId renewal_ = 0;
  // Addresses of coordinators that refuse this daemon, since the last Welcome.
  std::set<std::string> refusing_;
  // What one of them has said last.
  absl::Status refusal_;
  std::string last_error_;
  Time last_told_;
  std::string last_renewal_error_;
  bool draining_ = false;
  bool closing_ = false;
  std::function<void()> on_closed_;
};

}  // namespace meshrun::worker
