// A coordinator whose state is in etcd and is shared with others: `--state etcd://...`.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/elected_server.h"
#include "coordinator/server.h"
#include "coordinator/state_flags.h"

namespace meshrun::coordinator {

using Note = ElectedServer::Options::Note;
// The options of a server. `note`: null at the start of the process.
using Prepare = std::function<absl::StatusOr<Server::Options>(const Note& note)>;

// Serves as a standby until it is elected. `prepare`: for one that leads from now on, without
// store, door and leadership; called each time. `on_useless`: ElectedServer::Options.
// The functions outlive the server. Errors: those of the flags, of Door::Open, and of the files.
absl::StatusOr<std::unique_ptr<Server>> StartElected(
    const StateFlags& flags, Prepare prepare, std::function<void(const absl::Status&)> on_useless);

}  // namespace meshrun::coordinator
