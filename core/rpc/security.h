// Who may listen and connect in plaintext, and mutual TLS for everyone else.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun::rpc {

// PEM files. All three or none: TLS here is always mutual.
struct TlsFiles {
  std::string cert;
  std::string key;
  // Certificates that sign the peers'.
  std::string ca;

  bool empty() const { return cert.empty() && key.empty() && ca.empty(); }
};

// True for unix:PATH, 127.0.0.0/8, ::1 and localhost, with a port or without: what never leaves the
// host.
bool IsLocalAddress(std::string_view address);

// INVALID_ARGUMENT: some of the three files are missing; or the address leaves the host and there
// are none. `role` is what refuses, for example "meshrun-coordinator".
absl::Status CheckSecurity(std::string_view role, std::string_view address, const TlsFiles& tls);

// Errors: as CheckSecurity, and NOT_FOUND or INVALID_ARGUMENT where a file cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(std::string_view role,
                                                                           std::string_view address,
                                                                           const TlsFiles& tls);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(
    std::string_view role, std::string_view address, const TlsFiles& tls);

}  // namespace meshrun::rpc
