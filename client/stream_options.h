// Options of calls that follow a job. Installed for programs of other projects: no message of
// proto/ and nothing of gRPC is named here.
#pragma once

#include <chrono>
#include <functional>
#include <stop_token>

#include "absl/status/status.h"

namespace meshrun::client {

// Options of streaming calls.
struct StreamOptions {
  // Ends the call with CANCELLED.
  std::stop_token stop;
  // How long to go on trying while the coordinator is away.
  std::chrono::nanoseconds patience = std::chrono::seconds(60);
  // Called once at the start of each interruption. The next interruption can begin only after news.
  std::function<void(const absl::Status&)> on_interruption;
};

}  // namespace meshrun::client
