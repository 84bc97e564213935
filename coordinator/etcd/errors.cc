#include "coordinator/etcd/errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

namespace meshrun::coordinator::etcd {
namespace {

// etcd tells its errors apart by their texts.
struct Known {
  std::string_view text;
  absl::StatusCode code;
  std::string_view cure;
};

constexpr char kUser[] = "; pass --etcd-user and --etcd-password-file of a user that etcd knows";
constexpr char kPassword[] =
    "; the first line of --etcd-password-file must be the password of --etcd-user at etcd";

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
    {"etcdserver: authentication failed", absl::StatusCode::kUnauthenticated, kPassword},
    {"etcdserver: user name not found", absl::StatusCode::kUnauthenticated, kUser},
    {"etcdserver: authentication is not enabled", absl::StatusCode::kUnauthenticated,
     "; a user was given: `etcdctl auth enable`, or start without --etcd-user"},
    {"etcdserver: permission denied", absl::StatusCode::kPermissionDenied, ""},
    {"etcdserver: requested lease not found", absl::StatusCode::kNotFound, ""},
    {"etcdserver: corrupt cluster", absl::StatusCode::kDataLoss,
     "; the alarm CORRUPT is on: see etcd's documentation of disaster recovery"},
};

bool Says(const grpc::Status& status, std::string_view text) {
  return status.error_message().find(text) != std::string::npos;
}

// gRPC's text after the address, which we name ourselves.
std::string LastError(const std::string& text) {
  const size_t address = std::max(text.rfind("ipv4:") + 1, text.rfind("ipv6:") + 1);
  const size_t end = address == 0 ? std::string::npos : text.find(": ", address);
  return end == std::string::npos ? text : text.substr(end + 2);
}

// Why a member did not do it that another one might have done.
struct Silence {
  std::string text;
  std::string_view cure;
  bool operator==(const Silence&) const = default;
};

// gRPC tells these apart by their texts alone.
Silence SilenceOf(const grpc::Status& status) {
  const auto says_any = [&status](std::initializer_list<std::string_view> texts) {
    return std::any_of(texts.begin(), texts.end(),
                       [&](std::string_view text) { return Says(status, text); });
  };
  if (says_any({"etcdserver: no leader", "etcdserver: leader changed"})) {
    return {"it answers, and etcd has no leader", "has etcd a majority"};
  }
  if (says_any({"etcdserver: request timed out"})) {
    return {"it answers, and etcd does not commit", "has etcd a majority"};
  }
  if (says_any({"Connection refused"})) return {"connection refused", "is a member there"};
  if (says_any({"andshake failed", "erification", "certificate"})) {
    return {LastError(status.error_message()),
            "does its certificate name this host and come from --etcd-ca"};
  }
  // With TLS 1.3 a server refuses a client's certificate when the client believes to be connected.
  if (says_any({"Endpoint read failed", "Socket closed", "Connection reset", "Broken pipe"})) {
    return {"it closes the connection",
            "does it want a certificate of ours: --etcd-cert and --etcd-key, from the authority of "
            "its --trusted-ca-file"};
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    // It stands still, or waits for others.
    return {"no answer in time", "is a member there, and has etcd a majority"};
  }
  return {LastError(status.error_message()), "is a member there"};
}

}  // namespace

absl::Status FromEtcd(const Answer& answer, const Call& call) {
  const grpc::Status& status = answer.status;
  auto code = static_cast<absl::StatusCode>(status.error_code());
  std::string cure;
  for (const Known& known : kKnown) {
    if (!Says(status, known.text)) continue;
    code = known.code;
    cure = known.cure;
    break;
  }
  if (code == absl::StatusCode::kPermissionDenied) {
    cure = fmt::format(
        "; a role of {} needs: etcdctl role grant-permission ROLE readwrite --prefix=true {}/",
        call.user.empty() ? "the user that --etcd-cert names" : fmt::format("user {}", call.user),
        call.prefix);
  }
  return absl::Status(code, fmt::format("{}: etcd at {}: {}{}", call.what, answer.member,
                                        status.error_message(), cure));
}

absl::Status NobodyServes(const std::vector<Answer>& answers, const Call& call) {
  // In the order of members.
  std::vector<std::pair<Silence, std::vector<std::string>>> groups;
  for (const Answer& answer : answers) {
    Silence silence = SilenceOf(answer.status);
    auto same = std::find_if(groups.begin(), groups.end(),
                             [&](const auto& group) { return group.first == silence; });
    if (same == groups.end()) {
      groups.push_back({std::move(silence), {}});
      same = groups.end() - 1;
    }
    same->second.push_back(answer.member);
  }
  std::string text;
  for (const auto& [silence, members] : groups) {
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : "; ", fmt::join(members, ", "), silence.text);
  }
  std::vector<std::string_view> cures;
  for (const auto& [silence, members] : groups) {
    if (std::find(cures.begin(), cures.end(), silence.cure) == cures.end()) {
      cures.push_back(silence.cure);
    }
  }
  return absl::UnavailableError(
      fmt::format("{}: etcd at {}; {}?", call.what, text, fmt::join(cures, "? ")));
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
