#include "worker/session.h"

#include <algorithm>
#include <utility>

#include "core/error_detail.h"
#include "core/log.h"
#include "core/os/boot_time.h"
#include "core/proto_time.h"
#include "core/rpc/status_conversion.h"
#include "worker/session_stream.h"

namespace meshrun::worker {
namespace {

constexpr std::chrono::milliseconds kFirstBackoff(20);
constexpr std::chrono::seconds kLongestBackoff(1);
constexpr std::chrono::seconds kBetweenErrors(10);
// In a hurry, between two Hellos: time for an answer, and for RenewedChannel to make another
// channel.
constexpr std::chrono::nanoseconds kMinHelloInterval = rpc::RenewedChannel::kLeastDistance;
// The same where another coordinator may lead by now: a session is to be at the next leader within
// a second.
constexpr std::chrono::nanoseconds kOtherHelloInterval = std::chrono::milliseconds(400);
// After a silence: until what may have come before it has been read.
constexpr std::chrono::milliseconds kSecondLook(20);

}  // namespace

Session::Session(EventLoop& loop, std::shared_ptr<rpc::RenewedChannel> channel,
                 uint64_t incarnation, Handler handler, uint64_t term,
                 std::chrono::nanoseconds renewal_interval)
    : loop_(loop),
      stub_(std::move(channel)),
      incarnation_(incarnation),
      handler_(std::move(handler)),
      number_(static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count())),
      term_(term),
      renewal_interval_(renewal_interval) {}

Session::~Session() = default;

void Session::Start(std::chrono::nanoseconds contact) {
  last_heard_ = std::chrono::steady_clock::now();
  contact_ = contact;
  Connect();
  OnTick();
}

void Session::Connect() {
  loop_.Cancel(reconnect_);
  loop_.Cancel(parallel_connect_timer_);
  if (closing_ || open()) return;
  if (const absl::Status usable = handler_.check_address(); !usable.ok()) {
    OnDone(nullptr, usable);
    return;
  }
  if (number_is_welcomed_ || !connecting()) {
    for (const auto& older : streams_) older->Supersede();
    ++number_;
    attempt_ = 0;
    number_is_welcomed_ = false;
  }
  BeginStream();
  const auto interval = stub_.choice().HasOthers()
                            ? kOtherHelloInterval
                            : std::max<std::chrono::nanoseconds>(kMinHelloInterval, lease_ / 5);
  parallel_connect_timer_ = loop_.After(interval, [this] { ConnectInParallel(); });
}

void Session::BeginStream() {
  SessionStream& stream =
      *streams_.emplace_back(std::make_unique<SessionStream>(*this, loop_, stub_, ++attempt_));
  stream.Begin();
  v1::OpenSessionRequest message;
  *message.mutable_hello() = handler_.hello();
  message.mutable_hello()->set_session_number(number_);
  message.mutable_hello()->set_attempt(attempt_);
  message.mutable_fence()->set_term(term_);
  message.mutable_fence()->set_incarnation(incarnation_);
  stream.SayHello(std::move(message));
}

void Session::ConnectInParallel() {
  if (closing_ || open()) return;
  const bool in_hurry = std::chrono::steady_clock::now() < hurry_until_;
  // Another coordinator may lead where this one is not reached.
  if (!in_hurry && !stub_.choice().HasOthers()) return;
  const auto stub = stub_.Get();
  if (std::none_of(streams_.begin(), streams_.end(),
                   [&](const auto& stream) { return stream->stub() == stub; })) {
    Connect();
    return;
  }
  // Another channel takes the time to read its certificate.
  stub_.Leave();
  parallel_connect_timer_ = loop_.After(kFirstBackoff, [this] { ConnectInParallel(); });
}

bool Session::connecting() const {
  return std::any_of(streams_.begin(), streams_.end(), [this](const auto& stream) {
    return stream.get() != open_ && !stream->is_cancelled();
  });
}

void Session::Send(v1::OpenSessionRequest message) {
  if (!open()) return;
  message.mutable_fence()->set_term(term_);
  message.mutable_fence()->set_incarnation(incarnation_);
  open_->Write(std::move(message));
}

