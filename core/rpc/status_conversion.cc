#include "core/rpc/status_conversion.h"

#include <string>

#include "core/utf8.h"

namespace meshrun::rpc {
namespace {

constexpr char kPayloadUrl[] = "type.googleapis.com/meshrun.v1.ErrorDetail";

}  // namespace

grpc::Status ToGrpc(const absl::Status& status, v1::ErrorOrigin origin) {
  if (status.ok()) return grpc::Status::OK;
  v1::ErrorStatus out;
  out.set_code(status.raw_code());
  out.set_message(EscapeBytes(std::string(status.message())));
  v1::ErrorDetail detail;
  const v1::ErrorOrigin first = OriginOf(status);
  detail.set_origin(first == v1::ERROR_ORIGIN_UNSPECIFIED ? origin : first);
  out.add_details()->PackFrom(detail);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), out.message(),
                      out.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status out(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (const v1::ErrorOrigin origin = OriginOf(status); origin != v1::ERROR_ORIGIN_UNSPECIFIED) {
    v1::ErrorDetail detail;
    detail.set_origin(origin);
    out.SetPayload(kPayloadUrl, absl::Cord(detail.SerializeAsString()));
  }
  return out;
}

v1::ErrorOrigin OriginOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  v1::ErrorDetail detail;
  if (!payload || !detail.ParseFromString(std::string(*payload)))
    return v1::ERROR_ORIGIN_UNSPECIFIED;
  return detail.origin();
}

v1::ErrorOrigin OriginOf(const grpc::Status& status) {
  v1::ErrorStatus parsed;
  v1::ErrorDetail detail;
  if (!parsed.ParseFromString(status.error_details())) return v1::ERROR_ORIGIN_UNSPECIFIED;
  for (const google::protobuf::Any& any : parsed.details()) {
    if (any.UnpackTo(&detail)) return detail.origin();
  }
  return v1::ERROR_ORIGIN_UNSPECIFIED;
}

}  // namespace meshrun::rpc
