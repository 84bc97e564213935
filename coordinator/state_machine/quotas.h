// What the jobs of each user, account and partition have, and whether one may have more.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/state_machine/placement.h"
#include "coordinator/state_machine/policy.h"

namespace meshrun::coordinator {

// What one job counts as.
struct JobUsage {
  uint32_t queued_jobs = 0;
  uint32_t running_jobs = 0;
  uint32_t ranks = 0;
  uint32_t gpus = 0;
};

struct QuotaRefusal {
  // "user bob runs 10 jobs, and its limit is 10".
  std::string text;
  v1::LimitScope::Kind kind = v1::LimitScope::KIND_USER;
  // PolicyScope::Key of the scope.
  std::string key;
};

class Quotas {
 public:
  // What one job has been counted as, and for whom: keys of scopes.
  struct Share {
    std::vector<std::string> scopes;
    JobUsage usage;
  };
  // The job has this from now on, in place of its share, which it keeps.
  void Set(Share& share, std::vector<std::string> scopes, const JobUsage& usage);

  JobUsage Of(const std::string& scope) const;

  // RESOURCE_EXHAUSTED: so many more in the queue would be too many; says for whom.
  absl::Status CheckSubmit(const std::vector<PolicyScope>& scopes, uint32_t jobs) const;
  // Why the job may not run with so many ranks and GPUs in all; absent: it may. What it has already
  // does not count twice: `own`.
  std::optional<QuotaRefusal> Refusal(const JobUsage& own, const std::vector<PolicyScope>& scopes,
                                      uint64_t ranks, uint64_t gpus) const;

 private:
  std::unordered_map<std::string, JobUsage> by_scope_;
};

// As if nobody else ran.
std::optional<QuotaRefusal> RefusalAlone(const std::vector<PolicyScope>& scopes, uint64_t ranks,
                                         uint64_t gpus);

// Places the request on as many nodes as `refusal` takes. `*refused`: why it takes none; absent:
// the placement may be used, if there is one.
PlacementResult PlaceWithin(
    const PlacementRequest& request,
    const std::function<PlacementResult(const PlacementRequest&)>& place,
    const std::function<std::optional<QuotaRefusal>(uint64_t ranks, uint64_t gpus)>& refusal,
    std::optional<QuotaRefusal>* refused);

}  // namespace meshrun::coordinator
