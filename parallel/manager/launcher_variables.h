// The variables that each launcher sets. environment.h lists them.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "parallel/manager/environment.h"

namespace meshrun {

class VariableReader;

// What the launcher says of this process: all fields but the timeouts and model_parallel_size.
// `process` is this_process(). INVALID_ARGUMENT names the variable that is missing or malformed.
absl::StatusOr<LaunchEnvironment> read_launcher_variables(const EnvironmentLookup& lookup,
                                                          LaunchMethod method,
                                                          const std::string& process);

// The process's number on its host; absent where the launcher does not say it.
std::optional<int> read_local_rank(VariableReader& reader, LaunchMethod method);

}  // namespace meshrun
