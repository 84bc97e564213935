// Where others reach this host.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun::worker {

// The address of this host on the way to `coordinator` ("host:port"): what its peers on that
// network can use too. 127.0.0.1 where the coordinator is on this host (loopback, Unix socket).
// Sends nothing. Errors: NOT_FOUND (the name does not resolve, or there is no route to it; pass
// --address).
absl::StatusOr<std::string> AddressFacing(const std::string& coordinator);

// Where ranks of other hosts may reach this one, the likeliest first: AddressFacing, then the other
// interfaces'. Where the coordinator is on this host: 127.0.0.1 alone.
absl::StatusOr<std::vector<std::string>> OwnAddresses(const std::string& coordinator);

// Addresses in the values of --address, which may be lists with commas: each once, in their order.
// INVALID_ARGUMENT: one is empty, has a blank, or is not UTF-8; or there are more than
// os::kMostAddresses.
absl::StatusOr<std::vector<std::string>> ParseAddresses(const std::vector<std::string>& values);

// Id of this machine, the same for all its daemons; empty if the machine has none, as in
// containers. It is a hash of the id in `path`: systemd asks that the id itself stays on its host.
std::string MachineId(const std::string& path = "/etc/machine-id");

// For GLOO_SOCKET_IFNAME: the interface with the first of these addresses, where /etc/hosts gives
// the host's own name an address of the loopback; else empty.
std::string GlooInterface(const std::vector<std::string>& addresses);

}  // namespace meshrun::worker
