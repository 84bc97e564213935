// Where a program of this user finds its coordinator.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace meshrun::client {

// The source of an address that nobody named.
inline constexpr char kDefaultSource[] = "the default";

struct CoordinatorAddress {
  std::string address;
  // What named it: "--coordinator", "MESHRUN_COORDINATOR", "the dev cluster" or kDefaultSource.
  std::string source;
};

// `given`, else $MESHRUN_COORDINATOR, the running dev cluster, this user's default socket.
// Errors: as rpc::DefaultConnectAddress.
absl::StatusOr<CoordinatorAddress> FindCoordinator(const std::string& given);

}  // namespace meshrun::client
