#include "core/rpc/status_conversion.h"

#include <fmt/format.h>

#include <string>

#include "core/error_detail.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::rpc {
namespace {

constexpr std::string_view kNotRead = "not read: ";
constexpr std::string_view kTryAgain = "; try again in ";
// Where an older server does not say how long.
constexpr std::chrono::milliseconds kPause(50);

v1::ErrorDetail DetailOf(const grpc::Status& status) {
  v1::ErrorStatus parsed;
  v1::ErrorDetail detail;
  if (!parsed.ParseFromString(status.error_details())) return detail;
  for (const google::protobuf::Any& any : parsed.details()) {
    if (any.UnpackTo(&detail)) return detail;
  }
  return {};
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status, v1::ErrorOrigin origin) {
  if (status.ok()) return grpc::Status::OK;
  v1::ErrorStatus out;
  out.set_code(status.raw_code());
  out.set_message(EscapeBytes(std::string(status.message())));
  v1::ErrorDetail detail = meshrun::DetailOf(status);
  if (detail.origin() == v1::ERROR_ORIGIN_UNSPECIFIED) detail.set_origin(origin);
  out.add_details()->PackFrom(detail);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), out.message(),
                      out.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status out(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  const v1::ErrorDetail detail = DetailOf(status);
  if (detail.origin() != v1::ERROR_ORIGIN_UNSPECIFIED) SetDetail(&out, detail);
  return out;
}

absl::Status NotRead(std::string_view why, std::chrono::milliseconds after) {
  return absl::ResourceExhaustedError(
      fmt::format("{}{}{}{}ms", kNotRead, why, kTryAgain, after.count()));
}

v1::ErrorOrigin OriginOf(const absl::Status& status) { return meshrun::DetailOf(status).origin(); }

v1::ErrorOrigin OriginOf(const grpc::Status& status) { return DetailOf(status).origin(); }

grpc::Status EndOf(const grpc::Status& status, bool cancelled) {
  const bool by_server = status.error_code() == grpc::StatusCode::CANCELLED && !cancelled &&
                         OriginOf(status) == v1::ERROR_ORIGIN_UNSPECIFIED;
  if (!by_server) return status;
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server stopped during the call");
}

std::optional<std::chrono::nanoseconds> WaitBeforeRepeating(const absl::Status& status) {
  if (const auto after = RetryAfter(status)) return after;
  // gRPC says RESOURCE_EXHAUSTED too, of messages that are too large: for ever.
  const std::string message(status.message());
  if (!absl::IsResourceExhausted(status) || !message.starts_with(kNotRead)) return std::nullopt;
  const size_t at = message.rfind(kTryAgain);
  if (at == std::string::npos) return kPause;
  const auto after = ParseDuration(std::string_view(message).substr(at + kTryAgain.size()));
  return after.ok() ? *after : kPause;
}

}  // namespace meshrun::rpc
