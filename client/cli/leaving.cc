#include "client/cli/leaving.h"

#include <fmt/format.h>

#include "client/cli/signal_handling.h"
#include "core/signal_name.h"
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

v1::DrainNodeRequest LeaveRequest(const std::string& node, int signal) {
  v1::DrainNodeRequest request;
  request.set_node(node);
  request.set_reason(signal == LeaveSignal() ? "by 'meshrun leave'" : "by " + SignalName(signal));
  request.set_leaves(true);
  return request;
}

std::string HasLeftLine(const std::string& node, const v1::Job& job) {
  return fmt::format("{} has left {}, which goes on with {}", node, job.job_id(),
                     Count(job.world_size(), "rank"));
}

}  // namespace meshrun::client
