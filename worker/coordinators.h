// The coordinators that a daemon knows, of which one leads, and its channels to that one.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rpc/renewed_channel.h"
#include "core/rpc/security.h"

namespace meshrun::worker {

// Addresses of "a:1,b:1": one at least. INVALID_ARGUMENT: one is empty, or `security` does not lead
// there.
absl::StatusOr<std::vector<std::string>> ParseCoordinators(const std::string& list,
                                                           const rpc::Security& security);

// Makes the directories of Unix sockets. Errors: as rpc::MakeSocketDirectory.
absl::Status MakeSocketDirectories(const std::vector<std::string>& coordinators);

// OwnAddresses, seen from the first coordinator whose host is known: names of others may come
// later.
absl::StatusOr<std::vector<std::string>> OwnAddressesOf(
    const std::vector<std::string>& coordinators);

// Three, so that values and logs never delay a heartbeat. The first is the session's, which finds
// out who leads. `run` does what a file system may hold up. Errors: those of the TLS files.
using Channels = std::array<std::shared_ptr<rpc::RenewedChannel>, 3>;
absl::StatusOr<Channels> MakeChannels(const std::vector<std::string>& coordinators,
                                      const rpc::Security& security, rpc::RenewedChannel::Run run);

}  // namespace meshrun::worker
