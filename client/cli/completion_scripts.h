// Completion scripts of shells, from the tree of commands and flags. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace meshrun::client {

// "bash", "zsh" or "fish". The script asks the command for ids of jobs and names of shipped jobs.
// INVALID_ARGUMENT: another shell.
absl::StatusOr<std::string> CompletionScript(const CLI::App& root, const std::string& shell);

}  // namespace meshrun::client
