// Jobs that wait for the end of other jobs (JobSpec.after).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/state_machine/generations.h"
#include "coordinator/state_machine/jobs.h"

namespace meshrun::coordinator {

class Dependencies {
 public:
  Dependencies(JobTable& jobs, Generations& generations) : jobs_(jobs), generations_(generations) {}

  // Writes the ids of a new job's spec out. INVALID_ARGUMENT: a word that is no dependency.
  // NOT_FOUND: no such job. FAILED_PRECONDITION: the job has ended otherwise.
  absl::Status Check(v1::JobSpec* spec);

  // The job was added: of those that it names, some may have ended already.
  void OnSubmitted(const Job& job);
  // Jobs that have ended in this batch let others go on, or end them. At the end of a batch, and
  // after a restart of the coordinator, whose last term may not have come to it.
  void Resolve();
  void OnRestored();

 private:
  // What the jobs that wait for `ended` make of it.
  void Tell(const Job& ended);

  JobTable& jobs_;
  Generations& generations_;
};

// "waits for train-abc123 to succeed, and 2 more jobs".
std::string WaitsFor(const Job& job);

}  // namespace meshrun::coordinator
