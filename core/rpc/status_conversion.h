// Between absl::Status and grpc::Status: same codes, same text, and the typed detail that tells an
// answer of a meshrun server from an error that gRPC made on the way. Of messages only that of
// NotRead is read.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "meshrun/v1/error.pb.h"

namespace meshrun::rpc {

// The answer of a server. A status that another server answered with (it is passed on) keeps that
// server's origin.
grpc::Status ToGrpc(const absl::Status& status, v1::ErrorOrigin origin);

absl::Status FromGrpc(const grpc::Status& status);

// Which server answered with this error; ERROR_ORIGIN_UNSPECIFIED where gRPC made it: there is no
// server, the connection broke, or the deadline passed.
v1::ErrorOrigin OriginOf(const absl::Status& status);
v1::ErrorOrigin OriginOf(const grpc::Status& status);

// RESOURCE_EXHAUSTED of a call that is refused before its request is read, as TryAgainLater of one
// that was. gRPC carries no detail from there: the message has it all.
absl::Status NotRead(std::string_view why, std::chrono::milliseconds after);

// How a call has ended. A server that stops ends some calls with CANCELLED, as if their caller had
// done so: where the caller has not (`cancelled`), that is UNAVAILABLE.
grpc::Status EndOf(const grpc::Status& status, bool cancelled);

// How long to wait before a call is repeated that did nothing: what TryAgainLater or NotRead says.
// Absent: the call is not to be repeated for this.
std::optional<std::chrono::nanoseconds> WaitBeforeRepeating(const absl::Status& status);

// Initial metadata that a server sends at once on a stream: its reader learns that it was reached,
// though nothing may be said for hours.
inline constexpr char kReachedKey[] = "meshrun-reached";

}  // namespace meshrun::rpc
