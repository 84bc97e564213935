// What this host is called, and where others reach it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace meshrun::worker {

std::string HostName();

// The address of this host on the way to `coordinator` ("host:port"): what its peers on that
// network can use too. 127.0.0.1 where the coordinator is on this host (loopback, Unix socket).
// Sends nothing. Errors: NOT_FOUND (the name does not resolve, or there is no route to it; pass
// --address).
absl::StatusOr<std::string> AddressFacing(const std::string& coordinator);

// Of this machine, the same for all its daemons; empty where it has none, as containers do. Not the
// id itself: systemd asks that it stays on its host.
std::string MachineId(const std::string& path = "/etc/machine-id");

}  // namespace meshrun::worker
