#include "core/rpc/caller.h"

#include <grpc/grpc_security_constants.h>

#include <vector>

namespace meshrun::rpc {
namespace {

std::vector<std::string> Values(const grpc::AuthContext& context, const char* name) {
  std::vector<std::string> out;
  for (const grpc::string_ref& value : context.FindPropertyValues(name)) {
    out.emplace_back(value.data(), value.size());
  }
  return out;
}

}  // namespace

bool ShowsCertificate(const grpc::AuthContext& context) { return context.IsPeerAuthenticated(); }

Identity IdentityOf(const grpc::AuthContext& context) {
  const std::vector<std::string> names = Values(context, GRPC_X509_CN_PROPERTY_NAME);
  return MakeIdentity(names.empty() ? "" : names.front(),
                      Values(context, GRPC_PEER_URI_PROPERTY_NAME));
}

std::string CertificateOf(const grpc::AuthContext& context) {
  const std::vector<std::string> certificates = Values(context, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return certificates.empty() ? "" : certificates.front();
}

grpc::Status RoleCheck::Process(const InputMetadata& metadata, grpc::AuthContext* context,
                                OutputMetadata*, OutputMetadata*) {
  const auto path = metadata.find(":path");
  const std::string_view method =
      path == metadata.end() ? "" : std::string_view(path->second.data(), path->second.size());
  const Identity caller = IdentityOf(*context);
  const std::string pem =
      standing_ == nullptr && admit_ == nullptr ? std::string() : CertificateOf(*context);
  absl::Status status = standing_ == nullptr ? absl::OkStatus() : standing_(pem, method);
  if (status.ok()) {
    status = path == metadata.end() ? absl::PermissionDeniedError("the call names no method")
                                    : CheckCall(caller, method);
  }
  if (admit_ != nullptr) status = admit_(caller, pem, method, status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace meshrun::rpc
