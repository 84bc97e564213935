// Whether a job makes sense by itself, before any node is looked at. Pure.
#pragma once

#include "absl/status/status.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::coordinator {

// Fills in defaults (nodes, ranks per node, name) and checks the rest.
// INVALID_ARGUMENT: which field is wrong, its value, and what to write instead.
absl::Status NormalizeJobSpec(v1::JobSpec& spec);

}  // namespace meshrun::coordinator
