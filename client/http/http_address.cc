#include "client/http/http_address.h"

#include <fmt/format.h>

#include "core/rpc/unix_socket.h"

namespace meshrun::client {

absl::StatusOr<std::string> HttpAddressFrom(const std::string& told,
                                            const std::string& coordinator) {
  if (told.empty()) {
    return absl::FailedPreconditionError(fmt::format(
        "the coordinator at {} has no HTTP port: start it with --http, for example --http "
        "0.0.0.0:7481 beside --listen 0.0.0.0:7480",
        coordinator));
  }
  const bool is_remote = !rpc::UnixPath(coordinator);
  if (rpc::UnixPath(told)) {
    if (!is_remote) return told;
    return absl::FailedPreconditionError(
        fmt::format("the HTTP port of the coordinator at {} is {} on its own host: call this "
                    "command there, or start the coordinator with --http 0.0.0.0:7481",
                    coordinator, told));
  }
  const size_t colon = told.rfind(':');
  const std::string host = told.substr(0, colon);
  if (!is_remote || (host != "0.0.0.0" && host != "[::]" && host != "::")) return told;
  return coordinator.substr(0, coordinator.rfind(':')) + told.substr(colon);
}

std::string AddressOfLeader(const v1::DescribeClusterResponse& cluster, const std::string& given) {
  for (const v1::Coordinator& one : cluster.coordinators()) {
    if (one.leads() && !one.address().empty()) return one.address();
  }
  return given.substr(0, given.find(','));
}

}  // namespace meshrun::client
