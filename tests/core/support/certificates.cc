#include "tests/core/support/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <functional>

namespace meshrun::testing {
namespace {

constexpr long kHour = 3600;

std::string Pem(const std::function<int(BIO*)>& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  if (write(bio.get()) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, size);
}

std::string CertPem(X509* cert) {
  return Pem([cert](BIO* bio) { return PEM_write_bio_X509(bio, cert); });
}

}  // namespace

CertificateAuthority::CertificateAuthority(const std::string& name)
    : key_(EVP_EC_gen("P-256"), EVP_PKEY_free),
      cert_(
          Make(name, key_.get(), nullptr, key_.get(), NID_basic_constraints, "critical,CA:TRUE")) {}

CertificateAuthority::Certificate CertificateAuthority::Make(const std::string& name, EVP_PKEY* key,
                                                             const X509_NAME* issuer,
                                                             EVP_PKEY* issuer_key, int extension,
                                                             const char* value) {
  static long serial = 0;
  Certificate cert(X509_new(), X509_free);
  X509_set_version(cert.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -kHour);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), kHour);
  X509_NAME* const subject = X509_get_subject_name(cert.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(cert.get(), issuer == nullptr ? subject : issuer);
  X509_set_pubkey(cert.get(), key);
  if (X509_EXTENSION* const made = X509V3_EXT_conf_nid(nullptr, nullptr, extension, value)) {
    X509_add_ext(cert.get(), made, -1);
    X509_EXTENSION_free(made);
  }
  X509_sign(cert.get(), issuer_key, EVP_sha256());
  return cert;
}

CertificateAuthority::Signed CertificateAuthority::Sign(const std::string& name) const {
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const Certificate cert = Make(name, key.get(), X509_get_subject_name(cert_.get()), key_.get(),
                                NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
  return {.cert_pem = CertPem(cert.get()),
          .key_pem = Pem([&key](BIO* bio) {
            return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

std::string CertificateAuthority::cert_pem() const { return CertPem(cert_.get()); }

}  // namespace meshrun::testing
