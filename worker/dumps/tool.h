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

// Runs argv[0], a path, to look at `target`. At the timeout it gets SIGTERM, and a second to let the
// process go; then it is killed with what it has started. The process is left running, unless it
// was paused by somebody else. Blocks.
ToolResult RunTool(const std::vector<std::string>& argv, pid_t target,
                   std::chrono::milliseconds timeout);

}  // namespace meshrun::worker
