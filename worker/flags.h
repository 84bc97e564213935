// meshrun-worker's command line.
#pragma once

#include <optional>

#include "worker/daemon.h"

namespace meshrun::worker {

// Reads the flags and configures logging. Absent: the program is to end with `exit_code` (--help,
// --version, or a wrong flag, said on stderr).
std::optional<DaemonOptions> ParseFlags(int argc, char** argv, int* exit_code);

}  // namespace meshrun::worker
