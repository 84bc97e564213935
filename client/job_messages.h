// Between the values of job_client.h and the messages of proto/. Pure, except where a JobContext
// looks at this host.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/job_client.h"
#include "client/job_context.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

// Complete and checked. INVALID_ARGUMENT: the field, what is wrong, and what to write.
absl::StatusOr<v1::JobSpec> SpecOf(const JobRequest& request, const JobContext& context);

// What the place of a submission adds to a spec: an absolute working directory, the interpreter of
// a Python script, a name; then the rules of core/job_spec.h. INVALID_ARGUMENT as above.
absl::Status CompleteSpec(const JobContext& context, v1::JobSpec* spec);

JobStatus StatusOf(const v1::Job& job);

}  // namespace meshrun::client
