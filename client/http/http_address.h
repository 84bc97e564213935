// Where a client finds a coordinator's HTTP port. Pure.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "meshrun/v1/cluster_service.pb.h"

namespace meshrun::client {

// `told`: DescribeClusterResponse.http_address. `coordinator`: the address at which this client
// reaches the coordinator. A port on all of a host's addresses is at that host's.
// FAILED_PRECONDITION: it has none, or one that only its own host reaches; the sentence says what
// to do.
absl::StatusOr<std::string> HttpAddressFrom(const std::string& told,
                                            const std::string& coordinator);

// The address of the coordinator that has answered: of several the one that leads. `given`: what
// this client was told, one address or several with commas.
std::string AddressOfLeader(const v1::DescribeClusterResponse& cluster, const std::string& given);

}  // namespace meshrun::client
