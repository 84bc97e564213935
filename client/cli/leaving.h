// A node that leaves the job of its `meshrun run`: what is asked of the coordinator, what is said,
// and whether the node has left. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

// Why a run's node cannot leave the job: it is its only node (`alone`), or has the coordinator.
std::string CannotLeave(const std::string& job_id, bool alone);

// `reason`: who asked for it, such as "by SIGTERM".
v1::DrainNodeRequest LeaveRequest(const std::string& node, const std::string& reason);

// Ranks of the job's latest generation are on the node.
bool HasRanksOn(const std::string& node, const v1::Job& job);

// The job waits for nodes or for its turn: none of its ranks runs or is being started.
bool Waits(const v1::Job& job);

// For who asked a run to leave, once that run has ended. `job`: as it is then. FAILED_PRECONDITION:
// the run has ended in another way, and the message says so.
absl::Status CheckHasLeft(const std::string& node, const v1::Job& job);

std::string HasLeftLine(const std::string& node, const v1::Job& job);

}  // namespace meshrun::client
