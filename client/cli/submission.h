// Submits jobs and finds them by id; its errors need several answers of the coordinator.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace meshrun::client {

// As Client::Submit; an unknown shipped job names the ones that there are.
absl::StatusOr<v1::Job> Submit(Client& client, const v1::JobSpec& spec, bool must_fit,
                               const std::string& request_id = "", std::string* too_big = nullptr);

// The jobs of an array, by the array's whole id; else one job, as FindJob.
absl::StatusOr<std::vector<v1::Job>> FindJobs(Client& client, const std::string& id);

// A job by its id or by the start of it. An unknown one names the nearest.
absl::StatusOr<v1::GetJobResponse> FindJob(Client& client, const std::string& id);

}  // namespace meshrun::client
