#include "coordinator/services/stamp_caller.h"

#include <algorithm>
#include <string>

#include "coordinator/state_machine/callers.h"
#include "core/os/user.h"
#include "core/proto_time.h"
#include "core/rpc/caller.h"

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

certificates::Standing::Known StampCaller(const grpc::CallbackServerContext& context,
                                          certificates::Standing* standing, v1::StateEvent& event) {
  v1::Caller& caller = *event.mutable_caller();
  const auto peer = context.auth_context();
  caller.set_peer(context.peer());
  if (!rpc::ShowsCertificate(*peer)) {
    static const std::string own(os::UserName());
    caller.set_user(own);
    return {};
  }
  rpc::Identity identity = rpc::IdentityOf(*peer);
  const rpc::Scope scope = ScopeOf(MethodOf(event), identity);
  caller.set_own_node_only(scope == rpc::Scope::kOwnNode);
  caller.set_own_private_only((identity.roles & rpc::kOperateRole) == 0);
  certificates::Standing::Known certificate;
  if (standing != nullptr) certificate = standing->Read(rpc::CertificateOf(*peer));
  caller.set_certificate(certificate.serial);
  caller.set_own_jobs_only(scope == rpc::Scope::kOwnJob || scope == rpc::Scope::kNewJob);
  caller.set_user(std::move(identity.name));
  for (std::string& node : identity.nodes) caller.add_nodes(std::move(node));
  return certificate;
}

void StampWorker(const grpc::CallbackServerContext& context, certificates::Standing* standing,
                 WallNanos grace, v1::StateEvent& event) {
  const auto [begin, end] = StampCaller(context, standing, event).validity;
  if (end == WallNanos(0)) return;
  *event.mutable_caller()->mutable_certificate_begins_at() = ToProtoTimestamp(begin);
  *event.mutable_caller()->mutable_certificate_ends_at() = ToProtoTimestamp(end);
  *event.mutable_caller()->mutable_session_ends_at() = ToProtoTimestamp(end + grace);
}

}  // namespace meshrun::coordinator
