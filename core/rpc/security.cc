#include "core/rpc/security.h"

#include <fmt/format.h>

#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::rpc {
namespace {

struct Pem {
  std::string cert, key, ca;
};

absl::StatusOr<Pem> ReadPem(const TlsFiles& tls) {
  Pem pem;
  const auto read = [](std::string_view flag, const std::string& path,
                       std::string* out) -> absl::Status {
    auto content = os::ReadFile(path);
    if (!content.ok()) return Annotate(content.status(), flag);
    if (content->find("-----BEGIN") == std::string::npos) {
      return absl::InvalidArgumentError(fmt::format("{}: {} is no PEM file", flag, path));
    }
    *out = *std::move(content);
    return absl::OkStatus();
  };
  MESHRUN_RETURN_IF_ERROR(read("--tls-cert", tls.cert, &pem.cert));
  MESHRUN_RETURN_IF_ERROR(read("--tls-key", tls.key, &pem.key));
  MESHRUN_RETURN_IF_ERROR(read("--tls-ca", tls.ca, &pem.ca));
  return pem;
}

}  // namespace

bool IsLocalAddress(std::string_view address) {
  if (address.starts_with("unix:")) return true;
  if (address.starts_with("[::1]")) return true;
  const std::string_view host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

absl::Status CheckSecurity(std::string_view role, std::string_view address, const TlsFiles& tls) {
  if (!tls.empty()) {
    if (tls.cert.empty() || tls.key.empty() || tls.ca.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: TLS is mutual and needs all of --tls-cert, --tls-key and --tls-ca; "
                      "missing:{}{}{}",
                      role, tls.cert.empty() ? " --tls-cert" : "", tls.key.empty() ? " --tls-key" : "",
                      tls.ca.empty() ? " --tls-ca" : ""));
    }
    return absl::OkStatus();
  }
  if (IsLocalAddress(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: {} is not an address of this host alone, and plaintext is not allowed on others: "
                  "pass --tls-cert, --tls-key and --tls-ca, or use 127.0.0.1",
                  role, address));
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(std::string_view role,
                                                                           std::string_view address,
                                                                           const TlsFiles& tls) {
  MESHRUN_RETURN_IF_ERROR(CheckSecurity(role, address, tls));
  if (tls.empty()) return grpc::InsecureServerCredentials();
  MESHRUN_ASSIGN_OR_RETURN(Pem pem, ReadPem(tls));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pem.ca;
  options.pem_key_cert_pairs.push_back({pem.key, pem.cert});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(std::string_view role,
                                                                             std::string_view address,
                                                                             const TlsFiles& tls) {
  MESHRUN_RETURN_IF_ERROR(CheckSecurity(role, address, tls));
  if (tls.empty()) return grpc::InsecureChannelCredentials();
  MESHRUN_ASSIGN_OR_RETURN(Pem pem, ReadPem(tls));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = pem.ca;
  options.pem_private_key = pem.key;
  options.pem_cert_chain = pem.cert;
  return grpc::SslCredentials(options);
}

}  // namespace meshrun::rpc
