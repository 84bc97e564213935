// What jobs have used, and who asked for what, as people and spreadsheets read it.
#pragma once

#include <string>

#include "meshrun/v1/audit.pb.h"
#include "meshrun/v1/usage.pb.h"

namespace meshrun::client {

// A line for each user, account or partition (`by`), those with the most CPU hours first.
std::string UsageSums(const v1::ListUsageResponse& usage, const std::string& by, int width);
// A line for each job, oldest first.
std::string UsageOfJobs(const v1::ListUsageResponse& usage, int width);
// RFC 4180, with a heading: a line for each job, and every field of UsageRecord. Times are of UTC.
std::string UsageCsv(const v1::ListUsageResponse& usage);

std::string AuditTable(const v1::ListAuditResponse& audit, int width);

}  // namespace meshrun::client
