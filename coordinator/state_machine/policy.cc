#include "coordinator/state_machine/policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/job_spec.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

using v1::LimitScope;

bool Contains(const google::protobuf::RepeatedPtrField<std::string>& names,
              const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <typename Map>
std::string NamesOf(const Map& map) {
  std::vector<std::string> names;
  for (const auto& [name, unused] : map) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names.empty() ? "there are none" : fmt::format("there are {}", fmt::join(names, ", "));
}

v1::UserLimits LimitsOfUser(const v1::Policy& policy, const std::string& user) {
  v1::UserLimits limits = policy.limits();
  const auto own = policy.users().find(user);
  if (own == policy.users().end()) return limits;
  // What is set there replaces what is set here; a merge alone would mix two times.
  std::vector<const google::protobuf::FieldDescriptor*> set;
  const google::protobuf::Reflection& fields = *limits.GetReflection();
  fields.ListFields(own->second.limits(), &set);
  for (const auto* const field : set) fields.ClearField(&limits, field);
  limits.MergeFrom(own->second.limits());
  return limits;
}

absl::Status TooMuch(std::string_view field, const std::string& asked, const std::string& most,
                     const PolicyScope& scope) {
  return absl::InvalidArgumentError(
      fmt::format("{}: {} is more than {}, the most for a job of {}: 'meshrun limits' shows what "
                  "is allowed",
                  field, asked, most, scope.Words()));
}

absl::Status CheckTime(std::string_view field, const google::protobuf::Duration& asked,
                       bool is_limited, const google::protobuf::Duration& most,
                       const PolicyScope& scope) {
  if (!is_limited || FromProto(asked) <= FromProto(most)) return absl::OkStatus();
  return TooMuch(field, FormatDuration(FromProto(asked)), FormatDuration(FromProto(most)), scope);
}

absl::Status CheckNumber(std::string_view field, uint64_t asked, bool is_limited, uint64_t most,
                         const PolicyScope& scope) {
  if (!is_limited || asked <= most) return absl::OkStatus();
  return TooMuch(field, fmt::to_string(asked), fmt::to_string(most), scope);
}

absl::Status CheckJob(const v1::JobSpec& spec, const PolicyScope& scope) {
  const v1::UserLimits& limits = scope.limits;
  google::protobuf::Duration grace = ToProtoDuration(KillGrace(spec));
  MESHRUN_RETURN_IF_ERROR(
      CheckTime("kill_grace", grace, limits.has_kill_grace(), limits.kill_grace(), scope));
  MESHRUN_RETURN_IF_ERROR(CheckTime("time_limit", spec.time_limit(), limits.has_time_limit(),
                                    limits.time_limit(), scope));
  MESHRUN_RETURN_IF_ERROR(CheckNumber("max_restarts", spec.max_restarts(),
                                      limits.has_max_restarts(), limits.max_restarts(), scope));
  // One rank per GPU or core: how many, only a placement knows.
  const uint64_t ranks =
      uint64_t{MinNodes(spec)} * std::max(spec.procs_per_node().count(), uint32_t{1});
  MESHRUN_RETURN_IF_ERROR(CheckNumber("ranks", ranks, limits.has_ranks(), limits.ranks(), scope));
  MESHRUN_RETURN_IF_ERROR(
      CheckNumber("ranks", ranks, limits.has_running_ranks(), limits.running_ranks(), scope));
  return CheckNumber("gpus", ranks * spec.gpus_per_proc(), limits.has_running_gpus(),
                     limits.running_gpus(), scope);
}

// What the job does not say; the first scope that has a default decides.
void FillIn(const PolicyScope& scope, v1::JobSpec* spec) {
  const v1::UserLimits& limits = scope.limits;
  if (!spec->has_kill_grace() && limits.has_default_kill_grace())
    *spec->mutable_kill_grace() = limits.default_kill_grace();
  if (!spec->has_time_limit() && limits.has_default_time_limit())
    *spec->mutable_time_limit() = limits.default_time_limit();
  if (!spec->has_max_restarts() && limits.has_default_max_restarts())
    spec->set_max_restarts(limits.default_max_restarts());
  if (spec->log_bytes() == 0 && limits.has_default_log_bytes())
    spec->set_log_bytes(limits.default_log_bytes());
}

// What a job has not said itself is at most what it may ask for.
void HoldDefaults(const PolicyScope& scope, const v1::JobSpec& said, v1::JobSpec* spec) {
  const v1::UserLimits& limits = scope.limits;
  if (limits.has_time_limit() && !said.has_time_limit() &&
      (!spec->has_time_limit() || FromProto(spec->time_limit()) > FromProto(limits.time_limit()))) {
    *spec->mutable_time_limit() = limits.time_limit();
  }
  if (limits.has_kill_grace() && !said.has_kill_grace() &&
      KillGrace(*spec) > FromProto(limits.kill_grace())) {
    *spec->mutable_kill_grace() = limits.kill_grace();
  }
  if (limits.has_max_restarts() && !said.has_max_restarts() &&
      spec->max_restarts() > limits.max_restarts()) {
    spec->set_max_restarts(limits.max_restarts());
  }
  // Nobody is refused for what he would have written.
  if (limits.has_log_bytes() && (spec->log_bytes() == 0 || spec->log_bytes() > limits.log_bytes()))
    spec->set_log_bytes(limits.log_bytes());
}

absl::Status ChooseAccount(const v1::Policy& policy, const std::string& user, v1::JobSpec* spec) {
  const auto own = policy.users().find(user);
  if (spec->account().empty() && own != policy.users().end())
    spec->set_account(own->second.account());
  // Without accounts in the policy a job may carry any name, for `meshrun usage`.
  if (spec->account().empty() || policy.accounts().empty()) return absl::OkStatus();
  const auto account = policy.accounts().find(spec->account());
  if (account == policy.accounts().end()) {
    return absl::InvalidArgumentError(
        fmt::format("account: there is no '{}': {}", spec->account(), NamesOf(policy.accounts())));
  }
  if (!account->second.users().empty() && !Contains(account->second.users(), user)) {
    return absl::PermissionDeniedError(
        fmt::format("account: {} may not use '{}'", user, spec->account()));
  }
  return absl::OkStatus();
}

absl::Status ChoosePartition(const v1::Policy& policy, const std::string& user, v1::JobSpec* spec) {
  if (spec->partition().empty()) spec->set_partition(policy.default_partition());
  if (spec->partition().empty()) return absl::OkStatus();
  const auto found = policy.partitions().find(spec->partition());
  if (found == policy.partitions().end()) {
    return absl::InvalidArgumentError(fmt::format("partition: there is no '{}': {}",
                                                  spec->partition(), NamesOf(policy.partitions())));
  }
  const v1::PartitionPolicy& partition = found->second;
  const bool open = partition.users().empty() && partition.accounts().empty();
  if (!open && !Contains(partition.users(), user) &&
      !Contains(partition.accounts(), spec->account())) {
    return absl::PermissionDeniedError(fmt::format(
        "partition: {} may not use '{}'{}", user, spec->partition(),
        spec->account().empty() ? "" : fmt::format(" with account '{}'", spec->account())));
  }
  for (const std::string& constraint : partition.nodes()) {
    if (!Contains(spec->constraints(), constraint)) spec->add_constraints(constraint);
  }
  return absl::OkStatus();
}

}  // namespace

