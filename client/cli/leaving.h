// A node that leaves the job of its `meshrun run`: what is asked of the coordinator, and what is
// said. Pure.
#pragma once

#include <string>

#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

// Why a run's node cannot leave the job: it is its only node (`alone`), or has the coordinator.
std::string CannotLeave(const std::string& job_id, bool alone);

// `signal`: by which the run was asked.
v1::DrainNodeRequest LeaveRequest(const std::string& node, int signal);

std::string HasLeftLine(const std::string& node, const v1::Job& job);

}  // namespace meshrun::client
