// What etcd's errors mean for a coordinator.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace meshrun::coordinator::etcd {

// Who asks, and for what.
struct Call {
  // "cannot read".
  std::string_view what;
  // Empty: the one that our certificate names.
  std::string_view user;
  // Below it lies what we use.
  std::string_view prefix;
};

struct Answer {
  std::string member;
  grpc::Status status;
};

// An error of client.h: "cannot read: etcd at MEMBER: what it said; what to do".
absl::Status FromEtcd(const Answer& answer, const Call& call);
// UNAVAILABLE: what each member said last, those together that said the same, and what to do.
absl::Status NobodyServes(const std::vector<Answer>& answers, const Call& call);

// Whether another attempt, or another member, may do it.
bool IsPassing(const grpc::Status& status);
// Whether a new token is wanted.
bool IsTokenRefused(const grpc::Status& status);

}  // namespace meshrun::coordinator::etcd
