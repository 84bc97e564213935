// What there is: hosts by number, ranks, devices, and versions.
#pragma once

#include "jobs/verify/rates.h"
#include "jobs/verify/report.h"
#include "jobs/verify/stage.h"

namespace meshrun::verify {

// Fills in the hosts' facts on rank 0, and "topology" and "versions" of the report. Versions that
// differ between hosts are a warning.
void describe_topology(Stage& stage, Report& report, Hosts& hosts);

}  // namespace meshrun::verify
