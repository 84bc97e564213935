// The HTTP port of the coordinator that a command means.
#pragma once

#include <string>

#include "client/cli/context.h"
#include "client/http/http_client.h"

namespace meshrun::client {

struct CoordinatorHttp {
  HttpTarget target;
  // The whole id of the job whose beginning was given; empty: none was.
  std::string job_id;
};

// Asks the coordinator that leads, if there are several. `job`: the beginning of its id; may be
// empty. FAILED_PRECONDITION: it has no HTTP port that can be reached from here. NOT_FOUND: no such
// job.
absl::StatusOr<CoordinatorHttp> FindHttp(const Connection& connection, const std::string& job);

}  // namespace meshrun::client
