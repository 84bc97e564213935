// A program that looks at another process, with a limit on its time and on what it prints.
#pragma once

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

// Runs argv[0], a path. At the timeout it is killed with what it has started. Blocks.
ToolResult RunTool(const std::vector<std::string>& argv, std::chrono::milliseconds timeout);

}  // namespace meshrun::worker
