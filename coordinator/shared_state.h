// A coordinator whose state is in etcd and is shared with others: `--state etcd://...`.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/server.h"
#include "coordinator/state_flags.h"

namespace meshrun::coordinator {

// Serves as a standby until it is elected. `prepare`: the options of a server that leads from now
// on, without store, door and leadership; called each time. `on_useless`: ElectedServer::Options.
// The functions outlive the server. Errors: those of the flags, of Door::Open, and of the files.
absl::StatusOr<std::unique_ptr<Server>> StartElected(
    const StateFlags& flags, std::function<absl::StatusOr<Server::Options>()> prepare,
    std::function<void(const absl::Status&)> on_useless);

}  // namespace meshrun::coordinator
