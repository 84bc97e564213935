#include "core/error_detail.h"

#include <fmt/format.h>

#include <string>

#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun {
namespace {

constexpr char kPayloadUrl[] = "type.googleapis.com/meshrun.v1.ErrorDetail";

}  // namespace

v1::ErrorDetail DetailOf(const absl::Status& status) {
  v1::ErrorDetail detail;
  const auto payload = status.GetPayload(kPayloadUrl);
  if (payload && !detail.ParseFromString(std::string(*payload))) detail.Clear();
  return detail;
}

void SetDetail(absl::Status* status, const v1::ErrorDetail& detail) {
  status->SetPayload(kPayloadUrl, absl::Cord(detail.SerializeAsString()));
}

absl::Status TryAgainLater(std::string_view why, std::chrono::nanoseconds after) {
  absl::Status status =
      absl::ResourceExhaustedError(fmt::format("{}; try again in {}", why, FormatDuration(after)));
  v1::ErrorDetail detail;
  *detail.mutable_retry_after() = ToProtoDuration(after);
  SetDetail(&status, detail);
  return status;
}

std::optional<std::chrono::nanoseconds> RetryAfter(const absl::Status& status) {
  const v1::ErrorDetail detail = DetailOf(status);
  if (!detail.has_retry_after()) return std::nullopt;
  return FromProto(detail.retry_after());
}

}  // namespace meshrun
