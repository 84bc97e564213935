// The training programs that come with meshrun: executables DIR/NAME/NAME, as built, or DIR/NAME,
// as installed; beside it NAME_cuda, the same for a rank that has GPUs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun::worker {

// ../jobs beside the running program's directory (the build tree), else ../libexec/meshrun/jobs.
// Empty when there is neither.
std::string DefaultJobsDirectory();

// Sorted names. Empty when the directory does not exist.
std::vector<std::string> ListShippedJobs(const std::string& jobs_dir);

// `gpus`: the program for ranks that have GPUs, where there is one. NOT_FOUND names what there is.
absl::StatusOr<std::string> FindShippedJob(const std::string& jobs_dir, const std::string& name,
                                           bool gpus);

}  // namespace meshrun::worker
