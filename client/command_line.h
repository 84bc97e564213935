// A command line as text, in job files. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun::client {

// The words of a line as a shell splits it: blanks, 'single', "double" quotes and backslashes; no
// variables. INVALID_ARGUMENT: what would need a shell, or a quote that is never closed.
absl::StatusOr<std::vector<std::string>> SplitCommandLine(std::string_view line);

}  // namespace meshrun::client
