// The processes below a process, as /proc shows them: what a rank started, and what that started.
//
// Linux. Nothing here blocks. Processes that end while /proc is read are left out.
#pragma once

#include <sys/types.h>

#include <string_view>
#include <vector>

namespace meshrun::worker {

// Every live descendant of `root` (zombies left out), parents before children. A descendant whose
// parent has ended is found through the nearest subreaper above it: call it for a subreaper.
std::vector<pid_t> Descendants(pid_t root);

// Kills every descendant of `root`: all of them are stopped first, until no new one appears, so
// that none can fork away from its kill. Returns how many were sent SIGKILL. Collect them with
// waitpid and call again while any is left: the kernel may take its time.
int KillDescendants(pid_t root);

// Kills, in the same way, every process of this user whose environment holds `entry` ("NAME=value")
// since its start; never the caller. For what is left when the subreaper itself is gone. Returns
// how many. Call again after a moment: a process that becomes another program shows no environment.
int KillByEnvironment(std::string_view entry);

}  // namespace meshrun::worker
