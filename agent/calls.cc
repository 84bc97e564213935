#include "agent/calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/rpc/channel.h"
#include "core/rpc/status_conversion.h"
#include "core/text.h"

namespace meshrun::agent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstPause(10);
constexpr std::chrono::milliseconds kLongestPause(250);
// The server's own answer to a timeout names what was missing: wait a little longer for it.
constexpr std::chrono::seconds kAnswerTime(5);

}  // namespace

absl::Status Calls::Run(Deadline deadline, const Attempt& attempt, const std::stop_token& stop) {
  {
    MutexLock lock(mu_);
    ++running_;
  }
  absl::Status status = Repeat(deadline, attempt, stop);
  // Nothing of this object is touched after it: CancelAll may return.
  Leave();
  return status;
}

absl::Status Calls::Repeat(Deadline deadline, const Attempt& attempt, const std::stop_token& stop) {
  const Deadline began = Clock::now();
  Clock::duration pause = kFirstPause;
  while (true) {
    std::optional<grpc::ClientContext> context(std::in_place);
    context->AddMetadata("meshrun-token", token_);
    const auto remaining =
        std::max<std::chrono::nanoseconds>(deadline - Clock::now(), std::chrono::nanoseconds(0));
    rpc::SetTimeout(*context, remaining + kAnswerTime);
    if (!Enter(&*context)) return absl::CancelledError("this agent is being destroyed");
    const grpc::Status status = [&] {
      const std::stop_callback on_stop(stop, [&] { context->TryCancel(); });
      return attempt(*context, remaining);
    }();
    Forget(&*context);
    context.reset();
    const absl::Status answer = rpc::FromGrpc(status);
    const auto asked_to_wait = rpc::WaitBeforeRepeating(answer);
    if (!absl::IsUnavailable(answer) && !asked_to_wait) return answer;
    const Deadline next = std::min<Deadline>(
        Clock::now() + std::max<Clock::duration>(pause, asked_to_wait.value_or(Clock::duration(0))),
        deadline);
    if (Clock::now() >= deadline) {
      return absl::UnavailableError(
          fmt::format("{} or its coordinator could not be reached for {}: {}", peer_,
                      FormatDuration(Clock::now() - began), status.error_message()));
    }
    if (!Pause(next, stop)) {
      return absl::CancelledError(stop.stop_requested() ? "the caller waits no longer"
                                                        : "this agent is being destroyed");
    }
    pause = std::min<Clock::duration>(pause * 2, kLongestPause);
  }
}

bool Calls::Enter(grpc::ClientContext* context) {
  MutexLock lock(mu_);
  if (cancelled_) return false;
  contexts_.insert(context);
  return true;
}

void Calls::Forget(grpc::ClientContext* context) {
  MutexLock lock(mu_);
  contexts_.erase(context);
}

void Calls::Leave() {
  MutexLock lock(mu_);
  --running_;
  changed_.NotifyAll();
}

bool Calls::Pause(Deadline until, const std::stop_token& stop) {
  const std::stop_callback on_stop(stop, [this] {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  });
  MutexLock lock(mu_);
  while (!cancelled_ && !stop.stop_requested() && Clock::now() < until) {
    changed_.WaitUntil(mu_, until);
  }
  return !cancelled_ && !stop.stop_requested();
}

void Calls::CancelAll() {
  MutexLock lock(mu_);
  cancelled_ = true;
  // Cancelling only marks the call: its own thread ends it.
  for (grpc::ClientContext* const context : contexts_) context->TryCancel();
  changed_.NotifyAll();
  while (running_ > 0) changed_.Wait(mu_);
}

}  // namespace meshrun::agent
