// Shows what the ranks of a job have written, and what they write on: `meshrun logs`.
#pragma once

#include "client/client.h"

namespace meshrun::client {

// Termination signals must be blocked (os::BlockTerminationSignals) before the process has threads.
// Returns the exit code: that of the job, where it is followed to its end. `json`: as
// client/render/log_lines.h says.
int ShowLogs(Client& client, const LogQuery& query, int world_size, bool json);

}  // namespace meshrun::client
