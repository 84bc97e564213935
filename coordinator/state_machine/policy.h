// What the operator's policy says of one job: its defaults, its limits, and whose quotas it counts
// in. Pure.
//
// A job counts for its user, for its account and for its partition, and the limits of all three
// hold. A default is the partition's, else the account's, else the user's.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "meshrun/v1/job.pb.h"
#include "meshrun/v1/policy.pb.h"

namespace meshrun::coordinator {

// From SIGTERM to SIGKILL at most, where the policy says nothing: a time limit has an end.
inline constexpr std::chrono::hours kMostKillGrace{1};

// Limits of a user, an account, a partition, or an array of jobs.
struct PolicyScope {
  v1::LimitScope::Kind kind = v1::LimitScope::KIND_USER;
  std::string name;
  v1::UserLimits limits;

  // "user ada", "account physics", "partition gpu".
  std::string Words() const;
  // Unique among all scopes.
  std::string Key() const;
};

// Those that a job counts for: its user first.
std::vector<PolicyScope> ScopesOf(const v1::Policy& policy, const std::string& user,
                                  const std::string& account, const std::string& partition);

// In the queue, beside other users.
double WeightOf(const v1::Policy& policy, const std::string& user);

// Fills in the account, the partition with its constraints, and the defaults; checks what one job
// may ask for. `spec` is normalized. INVALID_ARGUMENT: no such account or partition, or more than a
// job may ask for: the limit, and whose it is. PERMISSION_DENIED: not for this user.
absl::Status ApplyPolicy(const v1::Policy& policy, const std::string& user, v1::JobSpec* spec);

// The user's, then those of the accounts and partitions that he may use, by name.
std::vector<PolicyScope> ScopesFor(const v1::Policy& policy, const std::string& user);

// The most that a stop of the job may last before its ranks are killed.
std::chrono::nanoseconds MostKillGrace(const std::vector<PolicyScope>& scopes);

}  // namespace meshrun::coordinator
