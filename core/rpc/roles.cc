#include "core/rpc/roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace meshrun::rpc {
namespace {

constexpr Roles kReaders = kReadRole | kSubmitRole | kOperateRole;
constexpr Roles kSubmitters = kSubmitRole | kOperateRole;

constexpr MethodRule kRules[] = {
    {"/meshrun.v1.JobService/SubmitJob", kSubmitters, Scope::kNewJob},
    {"/meshrun.v1.JobService/GetJob", kReaders},
    {"/meshrun.v1.JobService/ListJobs", kReaders},
    {"/meshrun.v1.JobService/WatchJob", kReaders},
    {"/meshrun.v1.JobService/CancelJob", kSubmitters, Scope::kOwnJob},
    {"/meshrun.v1.JobService/UpdateJob", kSubmitters, Scope::kOwnJob},
    {"/meshrun.v1.JobService/SignalJob", kSubmitters, Scope::kOwnJob},
    {"/meshrun.v1.JobService/ReadLogs", kReaders},
    {"/meshrun.v1.JobService/ReadPictures", kReaders},
    {"/meshrun.v1.JobService/GetFlightRecords", kReaders},
    // A debugger stops the ranks for a moment.
    {"/meshrun.v1.JobService/GetStacks", kSubmitters, Scope::kOwnJob},

    {"/meshrun.v1.ClusterService/ListNodes", kReaders},
    {"/meshrun.v1.ClusterService/DescribeCluster", kReaders},
    {"/meshrun.v1.ClusterService/ListEvents", kReaders},
    {"/meshrun.v1.ClusterService/DescribeLimits", kReaders},
    {"/meshrun.v1.ClusterService/ListUsage", kReaders},
    {"/meshrun.v1.ClusterService/ListAudit", kOperateRole},
    {"/meshrun.v1.ClusterService/Backup", kOperateRole},
    {"/meshrun.v1.ClusterService/DrainNode", kOperateRole},
    {"/meshrun.v1.ClusterService/UndrainNode", kOperateRole},
    {"/meshrun.v1.ClusterService/RemoveNode", kOperateRole},

    {"/meshrun.v1.SessionService/OpenSession", kWorkerRole, Scope::kOwnNode},
    {"/meshrun.v1.SessionService/UploadLog", kWorkerRole, Scope::kOwnNode},
    {"/meshrun.v1.SessionService/UploadFlightRecord", kWorkerRole, Scope::kOwnNode},
    {"/meshrun.v1.SessionService/UploadStack", kWorkerRole, Scope::kOwnNode},

    // If a rank makes the call, its daemon checks the token and passes the call on as the daemon's
    // own.
    {"/meshrun.v1.StoreService/SetValues", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/GetValues", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/WaitKeys", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/AddValue", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/CompareSetValue", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/AppendValue", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/DeleteKey", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/CountKeys", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/EnterBarrier", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/PublishUniqueId", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/AwaitUniqueId", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/RegisterGroup", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/GetWorld", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/CommitCheckpoint", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/GetCheckpoint", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/ReportFinished", kWorkerRole | kRankRole, Scope::kOwnNode},
    {"/meshrun.v1.StoreService/GetFinished", kWorkerRole | kRankRole, Scope::kOwnNode},

    // Served by daemons alone.
    {"/meshrun.v1.AgentService/RegisterRank", kRankRole},
    {"/meshrun.v1.AgentService/ReportProgress", kRankRole},
    {"/meshrun.v1.AgentService/ReportWait", kRankRole},
    {"/meshrun.v1.AgentService/WithdrawWait", kRankRole},
    {"/meshrun.v1.AgentService/UploadFlightRecord", kRankRole},
    {"/meshrun.v1.AgentService/ReportQuiesced", kRankRole},
    {"/meshrun.v1.AgentService/WatchGeneration", kRankRole},

    // Paths of the HTTP server; those of the JSON API have the rules of the methods that they stand
    // for.
    {"http:/healthz", kAnyRole},
    {"http:/metrics", kReaders},
    {"http:/", kReaders},

    // Whether it lives, and what can be called.
    {"/grpc.health.v1.Health/", kAnyRole},
    {"/grpc.reflection.v1alpha.ServerReflection/", kAnyRole},
};

constexpr std::pair<std::string_view, Roles> kNames[] = {
    {"coordinator", kCoordinatorRole}, {"worker", kWorkerRole},   {"rank", kRankRole},
    {"submit", kSubmitRole},           {"operate", kOperateRole}, {"read", kReadRole},
};

}  // namespace

std::span<const MethodRule> MethodRules() { return kRules; }

const MethodRule* FindRule(std::string_view method) {
  const auto* const rule =
      std::find_if(std::begin(kRules), std::end(kRules), [method](const MethodRule& candidate) {
        return candidate.method.ends_with('/') ? method.starts_with(candidate.method)
                                               : method == candidate.method;
      });
  return rule == std::end(kRules) ? nullptr : rule;
}

bool IsForNodes(std::string_view method) {
  const MethodRule* const rule = FindRule(method);
  return rule != nullptr && rule->scope == Scope::kOwnNode;
}

bool Identity::SpeaksFor(std::string_view node) const {
  return std::any_of(nodes.begin(), nodes.end(),
                     [node](const std::string& own) { return own == "*" || own == node; });
}

absl::StatusOr<Roles> ParseRole(std::string_view name) {
  for (const auto& [known, role] : kNames) {
    if (known == name && role != kRankRole) return role;
  }
  return absl::InvalidArgumentError(
      fmt::format("'{}' is not a role: write coordinator, worker, submit, operate or read", name));
}

std::string RoleNames(Roles roles) {
  std::string out;
  for (const auto& [name, role] : kNames) {
    if ((roles & role) != 0) out += fmt::format("{}{}", out.empty() ? "" : ", ", name);
  }
  return out.empty() ? "none" : out;
}

Identity MakeIdentity(std::string_view common_name, const std::vector<std::string>& uris) {
  Identity out;
  out.name = common_name;
  for (const std::string_view uri : uris) {
    if (uri.starts_with(kRoleUri)) {
      out.roles |= ParseRole(uri.substr(kRoleUri.size())).value_or(0);
    } else if (uri.starts_with(kNodeUri)) {
      out.nodes.emplace_back(uri.substr(kNodeUri.size()));
    }
  }
  if (!uris.empty()) return out;
  if (common_name == "meshrun-coordinator") out.roles = kCoordinatorRole;
  if (common_name == "meshrun-client") out.roles = kOperateRole;
  if (common_name == "meshrun-worker") {
    out.roles = kWorkerRole;
    out.nodes = {"*"};
  }
  return out;
}

absl::Status CheckCall(const Identity& caller, std::string_view method) {
  const MethodRule* const rule = FindRule(method);
  if (rule == nullptr) {
    return absl::PermissionDeniedError(
        fmt::format("{} is not in the table of roles: nobody may call it", method));
  }
  if ((caller.roles & rule->roles) != 0) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format(
      "{} is for the roles {}, and the certificate of '{}' has {}: have one issued with 'meshrun "
      "ca issue --role'",
      method, RoleNames(rule->roles & ~kRankRole), caller.name, RoleNames(caller.roles)));
}

}  // namespace meshrun::rpc
