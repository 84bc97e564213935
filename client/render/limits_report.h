// What `meshrun limits` prints.
#pragma once

#include <string>

#include "meshrun/v1/cluster_service.pb.h"

namespace meshrun::client {

// One row for each user, account and partition; "-" is without limit.
std::string LimitsReport(const v1::DescribeLimitsResponse& limits, int width);

}  // namespace meshrun::client
