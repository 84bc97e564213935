#include "coordinator/own_certificate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "core/certificates/certificate.h"
#include "core/os/files.h"
#include "core/rpc/roles.h"
#include "core/rpc/unix_socket.h"

namespace meshrun::coordinator {
namespace {

constexpr size_t kLargestCertificate = 1 << 20;

// Absent: there is nothing to judge.
std::optional<std::string> OwnCertificate(const rpc::Security& security,
                                          const std::string& address) {
  if (security.tls.empty() || rpc::UnixPath(address)) return std::nullopt;
  auto pem = os::ReadRegularFile(security.tls.cert, kLargestCertificate);
  if (!pem.ok() || !certificates::ReadCertificate(*pem).ok()) return std::nullopt;
  return *std::move(pem);
}

// Without its port and brackets.
std::string HostOfAddress(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

}  // namespace

absl::Status CheckServes(const rpc::Security& security, const std::string& listen) {
  const auto pem = OwnCertificate(security, listen);
  if (!pem || certificates::MayServe(*pem)) return absl::OkStatus();
  const auto read = certificates::ReadCertificate(*pem);
  const rpc::Identity own = rpc::MakeIdentity(read->common_name, read->uris);
  return absl::InvalidArgumentError(fmt::format(
      "the certificate of '{}' in {} (roles: {}) is not a server's, so workers and clients refuse "
      "it: have one issued with 'meshrun ca issue --role coordinator --host {} --out DIR'",
      own.name, security.tls.cert, rpc::RoleNames(own.roles), HostOfAddress(listen)));
}

absl::Status CheckNamesHost(const rpc::Security& security, const std::string& address) {
  const auto pem = OwnCertificate(security, address);
  const std::string host = HostOfAddress(address);
  if (!pem || certificates::NamesHost(*pem, host)) return absl::OkStatus();
  const auto read = certificates::ReadCertificate(*pem);
  return absl::InvalidArgumentError(fmt::format(
      "workers and clients are sent to {}, and the certificate in {} does not name {} (it names "
      "{}), so they refuse it: pass another --advertise, or have one issued with 'meshrun ca issue "
      "--role coordinator --host {} --out DIR'",
      address, security.tls.cert, host,
      read->hosts.empty() ? "no host" : fmt::format("{}", fmt::join(read->hosts, ", ")), host));
}

}  // namespace meshrun::coordinator
