// What a certificate says. Threads: any.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/certificates/expiry.h"
#include "core/clock.h"

namespace meshrun::certificates {

struct Certificate {
  std::string common_name;
  // Hexadecimal, without leading zeros.
  std::string serial;
  WallNanos not_before{0};
  WallNanos not_after{0};
  std::vector<std::string> uris;
  // Names and addresses.
  std::vector<std::string> hosts;
  bool server = false;
  bool authority = false;

  Validity validity() const { return {not_before, not_after}; }
};

// The first certificate of a PEM text. INVALID_ARGUMENT: there is none, or it is damaged. Any bytes
// may be given.
absl::StatusOr<Certificate> ReadCertificate(std::string_view pem);
// What TLS's clients ask of a server's certificate, besides who signed it and when it ends. False
// where the text is no certificate.
// Whether its extensions let it serve; those of an authority that sets none do.
bool MayServe(std::string_view pem);
// Whether it names `host`, a name or an address, as gRPC compares: by the alternative names, and by
// the common name only where there is none of them.
bool NamesHost(std::string_view pem, const std::string& host);
// Whether the private key is that of the certificate; false where either cannot be read.
bool KeyFits(std::string_view cert_pem, std::string_view key_pem);
// The same for two files. INVALID_ARGUMENT names both. Files that cannot be read are no error here.
absl::Status CheckPair(const std::string& cert_file, const std::string& key_file);

}  // namespace meshrun::certificates
