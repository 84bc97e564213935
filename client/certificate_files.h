// The files of `meshrun ca`: an authority in one directory, and for each holder of a certificate a
// directory with tls.crt, tls.key and ca.crt, as every program's --tls-* flags take them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clock.h"

namespace meshrun::client {

// $XDG_CONFIG_HOME/meshrun/ca, else ~/.config/meshrun/ca. FAILED_PRECONDITION: neither is set.
absl::StatusOr<std::string> DefaultAuthorityDirectory();

struct WrittenCertificate {
  std::string directory;
  // Its owner.
  std::string name;
  WallNanos not_after{0};
  // Paths of what was written.
  std::vector<std::string> files;
  // All this for a person.
  std::string sentence;
};

// Makes ca.crt and ca.key (0600) in `directory`, which is made with mode 0700. ALREADY_EXISTS:
// there is one; a second one would lock out all who have certificates of the first.
absl::StatusOr<WrittenCertificate> InitAuthority(const std::string& directory,
                                                 const std::string& name, uint32_t days,
                                                 WallNanos now);

struct CertificateRequest {
  // "worker", "submit", ...; at least one.
  std::vector<std::string> roles;
  // Name of a person; empty: this user, or the node, or "coordinator".
  std::string user;
  // Nodes of a worker.
  std::vector<std::string> nodes;
  // Names and addresses of a coordinator; localhost and this host's name are added.
  std::vector<std::string> hosts;
  uint32_t days = 365;
};
// Writes the three files below `out`. INVALID_ARGUMENT says what is wrong with the request.
// ALREADY_EXISTS: `out` holds a certificate.
absl::StatusOr<WrittenCertificate> IssueCertificate(const std::string& authority,
                                                    const CertificateRequest& request,
                                                    const std::string& out, WallNanos now);

// Signs the certificate in `directory` again; its key stays, so a process that rereads its files
// (each does) never sees a pair that does not fit.
absl::StatusOr<WrittenCertificate> RenewCertificate(const std::string& authority,
                                                    const std::string& directory, uint32_t days,
                                                    WallNanos now);

}  // namespace meshrun::client
