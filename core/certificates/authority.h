// The certificate authority of a cluster: what makes and signs certificates. docs/security.md says
// which certificate is whose.
//
// Keys are P-256; derived keys are Ed25519. Everything is PEM. Nothing here touches files or starts
// threads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/certificates/expiry.h"
#include "core/clock.h"

namespace meshrun::certificates {

struct KeyPair {
  std::string cert_pem;
  std::string key_pem;
};

// A new authority, with a certificate that it signs itself.
absl::StatusOr<KeyPair> MakeAuthority(const std::string& name, const Validity& validity);

// Makes the same key from the same `seed` of 32 bytes on every host, so anybody who knows the seed
// can sign. The certificates differ, but each of them verifies what the key has signed under
// another one.
absl::StatusOr<KeyPair> DeriveAuthority(std::string_view seed, const std::string& name,
                                        const Validity& validity);

// SHA-256 of the public key of a certificate, 32 bytes. For DeriveAuthority's certificates it
// depends on the seed alone. INVALID_ARGUMENT: not a certificate.
absl::StatusOr<std::string> KeyFingerprint(std::string_view cert_pem);

struct Subject {
  // At most 64 bytes.
  std::string common_name;
  // Roles and nodes, as core/rpc/roles.h writes them.
  std::vector<std::string> uris;
  // Names and addresses at which a server is reached.
  std::vector<std::string> hosts;
  // Whether others may connect to it; every certificate may connect.
  bool server = false;
};

// A new key, and a certificate for it. INVALID_ARGUMENT: a name has a character that certificates'
// names do not have, or is too long; or the authority's files are damaged.
absl::StatusOr<KeyPair> Issue(const KeyPair& authority, const Subject& subject,
                              const Validity& validity);

// The same subject and key as `cert_pem`, signed again. So one file changes, and no process ever
// reads a key that does not fit. INVALID_ARGUMENT: not a certificate of this authority.
absl::StatusOr<std::string> Renew(const KeyPair& authority, std::string_view cert_pem,
                                  const Validity& validity);

}  // namespace meshrun::certificates
