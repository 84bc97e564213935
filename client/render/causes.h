// What happened to a job, and why. Pure.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "client/render/style.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {

// One line per event, oldest first.
// `width`: as Table::Render.
std::string EventTable(const std::vector<v1::ClusterEvent>& events, std::chrono::nanoseconds now,
                       int width = 0);

// The first cause of the job's present state, or of its last trouble, its consequences, and what
// the coordinator did; `all`: every cause that is still known.
std::string DescribeWhy(const v1::GetJobResponse& response, std::chrono::nanoseconds now,
                        const Style& style, bool all);

}  // namespace meshrun::client
