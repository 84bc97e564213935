// Whether a failed generation of a job is followed by another one, and what that costs: one budget
// for each job (JobSpec.max_restarts), refilled by progress. A value over one job; no errors.
#pragma once

#include <string>

#include "coordinator/state_machine/jobs.h"

namespace meshrun::coordinator {

// Before the start that follows so many failures: none, none, 1 s, 2 s, ... kLongestBackoff.
std::chrono::nanoseconds Backoff(uint32_t failures);

class RestartBudget {
 public:
  RestartBudget(Job& job, SteadyNanos now) : job_(job), now_(now) {}

  // After the failure that the job has recorded.
  bool MayRestart() const;
  // This failure is one too many without a step or a checkpoint beyond those before. Jobs that
  // report no steps are not judged.
  bool LacksProgress() const;
  // Counts the failure of the current generation, and says what follows.
  std::string Charge();

 private:
  // Since the last failure: enough for a new budget.
  bool MadeProgress() const;

  Job& job_;
  const SteadyNanos now_;
};

}  // namespace meshrun::coordinator
