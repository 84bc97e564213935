#include "client/http/forwarded_call.h"

#include <utility>

#include "core/status.h"

namespace meshrun::client {
namespace {

constexpr std::chrono::milliseconds kLook(100);
constexpr std::chrono::milliseconds kStopAgain(20);

}  // namespace

absl::StatusOr<std::unique_ptr<ForwardedCall>> ForwardedCall::Begin(const HttpTarget& target,
                                                                    HttpCall call) {
  MESHRUN_ASSIGN_OR_RETURN(auto exchange, HttpExchange::Make(target));
  return std::unique_ptr<ForwardedCall>(new ForwardedCall(std::move(exchange), std::move(call)));
}

ForwardedCall::ForwardedCall(std::unique_ptr<HttpExchange> exchange, HttpCall call)
    : exchange_(std::move(exchange)), thread_([this, call = std::move(call)] { Run(call); }) {}

ForwardedCall::~ForwardedCall() {
  const auto ended = [this](std::chrono::milliseconds wait) {
    MutexLock lock(mu_);
    left_ = true;
    changed_.NotifyAll();
    if (!ended_) changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + wait);
    return ended_;
  };
  // Again and again: a connection that is made only now has not heard of the first time.
  do exchange_->Stop();
  while (!ended(kStopAgain));
  thread_.join();
}

void ForwardedCall::Run(const HttpCall& call) {
  absl::Status status = exchange_->Perform(
      call,
      [this](const HttpHead& head) {
        MutexLock lock(mu_);
        head_ = head;
        changed_.NotifyAll();
        return !left_;
      },
      [this](std::string_view data) { return Add(data); });
  MutexLock lock(mu_);
  end_ = std::move(status);
  ended_ = true;
  changed_.NotifyAll();
}

bool ForwardedCall::Add(std::string_view data) {
  MutexLock lock(mu_);
  // Whoever takes the bytes goes away in time: then there is no more to wait for.
  while (waiting_.size() >= kMostWaiting && !left_) changed_.Wait(mu_);
  waiting_ += data;
  changed_.NotifyAll();
  return !left_;
}

absl::StatusOr<HttpHead> ForwardedCall::Head(const Gone& gone) {
  MutexLock lock(mu_);
  // The exchange has a timeout of its own.
  while (!head_ && !ended_) {
    if (gone()) return absl::CancelledError("nobody waits for the answer any more");
    changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + kLook);
  }
  if (head_) return *head_;
  return end_.ok() ? absl::UnavailableError("the coordinator's HTTP port gives no answer") : end_;
}

std::optional<std::string> ForwardedCall::Next(std::chrono::milliseconds wait) {
  const auto until = std::chrono::steady_clock::now() + wait;
  MutexLock lock(mu_);
  while (waiting_.empty() && !ended_) {
    if (!changed_.WaitUntil(mu_, until)) break;
  }
  if (waiting_.empty() && ended_) return std::nullopt;
  changed_.NotifyAll();
  return std::exchange(waiting_, "");
}

std::string ForwardedCall::Rest(const Gone& gone) {
  std::string out;
  while (!gone()) {
    const auto piece = Next(kLook);
    if (!piece) break;
    out += *piece;
  }
  return out;
}

}  // namespace meshrun::client