void Session::OnMessage(SessionStream& stream, const v1::OpenSessionResponse& message) {
  // To the coordinator the highest attempt of the highest number is the session.
  const bool may_open = message.has_welcome() && (!open() || stream.place() > open_->place());
  if (&stream != open_ && (stream.is_cancelled() || (open() && !may_open))) return;
  if (message.fence().term() < term_) {
    log::Warning("ignored a message of an older coordinator",
                 {{"its_term", message.fence().term()}, {"known_term", term_}});
    stub_.choice().HasOthers() ? LeaveConnection(stream) : stream.Cancel();
    return;
  }
  if (message.has_welcome()) {
    // A stranger's words renew nothing.
    if (absl::Status stranger = handler_.check_welcome(message.welcome()); !stranger.ok()) {
      stream.Refuse(std::move(stranger));
      return;
    }
  }
  last_heard_ = std::chrono::steady_clock::now();
  if (message.has_welcome()) {
    OnWelcome(stream, message);
  } else if (!open()) {
    log::Warning("the coordinator's first message is not a Welcome");
    stream.Cancel();
  } else if (message.has_heartbeat_reply()) {
    // Whatever has moved the choice meanwhile.
    if (!stream.is_cancelled()) stub_.choice().OnLeads(stream.address());
    while (!heartbeats_sent_.empty() &&
           heartbeats_sent_.front().first <= message.heartbeat_reply().sequence()) {
      const auto& [sequence, sent] = heartbeats_sent_.front();
      contact_ = std::max(contact_, sent);
      if (sequence == message.heartbeat_reply().sequence() &&
          message.heartbeat_reply().received_at_nanos() != 0) {
        clock_.Add(sent, std::chrono::nanoseconds(message.heartbeat_reply().received_at_nanos()),
                   os::BootTimeNow());
      }
      heartbeats_sent_.pop_front();
    }
  } else {
    handler_.on_message(message);
  }
}

void Session::OnWelcome(SessionStream& stream, const v1::OpenSessionResponse& message) {
  term_ = message.fence().term();
  const v1::Welcome& welcome = message.welcome();
  if (welcome.has_lease()) lease_ = FromProto(welcome.lease());
  if (welcome.has_heartbeat_interval())
    heartbeat_interval_ = FromProto(welcome.heartbeat_interval());
  if (open() && open_ != &stream) open_->Supersede();
  open_ = &stream;
  // It may have been asked before others were.
  stub_.choice().OnLeads(stream.address());
  number_is_welcomed_ = true;
  refusing_.clear();
  // The coordinator ends those that come too late, or makes one of them the session.
  hurry_until_ = Time();
  loop_.Cancel(reconnect_);
  loop_.Cancel(renewal_);
  heartbeats_sent_.clear();
  clock_.Clear();
  contact_ = std::max(contact_, stream.hello_sent());
  backoff_ = std::chrono::nanoseconds(0);
  last_error_.clear();
  log::Info("joined the coordinator", {{"term", term_}});
  handler_.on_welcome(welcome, stream.hello());
  // At the new interval, beginning now.
  loop_.Cancel(tick_);
  OnTick();
  loop_.Cancel(silence_);
  WatchSilence(Patience());
}

void Session::OnTick() {
  tick_ = loop_.After(heartbeat_interval_, [this] { OnTick(); });
  SendHeartbeat();
  const auto now = std::chrono::steady_clock::now();
  for (const auto& stream : streams_) {
    if (stream.get() == open_ || stream->is_cancelled() || now - stream->began() <= lease_)
      continue;
    if (open()) {
      stream->Supersede();
    } else {
      LeaveConnection(*stream);
    }
  }
}

void Session::Renew() {
  log::Info("the certificate was renewed: the next session shows it");
  last_renewal_error_.clear();
  RenewOver(stub_.Get().get());
}

void Session::RenewOver(const v1::SessionService::Stub* old) {
  loop_.Cancel(renewal_);
  if (closing_) return;
  if (stub_.Get().get() == old) {
    // It is being made, or was made too lately.
    stub_.Replace();
    renewal_ = loop_.After(kFirstBackoff, [this, old] { RenewOver(old); });
  } else if (open()) {
    ++number_;
    attempt_ = 0;
    number_is_welcomed_ = false;
    BeginStream();
  } else {
    // Those under way may be over the old one.
    for (const auto& stream : streams_) stream->Cancel();
  }
}

void Session::RetryRenewal(const absl::Status& why) {
  if (const std::string error(why.message()); error != last_renewal_error_) {
    last_renewal_error_ = error;
    log::Warning("the renewed certificate is not taken: the session goes on with the old one",
                 {{"error", why}});
  }
  loop_.Cancel(renewal_);
  renewal_ = loop_.After(renewal_interval_, [this] { RenewOver(stub_.Get().get()); });
}

void Session::LeaveConnection(SessionStream& stream) {
  // Another one of several coordinators may be asked already.
  if (!stub_.choice().HasOthers() || stub_.Get() == stream.stub()) stub_.Leave();
  stream.Cancel();
}

std::chrono::nanoseconds Session::Patience() const {
  return std::min(lease_, std::max(lease_ * 2 / 5, heartbeat_interval_ * 3 / 2));
}

void Session::WatchSilence(std::chrono::nanoseconds after, bool is_second_look) {
  silence_ = loop_.After(after, [this, is_second_look] {
    // The next Welcome begins anew.
    if (!open()) return;
    const auto silent = std::chrono::steady_clock::now() - last_heard_;
    if (silent < Patience()) {
      WatchSilence(Patience() - silent);
    } else if (!is_second_look) {
      WatchSilence(kSecondLook, true);
    } else {
      log::Warning("the coordinator is silent: connecting again");
      hurry_until_ = last_heard_ + lease_;
      LeaveConnection(*open_);
    }
  });
}

