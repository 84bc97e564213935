// Who may listen and connect in plaintext, and mutual TLS for everyone else:
//
//   unix:PATH     plaintext, also with TLS files; the socket's 0700 directory keeps other users out
//                 (unix_socket.h)
//   any TCP       mutual TLS, on loopback too, where every user of the host can connect; what a
//                 certificate may call stands in roles.h
//   loopback TCP  plaintext with --insecure-loopback alone, which only tests use
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rpc/caller.h"

namespace meshrun::rpc {

// PEM files. All three or none: TLS here is always mutual.
struct TlsFiles {
  std::string cert;
  std::string key;
  // Certificates that sign the peers'.
  std::string ca;

  bool empty() const { return cert.empty() && key.empty() && ca.empty(); }
};

struct Security {
  TlsFiles tls;
  // --insecure-loopback.
  bool insecure_loopback = false;
  // How often the files are read again: new connections show the certificates that lie there then.
  std::chrono::seconds reread{10};
  // Path of a server's deny list (core/certificates/standing.h). Empty: there is none.
  std::string deny_file;
  // For so long a server lets workers go on whose certificates have ended, over the connections
  // that they have.
  std::chrono::nanoseconds certificate_grace = std::chrono::hours(72);
};

// True for unix:PATH, 127.0.0.0/8, ::1 and localhost, with a port or without: what never leaves the
// host.
bool IsLocalAddress(std::string_view address);

// INVALID_ARGUMENT: some of the three files are missing; or the address is not a Unix socket, and
// neither TLS nor insecure_loopback allows it. `role` is what refuses, for example
// "meshrun-coordinator".
absl::Status CheckSecurity(std::string_view role, std::string_view address,
                           const Security& security);

// What to say once, at the start, where plaintext goes over TCP; empty otherwise.
std::string InsecureWarning(std::string_view address, const Security& security);

// Errors: as CheckSecurity, and NOT_FOUND or INVALID_ARGUMENT where a file cannot be read.
// `standing` is asked about the certificate of each call, and `admit` whether it is let in now (see
// RoleCheck); null: TLS and roles alone decide.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(
    std::string_view role, std::string_view address, const Security& security,
    CertificateCheck standing = nullptr, CallAdmission admit = nullptr);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentials(
    std::string_view role, std::string_view address, const Security& security);

}  // namespace meshrun::rpc
