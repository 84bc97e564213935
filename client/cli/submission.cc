#include "client/cli/submission.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/job_spec.h"
#include "core/suggest.h"

namespace meshrun::client {

absl::StatusOr<v1::Job> Submit(Client& client, const v1::JobSpec& spec, bool must_fit,
                               const std::string& request_id, std::string* too_big) {
  auto job = client.Submit(spec, must_fit, request_id, too_big);
  if (job.ok() || !absl::IsNotFound(job.status()) || spec.shipped_job().empty()) return job;
  const auto nodes = client.ListNodes();
  if (!nodes.ok()) return job;
  std::set<std::string> shipped;
  for (const v1::Node& node : *nodes)
    shipped.insert(node.shipped_jobs().begin(), node.shipped_jobs().end());
  if (shipped.empty()) {
    return absl::NotFoundError(
        fmt::format("no job '{}' ships with meshrun here: the workers found no shipped jobs beside "
                    "their program",
                    spec.shipped_job()));
  }
  const std::vector<std::string> names(shipped.begin(), shipped.end());
  const std::string nearest = Nearest(spec.shipped_job(), names);
  return absl::NotFoundError(fmt::format(
      "no job '{}' ships with meshrun: {}there are {}", spec.shipped_job(),
      nearest.empty() ? "" : fmt::format("did you mean '{}'? ", nearest), fmt::join(names, ", ")));
}

absl::StatusOr<std::vector<v1::Job>> FindJobs(Client& client, const std::string& id) {
  auto one = FindJob(client, id);
  if (one.ok()) return std::vector<v1::Job>{std::move(*one->mutable_job())};
  if (!absl::IsNotFound(one.status())) return one.status();
  v1::ListJobsRequest request;
  request.set_array_id(id);
  auto jobs = client.List(request, kMostOfAnArray);
  if (!jobs.ok() || jobs->empty()) return one.status();
  std::sort(jobs->begin(), jobs->end(),
            [](const v1::Job& a, const v1::Job& b) { return a.array_index() < b.array_index(); });
  return jobs;
}

absl::StatusOr<v1::GetJobResponse> FindJob(Client& client, const std::string& id) {
  auto found = client.Get(id);
  if (found.ok() || !absl::IsNotFound(found.status())) return found;
  const auto jobs = client.List();
  if (!jobs.ok()) return found;
  std::vector<std::string> ids;
  std::vector<std::string> matches;
  for (const v1::Job& job : *jobs) {
    ids.push_back(job.job_id());
    if (job.job_id().starts_with(id)) matches.push_back(job.job_id());
    // The coordinator's answer tells what to write.
    if (job.array_id() == id) return found;
  }
  if (matches.size() > 1) {
    return absl::NotFoundError(fmt::format("'{}' begins the ids of {} jobs: {}; write more of it",
                                           id, matches.size(), fmt::join(matches, ", ")));
  }
  const std::string nearest = DidYouMean(id, ids);
  return absl::NotFoundError(fmt::format(
      "there is no job '{}'{}", id,
      nearest.empty() ? ": 'meshrun ps --all' lists the jobs of this coordinator" : nearest));
}

}  // namespace meshrun::client
