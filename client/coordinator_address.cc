#include "client/coordinator_address.h"

#include <cstdlib>
#include <utility>

#include "client/dev_cluster.h"
#include "core/rpc/default_address.h"
#include "core/status.h"

namespace meshrun::client {

absl::StatusOr<CoordinatorAddress> FindCoordinator(const std::string& given) {
  if (!given.empty()) return CoordinatorAddress{given, "--coordinator"};
  if (const char* named = std::getenv("MESHRUN_COORDINATOR"); named != nullptr && *named != '\0') {
    return CoordinatorAddress{named, "MESHRUN_COORDINATOR"};
  }
  if (const auto directory = DevCluster::DefaultDirectory(); directory.ok()) {
    const DevCluster::State state = DevCluster(*directory).Read();
    // Also where its coordinator alone has ended: the error then says how it comes back.
    if (state.alive() && !state.address.empty()) {
      return CoordinatorAddress{state.address, "the dev cluster"};
    }
  }
  MESHRUN_ASSIGN_OR_RETURN(std::string address, rpc::DefaultConnectAddress());
  return CoordinatorAddress{std::move(address), kDefaultSource};
}

}  // namespace meshrun::client
