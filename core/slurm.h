// What of Slurm's variables more than one room reads. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/fingerprint.h"

namespace meshrun {

// The first host of a Slurm hostlist: "gpu[07-12,20],login1" gives "gpu07". INVALID_ARGUMENT: it is
// not a hostlist.
absl::StatusOr<std::string> FirstHost(const std::string& hostlist);

// A port in 10000 .. 19999 that follows from `job`, so that two jobs on a host do not meet: below
// ip_local_port_range, and apart from the 20000 .. 29999 that meshrun's daemons reserve.
inline int PortOfJob(std::string_view job) {
  return 10000 + static_cast<int>(Fingerprint(job) % 10000);
}

}  // namespace meshrun
