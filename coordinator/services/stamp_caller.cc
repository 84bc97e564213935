#include "coordinator/services/stamp_caller.h"

#include <algorithm>
#include <string>

#include "coordinator/state_machine/callers.h"
#include "core/os/user.h"
#include "core/proto_time.h"

namespace meshrun::coordinator {
namespace {

// Scope of a method that the coordinator serves; daemons serve AgentService.
rpc::Scope ScopeOf(std::string_view method, const rpc::Identity& identity) {
  const auto rules = rpc::MethodRules();
  const auto rule = std::find_if(rules.begin(), rules.end(), [method](const auto& candidate) {
    return candidate.method.starts_with("/meshrun.v1.") &&
           !candidate.method.starts_with("/meshrun.v1.AgentService/") &&
           candidate.method.substr(candidate.method.rfind('/') + 1) == method;
  });
  // What the table does not know never comes here; it could name nothing.
  if (rule == rules.end()) return rpc::Scope::kOwnNode;
  const bool operates = (identity.roles & rpc::kOperateRole) != 0;
  const bool of_a_job = rule->scope == rpc::Scope::kOwnJob || rule->scope == rpc::Scope::kNewJob;
  return of_a_job && operates ? rpc::Scope::kAny : rule->scope;
}

}  // namespace

certificates::Standing::Known StampCaller(const Sender& sender, certificates::Standing* standing,
                                          v1::StateEvent& event) {
  v1::Caller& caller = *event.mutable_caller();
  caller.set_peer(sender.peer);
  if (!sender.shows_certificate) {
    static const std::string own(os::UserName());
    caller.set_user(own);
    return {};
  }
  const rpc::Scope scope = ScopeOf(MethodOf(event), sender.identity);
  caller.set_own_node_only(scope == rpc::Scope::kOwnNode);
  caller.set_own_private_only((sender.identity.roles & rpc::kOperateRole) == 0);
  certificates::Standing::Known certificate;
  if (standing != nullptr) certificate = standing->Read(sender.certificate);
  caller.set_certificate(certificate.serial);
  caller.set_own_jobs_only(scope == rpc::Scope::kOwnJob || scope == rpc::Scope::kNewJob);
  caller.set_user(sender.identity.name);
  for (const std::string& node : sender.identity.nodes) caller.add_nodes(node);
  return certificate;
}

void StampWorker(const Sender& sender, certificates::Standing* standing, WallNanos grace,
                 v1::StateEvent& event) {
  const auto [begin, end] = StampCaller(sender, standing, event).validity;
  if (end == WallNanos(0)) return;
  *event.mutable_caller()->mutable_certificate_begins_at() = ToProtoTimestamp(begin);
  *event.mutable_caller()->mutable_certificate_ends_at() = ToProtoTimestamp(end);
  *event.mutable_caller()->mutable_session_ends_at() = ToProtoTimestamp(end + grace);
}

}  // namespace meshrun::coordinator
