// Certificates for tests of TLS: an authority, and what it signs for this host.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/certificates/authority.h"
#include "core/rpc/security.h"

namespace meshrun::testing {

class CertificateAuthority {
 public:
  // Files go below `directory`.
  CertificateAuthority(const std::string& name, std::string directory);

  struct Options {
    // "operate", "worker", ...
    std::vector<std::string> roles = {"coordinator", "operate"};
    std::vector<std::string> nodes;
    // Others may connect to its holder.
    bool server = true;
    // From now; negative: it has ended.
    std::chrono::seconds lasts = std::chrono::hours(1);
    // Since when.
    std::chrono::seconds age = std::chrono::hours(2);
  };
  // The three files of one who is known as `name`; good for 127.0.0.1 and localhost.
  rpc::TlsFiles Sign(const std::string& name, const Options& options) const;
  rpc::TlsFiles Sign(const std::string& name) const { return Sign(name, Options()); }
  // The same files, with trust in what `other` signs instead.
  rpc::TlsFiles Trusting(rpc::TlsFiles files, const CertificateAuthority& other) const;

  const certificates::KeyPair& pair() const { return pair_; }
  const std::string& ca_file() const { return ca_file_; }

 private:
  const std::string directory_;
  std::string ca_file_;
  certificates::KeyPair pair_;
};

}  // namespace meshrun::testing
