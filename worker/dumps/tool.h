// A program that looks at another process, with a limit on its time and on what it prints.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace meshrun::worker {

struct ToolResult {
  // Standard output and error; a sentence where the tool did not start.
  std::string output;
  bool in_time = true;
  bool succeeded = false;
};

// Runs argv[0], a path, to look at `target`. At the timeout the tool gets SIGTERM, and a second to
// let go of the process; then it is killed with what it has started. The process is left running,
// unless somebody else has paused it. Blocks.
ToolResult RunTool(const std::vector<std::string>& argv, pid_t target,
                   std::chrono::milliseconds timeout);

}  // namespace meshrun::worker
