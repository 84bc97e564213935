// One picture of what all ranks of a job did: their steps, their collectives and the events of the
// control plane, on one time axis, in the format of Chrome's trace viewer and of Perfetto. Pure.
//
//   process    a rank; one more is the coordinator
//   thread     "steps", then one for each process group, and more where its operations overlap
//   slice      a step; a collective from its call to its end, with bytes, dtype, group and number
//              in its arguments, and in it the time until all ranks had come ("waits for ranks")
//   instant    an event of the job, as of `meshrun events`
//
// Times are microseconds since the trace begins. Every host compares its clock with the
// coordinator's by heartbeats (FlightRecord.clock): that puts the ranks on one axis.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "meshrun/v1/job.pb.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {

struct JobTrace {
  std::string json;
  uint64_t generation = 0;
  // Steps that every rank with steps has in the trace; none: no rank reports steps.
  int64_t first_step = 0;
  int64_t last_step = -1;
  // "steps 41 to 60"; of a program that counts its steps anew in each epoch "steps 95 to 99 and 0
  // to 50".
  std::string shown;
  int steps = 0;
  int ranks = 0;
  // Those that ended in these steps.
  size_t collectives = 0;
  // All collectives of the steps are there, where their ranks have records.
  bool complete = true;
  // A trace that is taken again may have more steps. False: records hold less than what is asked
  // for.
  bool may_grow = true;
  // The largest error of a rank's clock, in seconds; of those that are compared.
  double clock_error_seconds = 0;
  // For people: what is missing, and why.
  std::vector<std::string> notes;
};

// `records`: an answer for each rank. At least the last `steps` steps that all ranks which report
// steps have reported, where they have kept so many and all collectives in them; of a job without
// steps, all that they have kept.
JobTrace MakeTrace(const v1::Job& job, const std::vector<v1::GetFlightRecordsResponse>& records,
                   const std::vector<v1::ClusterEvent>& events, int steps);

// `now` shows less than `before` did: ranks have ended since.
bool HasLost(const JobTrace& now, const JobTrace& before);

// The trace of a job that ended while `steps` steps were waited for: `before`, with a note.
// FAILED_PRECONDITION where there is none.
absl::StatusOr<JobTrace> TraceOfEnded(const v1::Job& job, std::optional<JobTrace> before,
                                      int steps);

}  // namespace meshrun::client
