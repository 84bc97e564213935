// Parts of a job as people write them, on the command line and in job.yaml; core/job_spec.h has the
// rules of the whole. Pure. INVALID_ARGUMENT everywhere: what is wrong and what to write.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

struct NodeRange {
  uint32_t min = 1;
  uint32_t max = 1;
};

// "4" or "2:4".
absl::StatusOr<NodeRange> ParseNodeRange(std::string_view text);
// "4", "gpu", "cpu"; "auto" (torchrun's) is "gpu" where `has_gpu`, else "cpu".
absl::StatusOr<v1::ProcsPerNode> ParseProcsPerNode(std::string_view text, bool has_gpu);
// "0-99", "1,5,9", "0-99:10" (each tenth), each with "%10" (so many at a time), into spec->array.
absl::Status SetArray(std::string_view text, v1::JobSpec* spec);
// "dp=-1,spatial=2" into spec->mesh.
absl::Status SetMesh(std::string_view text, v1::JobSpec* spec);

// "auto", "respawn" into spec->recovery; "at-once" into replace_at_once; "checkpoint", "at-once",
// "never" into growth.
absl::Status SetRecovery(std::string_view text, v1::JobSpec* spec);
absl::Status SetReplace(std::string_view text, v1::JobSpec* spec);
absl::Status SetGrowth(std::string_view text, v1::JobSpec* spec);
// "node", "socket", "exclusive" or "core-complex", torchrun's, into spec->numa_binding.
absl::Status SetNumaBinding(std::string_view text, v1::JobSpec* spec);

// As torchrun does: a script that is not executable is run by python3. `argv0_is_executable`: as
// found on this host. $PYTHON_EXEC names another interpreter.
bool NeedsPython(std::string_view argv0, bool argv0_is_executable);

// "2 nodes x 4 ranks", "1-4 nodes, a rank per GPU": for sentences.
std::string DescribeShape(const v1::JobSpec& spec);

}  // namespace meshrun::client
