// How long the ranks of each job have run, and when its time is over.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/deadline_index.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::coordinator {

// Runs from a job's RUNNING until it is in the queue again or has ended; a change of generation in
// between does not stop it. It stands still while ranks are paused.
class RunClock {
 public:
  explicit RunClock(Context& context) : context_(context) {}

  // The state of the job has changed, or whether it is paused. Keeps run_time and running_since of
  // the job up to date, from which a restarted coordinator goes on, by its wall clock.
  void OnState(v1::Job& job);

  // What the job has run until now.
  std::chrono::nanoseconds Used(const v1::Job& job) const;
  // When the ranks of a job with a time limit are told to stop, if it runs on, or if it began now.
  std::optional<SteadyNanos> End(const v1::Job& job) const;

  // A job whose time is over.
  std::optional<std::string> PopDue() { return limits_.PopDue(context_.now); }
  std::optional<SteadyNanos> NextDeadline() const { return limits_.Next(); }

 private:
  Context& context_;
  std::unordered_map<std::string, SteadyNanos> since_;
  DeadlineIndex<std::string> limits_;
};

}  // namespace meshrun::coordinator
