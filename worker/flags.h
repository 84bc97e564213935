// meshrun-worker's command line.
#pragma once

#include <optional>

#include "worker/daemon.h"

namespace meshrun::worker {

// Reads the flags and configures logging. Absent: exit with `exit_code` (after --help or --version,
// or a wrong flag that was reported on stderr).
std::optional<DaemonOptions> ParseFlags(int argc, char** argv, int* exit_code);

}  // namespace meshrun::worker