void Session::SendHeartbeat() {
  if (!open()) return;
  v1::OpenSessionRequest message;
  message.mutable_heartbeat()->set_sequence(++sequence_);
  message.mutable_heartbeat()->set_draining(draining_);
  if (heartbeats_sent_.size() < kMostQueued) {
    heartbeats_sent_.emplace_back(sequence_, os::BootTimeNow());
  }
  Send(std::move(message));
}

void Session::Drain() {
  if (!std::exchange(draining_, true)) SendHeartbeat();
}

void Session::OnDone(const SessionStream* stream, absl::Status status) {
  // Else check_address refuses, whose reason may pass.
  const bool was_asked = stream != nullptr;
  const bool was_open = was_asked && stream == open_;
  const bool was_superseded = was_asked && stream->is_superseded();
  const auto stub = was_asked ? stream->stub() : nullptr;
  const std::string address = was_asked ? stream->address() : "";
  const auto stream_place = was_asked ? stream->place() : std::pair<uint64_t, uint32_t>();
  if (was_asked && !stream->refused().ok()) status = stream->refused();
  if (was_open) {
    open_ = nullptr;
    // Another Hello came over a connection that may be held up.
    if (connecting()) {
      hurry_until_ = last_heard_ + lease_;
      stub_.Leave();
    }
  }
  std::erase_if(streams_, [stream](const auto& one) { return one.get() == stream; });
  if (closing_) {
    if (streams_.empty() && on_closed_) std::exchange(on_closed_, nullptr)();
    return;
  }
  if (open()) {
    // Attempts of one number are made side by side after a silence.
    if (was_asked && stream_place.first > open_->place().first) RetryRenewal(status);
    return;
  }
  if (was_superseded) return;
  const bool is_refused = (was_asked && status.code() == absl::StatusCode::kPermissionDenied) ||
                          status.code() == absl::StatusCode::kFailedPrecondition ||
                          status.code() == absl::StatusCode::kInvalidArgument;
  if (is_refused) refusal_ = status;
  if (was_asked) NoteRefusal(address, status, is_refused);
  if (was_asked ? AllRefuse() : is_refused) {
    if (handler_.on_refused(refusal_)) return;
  }
  if (is_refused && was_asked && stub_.choice().HasOthers()) {
    // Another address may be that of a coordinator which takes this worker.
    if (stub_.Get() == stub) stub_.Leave();
  } else if (was_asked) {
    stub_.OnEnd(status, stub);
  }
  // Logged once per kind of error, not once per attempt; of several coordinators each has its own
  // words.
  const auto now = std::chrono::steady_clock::now();
  const bool is_due = !stub_.choice().HasOthers() || now - last_told_ >= kBetweenErrors;
  if (const std::string error(status.message()); was_open || (error != last_error_ && is_due)) {
    last_error_ = error;
    last_told_ = now;
    log::Warning("no session with the coordinator: trying again", {{"error", status}});
  }
  backoff_ = std::clamp<std::chrono::nanoseconds>(backoff_ * 3 / 2, kFirstBackoff, kLongestBackoff);
  loop_.Cancel(reconnect_);
  // Where the choice has moved on, each of several coordinators has its own pause.
  const bool moves_on = was_asked && (is_refused || rpc::LeaderChoice::MovesOn(status));
  const auto pause = stub_.choice().HasOthers()
                         ? std::max<std::chrono::nanoseconds>(stub_.choice().Wait(),
                                                              moves_on ? kFirstBackoff : backoff_)
                         : backoff_;
  reconnect_ = loop_.After(pause, [this] { Connect(); });
}

void Session::NoteRefusal(const std::string& address, const absl::Status& status, bool is_refused) {
  const v1::ErrorDetail detail = DetailOf(status);
  // A standby has the words of its leader.
  if (is_refused || (detail.standby() && refusing_.contains(detail.leader()))) {
    refusing_.insert(address);
  } else if (detail.origin() != v1::ERROR_ORIGIN_UNSPECIFIED) {
    refusing_.erase(address);
  }
}

bool Session::AllRefuse() const {
  const std::vector<std::string>& given = stub_.choice().given();
  return std::all_of(given.begin(), given.end(),
                     [this](const std::string& one) { return refusing_.contains(one); });
}

void Session::Close(std::chrono::nanoseconds timeout, std::function<void()> on_closed) {
  closing_ = true;
  if (streams_.empty()) {
    loop_.Post(std::move(on_closed));
    return;
  }
  on_closed_ = std::move(on_closed);
  v1::OpenSessionRequest goodbye;
  goodbye.mutable_goodbye();
  Send(std::move(goodbye));
  for (const auto& stream : streams_) stream->HalfClose();
  loop_.After(timeout, [this] {
    for (const auto& stream : streams_) stream->Cancel();
  });
}

}  // namespace meshrun::worker
