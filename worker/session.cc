#include "worker/session.h"

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/os/boot_time.h"
#include "core/proto_time.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::worker {
namespace {

constexpr std::chrono::milliseconds kFirstBackoff(20);
constexpr std::chrono::seconds kLongestBackoff(1);
// In a hurry, between two Hellos: time for an answer, and for RenewedChannel to make another
// channel.
constexpr std::chrono::nanoseconds kMinHelloInterval = rpc::RenewedChannel::kLeastDistance;
// After a silence: until what may have come before it has been read.
constexpr std::chrono::milliseconds kSecondLook(20);
// With more messages in the queue the coordinator is not reading: the session is given up, and the
// next Hello repeats everything.
constexpr size_t kMostQueued = 4096;

}  // namespace

// One stream. Owned by the session until OnDone has been posted; the loop's order of tasks makes
// that the last thing that happens to it.
class SessionStream
    : public grpc::ClientBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse> {
 public:
  SessionStream(Session& session, EventLoop& loop, std::shared_ptr<v1::SessionService::Stub> stub,
                uint32_t attempt)
      : session_(session), loop_(loop), stub_(std::move(stub)), attempt_(attempt) {}

  void Begin() {
    stub_->async()->OpenSession(&context_, this);
    // This hold lets writes start outside of gRPC's reactions until reading has ended.
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  // --- on the loop ---
  void Write(v1::OpenSessionRequest message) {
    if (reading_ended_ || writes_done_) return;
    if (queue_.size() >= kMostQueued) {
      Cancel();
      return;
    }
    queue_.push_back(std::move(message));
    Pump();
  }
  void SayHello(v1::OpenSessionRequest message) {
    hello_ = message.hello();
    Write(std::move(message));
  }
  void Cancel() {
    is_cancelled_ = true;
    context_.TryCancel();
  }
  // Another number's stream, or another of its number, is the session: nobody misses this one.
  void Supersede() {
    is_superseded_ = true;
    Cancel();
  }
  // What check_welcome says of the coordinator that it reached.
  void Refuse(absl::Status why) {
    refused_ = std::move(why);
    Cancel();
  }
  bool is_cancelled() const { return is_cancelled_; }
  bool is_superseded() const { return is_superseded_; }
  const absl::Status& refused() const { return refused_; }
  const v1::SessionService::Stub* stub() const { return stub_.get(); }
  // Number and attempt.
  std::pair<uint64_t, uint32_t> place() const { return {hello_.session_number(), attempt_}; }
  std::chrono::steady_clock::time_point began() const { return began_; }
  const v1::Hello& hello() const { return hello_; }
  // CLOCK_BOOTTIME.
  std::chrono::nanoseconds hello_sent() const { return hello_sent_; }
  void HalfClose() {
    half_close_ = true;
    Pump();
  }

 private:
  void Pump() {
    if (writing_ || reading_ended_ || writes_done_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    } else if (half_close_) {
      writes_done_ = true;
      StartWritesDone();
    }
  }

  // --- gRPC's threads ---
  void OnReadDone(bool ok) override {
    if (ok) {
      loop_.Post([this, message = std::move(incoming_)] { session_.OnMessage(*this, message); });
      incoming_.Clear();
      StartRead(&incoming_);
      return;
    }
    loop_.Post([this] {
      reading_ended_ = true;
      RemoveHold();
    });
  }
  void OnWriteDone(bool ok) override {
    loop_.Post([this, ok] {
      writing_ = false;
      queue_.pop_front();
      if (ok) Pump();
    });
  }
  void OnDone(const grpc::Status& status) override {
    loop_.Post([this, status = rpc::FromGrpc(status)] { session_.OnDone(this, status); });
  }

  Session& session_;
  EventLoop& loop_;
  const std::shared_ptr<v1::SessionService::Stub> stub_;
  const uint32_t attempt_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds hello_sent_ = os::BootTimeNow();
  grpc::ClientContext context_;
  v1::OpenSessionResponse incoming_;
  v1::Hello hello_;
  std::deque<v1::OpenSessionRequest> queue_;
  bool writing_ = false;
  bool reading_ended_ = false;
  bool half_close_ = false;
  bool writes_done_ = false;
  bool is_cancelled_ = false;
  bool is_superseded_ = false;
  absl::Status refused_;
};

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
  parallel_connect_timer_ =
      loop_.After(std::max<std::chrono::nanoseconds>(kMinHelloInterval, lease_ / 5),
                  [this] { ConnectInParallel(); });
}

void Session::BeginStream() {
  SessionStream& stream = *streams_.emplace_back(
      std::make_unique<SessionStream>(*this, loop_, stub_.Get(), ++attempt_));
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
  if (closing_ || open() || std::chrono::steady_clock::now() >= hurry_until_) return;
  const auto stub = stub_.Get();
  if (std::none_of(streams_.begin(), streams_.end(),
                   [&](const auto& stream) { return stream->stub() == stub.get(); })) {
    Connect();
    return;
  }
  // Another channel takes the time to read its certificate.
  stub_.Replace();
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
    stream.Cancel();
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
    while (!heartbeats_sent_.empty() &&
           heartbeats_sent_.front().first <= message.heartbeat_reply().sequence()) {
      contact_ = std::max(contact_, heartbeats_sent_.front().second);
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
  number_is_welcomed_ = true;
  // The coordinator ends those that come too late, or makes one of them the session.
  hurry_until_ = Time();
  loop_.Cancel(reconnect_);
  loop_.Cancel(renewal_);
  heartbeats_sent_.clear();
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
  stub_.Replace();
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
  const auto stream_place = was_asked ? stream->place() : std::pair<uint64_t, uint32_t>();
  if (was_asked && !stream->refused().ok()) status = stream->refused();
  if (was_open) {
    open_ = nullptr;
    // Another Hello came over a connection that may be held up.
    if (connecting()) {
      hurry_until_ = last_heard_ + lease_;
      stub_.Replace();
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
  if ((was_asked && status.code() == absl::StatusCode::kPermissionDenied) ||
      status.code() == absl::StatusCode::kFailedPrecondition ||
      status.code() == absl::StatusCode::kInvalidArgument) {
    if (handler_.on_refused(status)) return;
  }
  if (was_asked) stub_.OnEnd(status);
  // Logged once per kind of error, not once per attempt.
  if (const std::string error(status.message()); was_open || error != last_error_) {
    last_error_ = error;
    log::Warning("no session with the coordinator: trying again", {{"error", status}});
  }
  backoff_ = std::clamp<std::chrono::nanoseconds>(backoff_ * 3 / 2, kFirstBackoff, kLongestBackoff);
  loop_.Cancel(reconnect_);
  reconnect_ = loop_.After(backoff_, [this] { Connect(); });
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
