// What etcd's errors mean for a coordinator.
#pragma once

#include <grpcpp/support/status.h>

#include <string_view>

#include "absl/status/status.h"

namespace meshrun::coordinator::etcd {

// An error of client.h: "`what`: etcd at `member`: what it said; what to do".
absl::Status FromEtcd(const grpc::Status& status, std::string_view what, std::string_view member);

// Whether another attempt, or another member, may do it.
bool IsPassing(const grpc::Status& status);
// Whether a new token is wanted.
bool IsTokenRefused(const grpc::Status& status);

}  // namespace meshrun::coordinator::etcd
