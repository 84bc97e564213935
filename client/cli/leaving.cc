#include "client/cli/leaving.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/client.h"
#include "client/render/report.h"
#include "core/text.h"

namespace meshrun::client {

std::string CannotLeave(const std::string& job_id, bool alone) {
  if (alone) {
    return fmt::format("{0} runs on this node alone: end it with 'meshrun cancel {0}'", job_id);
  }
  return fmt::format(
      "this node cannot leave {}: the job's coordinator runs here; one that outlives each node is "
      "named with 'meshrun submit --coordinator'",
      job_id);
}

v1::DrainNodeRequest LeaveRequest(const std::string& node, const std::string& reason) {
  v1::DrainNodeRequest request;
  request.set_node(node);
  request.set_reason(reason);
  request.set_leaves(true);
  return request;
}

bool HasRanksOn(const std::string& node, const v1::Job& job) {
  return std::any_of(job.ranks().begin(), job.ranks().end(),
                     [&](const v1::RankStatus& rank) { return rank.node_name() == node; });
}

bool Waits(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_QUEUED || job.state() == v1::JOB_STATE_WAITING ||
         job.state() == v1::JOB_STATE_SUSPENDED;
}

absl::Status CheckHasLeft(const std::string& node, const v1::Job& job) {
  // The ranks of a job that waits are those that it had.
  if (Waits(job) || !HasRanksOn(node, job)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      HasEnded(job.state())
          ? fmt::format("{} ended before {} had left it: {}", job.job_id(), node,
                        StateName(job.state()))
          : fmt::format("the 'meshrun run' of {} ended before {} had left it", job.job_id(), node));
}

std::string HasLeftLine(const std::string& node, const v1::Job& job) {
  if (Waits(job) || HasEnded(job.state())) {
    return fmt::format("{} has left {}, which is {}", node, job.job_id(), StateName(job.state()));
  }
  return fmt::format("{} has left {}, which goes on with {}", node, job.job_id(),
                     Count(job.world_size(), "rank"));
}

}  // namespace meshrun::client
