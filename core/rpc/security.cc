#include "core/rpc/security.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <netinet/in.h>

#include "core/os/files.h"
#include "core/rpc/caller.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"

namespace meshrun::rpc {
namespace {

namespace tls = grpc::experimental;

// gRPC reads the files later, and says nothing of what is wrong with them.
absl::Status CheckPem(const TlsFiles& files) {
  const auto check = [](std::string_view flag, const std::string& path) -> absl::Status {
    const auto content = os::ReadFile(path);
    if (!content.ok()) return Annotate(content.status(), flag);
    if (content->find("-----BEGIN") == std::string::npos) {
      return absl::InvalidArgumentError(fmt::format("{}: {} is not a PEM file", flag, path));
    }
    return absl::OkStatus();
  };
  MESHRUN_RETURN_IF_ERROR(check("--tls-cert", files.cert));
  MESHRUN_RETURN_IF_ERROR(check("--tls-key", files.key));
  return check("--tls-ca", files.ca);
}

std::shared_ptr<tls::CertificateProviderInterface> Watched(const Security& security) {
  return std::make_shared<tls::FileWatcherCertificateProvider>(
      security.tls.key, security.tls.cert, security.tls.ca,
      static_cast<unsigned>(security.reread.count()));
}

// "HOST:PORT", "HOST", "[V6]:PORT" or a bare V6 address. Empty where it is none of them.
std::string_view HostOf(std::string_view address) {
  if (address.starts_with('[')) {
    const size_t close = address.find(']');
    const bool whole = close != std::string_view::npos &&
                       (close + 1 == address.size() || address[close + 1] == ':');
    return whole ? address.substr(1, close - 1) : std::string_view();
  }
  const size_t colon = address.find(':');
  // More than one: an address of version 6 without a port.
  return colon == address.rfind(':') ? address.substr(0, colon) : address;
}

}  // namespace

bool IsLocalAddress(std::string_view address) {
  if (address.starts_with("unix:")) return true;
  const std::string host(HostOf(address));
  if (host == "localhost") return true;
  // Parsed, not compared: 127.example.org is a name, of whatever host its owner likes.
  in_addr v4;
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6;
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckSecurity(std::string_view role, std::string_view address,
                           const Security& security) {
  const TlsFiles& tls = security.tls;
  if (!tls.empty() && (tls.cert.empty() || tls.key.empty() || tls.ca.empty())) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: TLS is mutual and needs all of --tls-cert, --tls-key and --tls-ca; missing:{}{}{}",
        role, tls.cert.empty() ? " --tls-cert" : "", tls.key.empty() ? " --tls-key" : "",
        tls.ca.empty() ? " --tls-ca" : ""));
  }
  if (!tls.empty() || UnixPath(address)) return absl::OkStatus();
  if (!IsLocalAddress(address)) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: {} is reached over the network, and plaintext is refused there: pass --tls-cert, "
        "--tls-key and --tls-ca, or use a Unix socket (unix:PATH) on this host",
        role, address));
  }
  if (security.insecure_loopback) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "{}: plaintext is refused on {}, where every user of this host can connect: use a Unix "
      "socket (unix:PATH), or pass --tls-cert, --tls-key and --tls-ca",
      role, address));
}

std::string InsecureWarning(std::string_view address, const Security& security) {
  if (!security.tls.empty() || UnixPath(address)) return "";
  return fmt::format(
      "--insecure-loopback: {} is plaintext, and every user of this host can run programs as the "
      "workers' user; for tests only",
      address);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    std::string_view role, std::string_view address, const Security& security,
    CertificateCheck standing, CallAdmission admit) {
  MESHRUN_RETURN_IF_ERROR(CheckSecurity(role, address, security));
  // A Unix socket stays plaintext: its directory is the lock, and no certificate names it.
  if (security.tls.empty() || UnixPath(address)) return grpc::InsecureServerCredentials();
  MESHRUN_RETURN_IF_ERROR(CheckPem(security.tls));
  tls::TlsServerCredentialsOptions options(Watched(security));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  const auto credentials = tls::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(
      std::make_shared<RoleCheck>(std::move(standing), std::move(admit)));
  return credentials;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(
    std::string_view role, std::string_view address, const Security& security) {
  MESHRUN_RETURN_IF_ERROR(CheckSecurity(role, address, security));
  if (security.tls.empty() || UnixPath(address)) return grpc::InsecureChannelCredentials();
  MESHRUN_RETURN_IF_ERROR(CheckPem(security.tls));
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Watched(security));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  return tls::TlsCredentials(options);
}

}  // namespace meshrun::rpc