std::string PolicyScope::Words() const {
  return fmt::format("{} {}",
                     kind == LimitScope::KIND_USER      ? "user"
                     : kind == LimitScope::KIND_ACCOUNT ? "account"
                     : kind == LimitScope::KIND_ARRAY   ? "array"
                                                        : "partition",
                     name.empty() ? "(without a name)" : name);
}

std::string PolicyScope::Key() const { return fmt::format("{}/{}", static_cast<int>(kind), name); }

std::vector<PolicyScope> ScopesOf(const v1::Policy& policy, const std::string& user,
                                  const std::string& account, const std::string& partition) {
  std::vector<PolicyScope> scopes = {{LimitScope::KIND_USER, user, LimitsOfUser(policy, user)}};
  if (const auto found = policy.accounts().find(account); found != policy.accounts().end())
    scopes.push_back({LimitScope::KIND_ACCOUNT, account, found->second.limits()});
  if (const auto found = policy.partitions().find(partition); found != policy.partitions().end())
    scopes.push_back({LimitScope::KIND_PARTITION, partition, found->second.limits()});
  return scopes;
}

std::vector<PolicyScope> ScopesFor(const v1::Policy& policy, const std::string& user) {
  std::vector<PolicyScope> scopes = ScopesOf(policy, user, "", "");
  std::vector<PolicyScope> others;
  for (const auto& [name, account] : policy.accounts()) {
    if (account.users().empty() || Contains(account.users(), user))
      others.push_back({LimitScope::KIND_ACCOUNT, name, account.limits()});
  }
  const size_t accounts = others.size();
  for (const auto& [name, partition] : policy.partitions()) {
    const bool by_account = std::any_of(
        others.begin(), others.begin() + static_cast<ptrdiff_t>(accounts),
        [&, &p = partition](const auto& scope) { return Contains(p.accounts(), scope.name); });
    if ((partition.users().empty() && partition.accounts().empty()) || by_account ||
        Contains(partition.users(), user)) {
      others.push_back({LimitScope::KIND_PARTITION, name, partition.limits()});
    }
  }
  std::sort(others.begin(), others.end(), [](const PolicyScope& a, const PolicyScope& b) {
    return std::pair(a.kind, a.name) < std::pair(b.kind, b.name);
  });
  scopes.insert(scopes.end(), others.begin(), others.end());
  return scopes;
}

double WeightOf(const v1::Policy& policy, const std::string& user) {
  const auto own = policy.users().find(user);
  return own == policy.users().end() || own->second.weight() <= 0 ? 1 : own->second.weight();
}

absl::Status ApplyPolicy(const v1::Policy& policy, const std::string& user, v1::JobSpec* spec) {
  if (policy.private_jobs()) spec->set_private_(true);
  MESHRUN_RETURN_IF_ERROR(ChooseAccount(policy, user, spec));
  MESHRUN_RETURN_IF_ERROR(ChoosePartition(policy, user, spec));
  const std::vector<PolicyScope> scopes =
      ScopesOf(policy, user, spec->account(), spec->partition());
  const v1::JobSpec said = *spec;
  for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) FillIn(*scope, spec);
  for (const PolicyScope& scope : scopes) HoldDefaults(scope, said, spec);
  for (const PolicyScope& scope : scopes) MESHRUN_RETURN_IF_ERROR(CheckJob(*spec, scope));
  const auto most = MostKillGrace(scopes);
  if (KillGrace(*spec) <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("kill_grace: {} is more than {}, the most that this cluster allows",
                  FormatDuration(KillGrace(*spec)), FormatDuration(most)));
}

std::chrono::nanoseconds MostKillGrace(const std::vector<PolicyScope>& scopes) {
  std::optional<std::chrono::nanoseconds> most;
  for (const PolicyScope& scope : scopes) {
    if (!scope.limits.has_kill_grace()) continue;
    const auto own = FromProto(scope.limits.kill_grace());
    most = std::min(most.value_or(own), own);
  }
  return most.value_or(kMostKillGrace);
}

}  // namespace meshrun::coordinator
