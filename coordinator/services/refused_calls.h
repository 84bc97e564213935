// Calls that are turned away before the state machine sees them, for their caller's role, their
// size or their number: told to the loop, for the audit. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "coordinator/event_loop/event_loop.h"
#include "coordinator/state_machine/refusal_limit.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace meshrun::coordinator {

class RefusedCalls {
 public:
  RefusedCalls(const Clock& clock, EventLoop& loop) : clock_(clock), loop_(&loop) {}

  // Only so many of one caller are told: see RefusalLimit. Nothing is told of a node that has to
  // wait with the calls of its ranks.
  void OnRefused(const v1::Caller& caller, std::string_view method, const absl::Status& why);
  // The loop ends; calls may be refused later still.
  void Stop();

 private:
  const Clock& clock_;
  Mutex mu_;
  EventLoop* loop_ MESHRUN_GUARDED_BY(mu_);
  RefusalLimit limit_ MESHRUN_GUARDED_BY(mu_);
  // Calls that are too many: a busy client must not fill the audit, nor hide what it may not do.
  RefusalLimit too_many_ MESHRUN_GUARDED_BY(mu_){5, 1.0 / 60};
};

}  // namespace meshrun::coordinator
