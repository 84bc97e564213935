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

// The coordinator is that of Connect(flags, job). FAILED_PRECONDITION: it has none that can be
// reached from here. NOT_FOUND: no such job.
absl::StatusOr<CoordinatorHttp> FindHttp(const CoordinatorFlags& flags, const std::string& job);

}  // namespace meshrun::client
