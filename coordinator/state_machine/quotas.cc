#include "coordinator/state_machine/quotas.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/job_spec.h"

namespace meshrun::coordinator {
namespace {

void Add(const JobUsage& usage, JobUsage* sum) {
  sum->queued_jobs += usage.queued_jobs;
  sum->running_jobs += usage.running_jobs;
  sum->ranks += usage.ranks;
  sum->gpus += usage.gpus;
}

void Subtract(const JobUsage& usage, JobUsage* sum) {
  sum->queued_jobs -= usage.queued_jobs;
  sum->running_jobs -= usage.running_jobs;
  sum->ranks -= usage.ranks;
  sum->gpus -= usage.gpus;
}

bool IsNothing(const JobUsage& usage) {
  return usage.queued_jobs == 0 && usage.running_jobs == 0 && usage.ranks == 0 && usage.gpus == 0;
}

// `used`: without the job.
std::optional<QuotaRefusal> RefusalIn(const PolicyScope& scope, const JobUsage& used,
                                      uint64_t ranks, uint64_t gpus) {
  const v1::UserLimits& limits = scope.limits;
  const auto refuse = [&scope](std::string text) {
    return QuotaRefusal{fmt::format("{} {}", scope.Words(), text), scope.kind, scope.Key()};
  };
  if (limits.has_ranks() && ranks > limits.ranks())
    return refuse(fmt::format("may have {} ranks in one job, and this one would have {}",
                              limits.ranks(), ranks));
  if (limits.has_running_jobs() && used.running_jobs + 1 > limits.running_jobs())
    return refuse(
        fmt::format("runs {} jobs, and its limit is {}", used.running_jobs, limits.running_jobs()));
  if (limits.has_running_ranks() && used.ranks + ranks > limits.running_ranks())
    return refuse(fmt::format("runs {} ranks, and {} more would be over its limit of {}",
                              used.ranks, ranks, limits.running_ranks()));
  if (limits.has_running_gpus() && used.gpus + gpus > limits.running_gpus())
    return refuse(fmt::format("runs on {} GPUs, and {} more would be over its limit of {}",
                              used.gpus, gpus, limits.running_gpus()));
  return std::nullopt;
}

}  // namespace

void Quotas::Set(Share& share, std::vector<std::string> scopes, const JobUsage& usage) {
  for (const std::string& scope : share.scopes) {
    const auto sum = by_scope_.find(scope);
    Subtract(share.usage, &sum->second);
    if (IsNothing(sum->second)) by_scope_.erase(sum);
  }
  share = {};
  if (IsNothing(usage)) return;
  for (const std::string& scope : scopes) Add(usage, &by_scope_[scope]);
  share = {std::move(scopes), usage};
}

JobUsage Quotas::Of(const std::string& scope) const {
  const auto sum = by_scope_.find(scope);
  return sum == by_scope_.end() ? JobUsage() : sum->second;
}

absl::Status Quotas::CheckSubmit(const std::vector<PolicyScope>& scopes, uint32_t jobs) const {
  for (const PolicyScope& scope : scopes) {
    const JobUsage used = Of(scope.Key());
    const uint64_t most = scope.limits.queued_jobs();
    if (!scope.limits.has_queued_jobs() || uint64_t{used.queued_jobs} + jobs <= most) continue;
    if (jobs > 1) {
      return absl::ResourceExhaustedError(
          fmt::format("{} has {} jobs in the queue, and the array's {} more would be over its "
                      "limit of {}",
                      scope.Words(), used.queued_jobs, jobs, most));
    }
    return absl::ResourceExhaustedError(
        fmt::format("{} has {} jobs in the queue, the most that it may: submit again when some "
                    "have started",
                    scope.Words(), used.queued_jobs));
  }
  return absl::OkStatus();
}

std::optional<QuotaRefusal> Quotas::Refusal(const JobUsage& own,
                                            const std::vector<PolicyScope>& scopes, uint64_t ranks,
                                            uint64_t gpus) const {
  for (const PolicyScope& scope : scopes) {
    JobUsage used = Of(scope.Key());
    Subtract(own, &used);
    auto refusal = RefusalIn(scope, used, ranks, gpus);
    if (refusal.has_value()) return refusal;
  }
  return std::nullopt;
}

std::optional<QuotaRefusal> RefusalAlone(const std::vector<PolicyScope>& scopes, uint64_t ranks,
                                         uint64_t gpus) {
  return Quotas().Refusal({}, scopes, ranks, gpus);
}

PlacementResult PlaceWithin(
    const PlacementRequest& request,
    const std::function<PlacementResult(const PlacementRequest&)>& place,
    const std::function<std::optional<QuotaRefusal>(uint64_t ranks, uint64_t gpus)>& refusal,
    std::optional<QuotaRefusal>* refused) {
  // A mesh may not divide what a quota leaves.
  constexpr int kMostTries = 8;
  refused->reset();
  PlacementResult result = place(request);
  if (!result.placement.has_value()) return result;
  Placement fewer = *result.placement;
  uint64_t gpus = fewer.GpuCount();
  *refused = refusal(fewer.world_size, gpus);
  v1::JobSpec spec = request.spec;
  for (int tries = 0; refused->has_value() && fewer.nodes.size() > MinNodes(spec);) {
    gpus -= PlacedGpus(fewer.nodes.back());
    fewer.world_size -= fewer.nodes.back().procs;
    fewer.nodes.pop_back();
    if (refusal(fewer.world_size, gpus).has_value()) continue;
    if (++tries > kMostTries) break;
    spec.set_max_nodes(static_cast<uint32_t>(fewer.nodes.size()));
    PlacementRequest within = {spec,
                               request.nodes,
                               request.previous,
                               request.ignore_usage,
                               request.released,
                               request.gpus_per_proc};
    PlacementResult smaller = place(within);
    if (!smaller.placement.has_value()) continue;
    if (refusal(smaller.placement->world_size, smaller.placement->GpuCount()).has_value()) continue;
    refused->reset();
    result = std::move(smaller);
  }
  return result;
}

}  // namespace meshrun::coordinator
