// Submits jobs and finds them by id; its errors need several answers of the coordinator.
#pragma once

#include "absl/status/statusor.h"
#include "client/client.h"

namespace meshrun::client {

// As Client::Submit; an unknown shipped job names the ones that there are.
absl::StatusOr<v1::Job> Submit(Client& client, const v1::JobSpec& spec, bool must_fit,
                               const std::string& request_id = "", std::string* too_big = nullptr);

// A job by its id or by the start of it. An unknown one names the nearest.
absl::StatusOr<v1::GetJobResponse> FindJob(Client& client, const std::string& id);

}  // namespace meshrun::client
