// Certificates for tests of TLS: an authority, and what it signs for this host.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace meshrun::testing {

class CertificateAuthority {
 public:
  explicit CertificateAuthority(const std::string& name);

  struct Signed {
    std::string cert_pem;
    std::string key_pem;
  };
  // Good for an hour, for 127.0.0.1 and localhost, as a server and as a client.
  Signed Sign(const std::string& name) const;
  std::string cert_pem() const;

 private:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
  using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
  // `value` of the extension as openssl.cnf has it.
  static Certificate Make(const std::string& name, EVP_PKEY* key, const X509_NAME* issuer,
                          EVP_PKEY* issuer_key, int extension, const char* value);

  Key key_;
  Certificate cert_;
};

}  // namespace meshrun::testing
