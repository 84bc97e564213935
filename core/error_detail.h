// The typed detail of a status: meshrun.v1.ErrorDetail as a payload, as it travels with gRPC's
// errors (core/rpc/status_conversion.h).
#pragma once

#include <chrono>
#include <optional>

#include "absl/status/status.h"
#include "meshrun/v1/error.pb.h"

namespace meshrun {

// Empty where the status has none.
v1::ErrorDetail DetailOf(const absl::Status& status);
void SetDetail(absl::Status* status, const v1::ErrorDetail& detail);

// RESOURCE_EXHAUSTED: the call did nothing, and may be repeated after so long.
absl::Status TryAgainLater(std::string_view why, std::chrono::nanoseconds after);
// Absent: repeating the call helps nothing, or nobody knows.
std::optional<std::chrono::nanoseconds> RetryAfter(const absl::Status& status);

}  // namespace meshrun
