#include "coordinator/etcd/errors.h"

#include <fmt/format.h>

#include <string>

namespace meshrun::coordinator::etcd {
namespace {

// etcd tells its errors apart by their texts.
struct Known {
  std::string_view text;
  absl::StatusCode code;
  std::string_view cure;
};

constexpr char kUser[] = "; pass --etcd-user and --etcd-password-file of a user that etcd knows";

constexpr char kTooLarge[] = "; its members need --max-request-bytes=1572864 (the default) or more";

constexpr Known kKnown[] = {
    {"etcdserver: mvcc: database space exceeded", absl::StatusCode::kResourceExhausted,
     "; its database has reached its quota and the alarm NOSPACE is on: `etcdctl defrag` each "
     "member, or raise their --quota-backend-bytes, then `etcdctl alarm disarm`"},
    {"etcdserver: request is too large", absl::StatusCode::kInvalidArgument, kTooLarge},
    // etcd's gRPC says so, which looks first.
    {"grpc: received message larger than max", absl::StatusCode::kInvalidArgument, kTooLarge},
    {"etcdserver: too many operations in txn request", absl::StatusCode::kInvalidArgument,
     "; its members need --max-txn-ops=128 (the default) or more"},
    {"etcdserver: user name is empty", absl::StatusCode::kUnauthenticated, kUser},
    {"etcdserver: invalid auth token", absl::StatusCode::kUnauthenticated, kUser},
    {"etcdserver: authentication failed", absl::StatusCode::kUnauthenticated, kUser},
    {"etcdserver: user name not found", absl::StatusCode::kUnauthenticated, kUser},
    {"etcdserver: authentication is not enabled", absl::StatusCode::kUnauthenticated,
     "; a user was given: `etcdctl auth enable`, or start without --etcd-user"},
    {"etcdserver: permission denied", absl::StatusCode::kPermissionDenied,
     "; its user's role needs: etcdctl role grant-permission ROLE readwrite --prefix=true PREFIX/"},
    {"etcdserver: requested lease not found", absl::StatusCode::kNotFound, ""},
    {"etcdserver: no leader", absl::StatusCode::kUnavailable,
     "; fewer than half of its members may be there: look at `etcdctl endpoint status`"},
    {"etcdserver: corrupt cluster", absl::StatusCode::kDataLoss,
     "; the alarm CORRUPT is on: see etcd's documentation of disaster recovery"},
};

bool Says(const grpc::Status& status, std::string_view text) {
  return status.error_message().find(text) != std::string::npos;
}

}  // namespace

absl::Status FromEtcd(const grpc::Status& status, std::string_view what, std::string_view member) {
  auto code = static_cast<absl::StatusCode>(status.error_code());
  std::string_view cure;
  for (const Known& known : kKnown) {
    if (!Says(status, known.text)) continue;
    code = known.code;
    cure = known.cure;
    break;
  }
  if (code == absl::StatusCode::kDeadlineExceeded || code == absl::StatusCode::kCancelled) {
    code = absl::StatusCode::kUnavailable;
  }
  if (cure.empty() && code == absl::StatusCode::kUnavailable && !Says(status, "etcdserver:")) {
    cure = "; is a member there, and does its certificate name this host and come from --etcd-ca?";
  }
  return absl::Status(
      code, fmt::format("{}: etcd at {}: {}{}", what, member, status.error_message(), cure));
}

bool IsPassing(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
      return true;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Says(status, "etcdserver: too many requests");
    case grpc::StatusCode::UNKNOWN:
      // What Go's gRPC makes of an error without a code: "context canceled", "raft: stopped".
      return true;
    default:
      return Says(status, "etcdserver: not leader");
  }
}

bool IsTokenRefused(const grpc::Status& status) {
  return Says(status, "etcdserver: invalid auth token") ||
         Says(status, "etcdserver: revision of auth store is old");
}

}  // namespace meshrun::coordinator::etcd
