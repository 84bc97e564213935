// Roles in certificates, and which of them may call which method: the one place that decides.
//
//   role          may
//   coordinator   serve (and ask for a server's health)
//   worker        speak for its own node: sessions, its logs, the store of jobs that run there
//   rank          speak for itself with its generation's token; no certificate has this role
//   submit        run jobs (at priority 0 or below), change and end its own, read
//   operate       all that submit and read may, on every job and node, at any priority
//   read          look at jobs, nodes and logs
//
// A method without a row is refused, also to operators. Over a Unix socket there is no certificate:
// only its directory's user can enter, and may do everything.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun::rpc {

// Bits of a set.
using Roles = uint32_t;
inline constexpr Roles kCoordinatorRole = 1u << 0;
inline constexpr Roles kWorkerRole = 1u << 1;
inline constexpr Roles kRankRole = 1u << 2;
inline constexpr Roles kSubmitRole = 1u << 3;
inline constexpr Roles kOperateRole = 1u << 4;
inline constexpr Roles kReadRole = 1u << 5;
inline constexpr Roles kAnyRole = (1u << 6) - 1;

// What a caller may name besides.
enum class Scope {
  kAny,
  // The node of its certificate, and jobs that run there.
  kOwnNode,
  // Jobs that it has submitted; an operator any.
  kOwnJob,
  // A job that it submits, at a priority that is not raised; an operator at any.
  kNewJob,
};

struct MethodRule {
  // "/meshrun.v1.JobService/SubmitJob", or "/package.Service/" for all of its methods.
  std::string_view method;
  Roles roles = 0;
  Scope scope = Scope::kAny;
};

std::span<const MethodRule> MethodRules();
// Null: the method is refused.
const MethodRule* FindRule(std::string_view method);
// Whether only nodes call it, and each for itself.
bool IsForNodes(std::string_view method);

// Who a certificate speaks for. Written into it as names of the kind URI:
//   urn:meshrun:role:submit    one for each role
//   urn:meshrun:node:gpu7      the nodes of a worker; "*" is every node
struct Identity {
  Roles roles = 0;
  // The common name: the user, where it is a person's.
  std::string name;
  std::vector<std::string> nodes;

  bool SpeaksFor(std::string_view node) const;
};

inline constexpr std::string_view kRoleUri = "urn:meshrun:role:";
inline constexpr std::string_view kNodeUri = "urn:meshrun:node:";

// INVALID_ARGUMENT lists the roles.
absl::StatusOr<Roles> ParseRole(std::string_view name);
// "submit, read"; "none" for 0.
std::string RoleNames(Roles roles);

// From a certificate's subject and URIs. Certificates that were made before there were roles have
// none, and are known by their common name: meshrun-coordinator, meshrun-worker (every node) and
// meshrun-client (operate).
Identity MakeIdentity(std::string_view common_name, const std::vector<std::string>& uris);

// PERMISSION_DENIED names the caller, its roles, and those that may.
absl::Status CheckCall(const Identity& caller, std::string_view method);

}  // namespace meshrun::rpc
