#include "client/cli/coordinator_http.h"

#include "client/http/http_address.h"
#include "core/status.h"

namespace meshrun::client {

absl::StatusOr<CoordinatorHttp> FindHttp(const Connection& connection, const std::string& job) {
  CoordinatorHttp out;
  if (!job.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(const v1::GetJobResponse found, connection.client->Get(job));
    out.job_id = found.job().job_id();
  }
  MESHRUN_ASSIGN_OR_RETURN(const v1::DescribeClusterResponse cluster,
                           connection.client->DescribeCluster(1));
  out.target.security = connection.security;
  MESHRUN_ASSIGN_OR_RETURN(out.target.address,
                           HttpAddressFrom(cluster.http_address(),
                                           AddressOfLeader(cluster, connection.client->address())));
  return out;
}

}  // namespace meshrun::client
