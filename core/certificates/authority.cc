#include "core/certificates/authority.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/certificates/certificate.h"
#include "core/certificates/openssl.h"
#include "core/hash.h"
#include "core/status.h"

namespace meshrun::certificates {
namespace {

constexpr size_t kLongestCommonName = 64;

absl::Status Failed(std::string_view what) {
  char text[256] = {};
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  ERR_clear_error();
  return absl::InternalError(fmt::format("OpenSSL cannot {}: {}", what, text));
}

std::string Pem(const std::function<int(BIO*)>& write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (write(bio.get()) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, size);
}

std::string ToPem(X509* cert) {
  return Pem([cert](BIO* bio) { return PEM_write_bio_X509(bio, cert); });
}

std::string ToPem(EVP_PKEY* key) {
  return Pem([key](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

// What may stand in a name: nothing that OpenSSL's configuration syntax reads as more names.
absl::Status CheckName(std::string_view name) {
  const bool right = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view(" ._-:*@+/").find(c) != std::string_view::npos;
  });
  if (right) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "'{}' cannot stand in a certificate: write letters, digits and . _ - : * @ + /", name));
}

bool IsAddress(const std::string& host) {
  unsigned char bytes[16];
  return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

absl::Status SetTime(ASN1_TIME* out, WallNanos time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  if (ASN1_TIME_set(out, seconds) == nullptr) return Failed("write a time");
  return absl::OkStatus();
}

struct Extension {
  int nid;
  std::string value;
};

// Signs `cert`, which has its subject and key.
absl::Status Sign(X509* cert, X509* issuer, EVP_PKEY* issuer_key, const Validity& validity,
                  const std::vector<Extension>& extensions) {
  X509_set_version(cert, X509_VERSION_3);
  unsigned char serial[16];
  if (RAND_bytes(serial, sizeof(serial)) != 1) return Failed("draw a number");
  serial[0] &= 0x7f;
  const std::unique_ptr<BIGNUM, Freed<BN_free>> number(BN_bin2bn(serial, sizeof(serial), nullptr));
  BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(cert));
  MESHRUN_RETURN_IF_ERROR(SetTime(X509_getm_notBefore(cert), validity.not_before));
  MESHRUN_RETURN_IF_ERROR(SetTime(X509_getm_notAfter(cert), validity.not_after));
  X509_set_issuer_name(cert, X509_get_subject_name(issuer));
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  for (const Extension& extension : extensions) {
    X509_EXTENSION* const made =
        X509V3_EXT_conf_nid(nullptr, &context, extension.nid, extension.value.c_str());
    if (made == nullptr) return Failed(fmt::format("write '{}'", extension.value));
    X509_add_ext(cert, made, -1);
    X509_EXTENSION_free(made);
  }
  // Ed25519 hashes by itself.
  const bool plain = EVP_PKEY_is_a(issuer_key, "ED25519") == 1;
  if (X509_sign(cert, issuer_key, plain ? nullptr : EVP_sha256()) == 0)
    return Failed("sign a certificate");
  return absl::OkStatus();
}

absl::Status SetCommonName(X509* cert, const std::string& name) {
  MESHRUN_RETURN_IF_ERROR(CheckName(name));
  if (name.size() > kLongestCommonName) {
    return absl::InvalidArgumentError(
        fmt::format("the name '{}' has {} bytes, and a certificate holds {}", name, name.size(),
                    kLongestCommonName));
  }
  if (X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(name.data()),
                                 static_cast<int>(name.size()), -1, 0) != 1) {
    return Failed("write a name");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Extension>> LeafExtensions(const Subject& subject) {
  std::string names;
  const auto add = [&names](std::string_view kind, std::string_view name) {
    names += fmt::format("{}{}:{}", names.empty() ? "" : ",", kind, name);
  };
  for (const std::string& uri : subject.uris) {
    MESHRUN_RETURN_IF_ERROR(CheckName(uri));
    add("URI", uri);
  }
  for (const std::string& host : subject.hosts) {
    MESHRUN_RETURN_IF_ERROR(CheckName(host));
    add(IsAddress(host) ? "IP" : "DNS", host);
  }
  std::vector<Extension> out = {
      {NID_basic_constraints, "critical,CA:FALSE"},
      {NID_key_usage, "critical,digitalSignature"},
      {NID_ext_key_usage, subject.server ? "serverAuth,clientAuth" : "clientAuth"},
      {NID_subject_key_identifier, "hash"},
      {NID_authority_key_identifier, "keyid"}};
  if (!names.empty()) out.push_back({NID_subject_alt_name, names});
  return out;
}

struct Issuer {
  X509Ptr cert;
  Key key;
};

absl::StatusOr<Issuer> ParseAuthority(const KeyPair& authority) {
  Issuer out;
  out.cert = ParseCertificate(authority.cert_pem);
  out.key = ParseKey(authority.key_pem);
  if (out.cert == nullptr || out.key == nullptr || X509_check_ca(out.cert.get()) != 1 ||
      X509_check_private_key(out.cert.get(), out.key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        "the authority's certificate and key are damaged, or do not fit each other");
  }
  return out;
}

absl::StatusOr<KeyPair> SignItself(const Key& key, const std::string& name,
                                   const Validity& validity) {
  const X509Ptr cert(X509_new());
  if (key == nullptr || cert == nullptr) return Failed("make a key");
  X509_set_pubkey(cert.get(), key.get());
  MESHRUN_RETURN_IF_ERROR(SetCommonName(cert.get(), name));
  MESHRUN_RETURN_IF_ERROR(Sign(cert.get(), cert.get(), key.get(), validity,
                               {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                {NID_subject_key_identifier, "hash"}}));
  return KeyPair{.cert_pem = ToPem(cert.get()), .key_pem = ToPem(key.get())};
}

}  // namespace

absl::StatusOr<KeyPair> MakeAuthority(const std::string& name, const Validity& validity) {
  return SignItself(Key(EVP_EC_gen("P-256")), name, validity);
}

absl::StatusOr<KeyPair> DeriveAuthority(std::string_view seed, const std::string& name,
                                        const Validity& validity) {
  return SignItself(Key(EVP_PKEY_new_raw_private_key(
                        EVP_PKEY_ED25519, nullptr,
                        reinterpret_cast<const unsigned char*>(seed.data()), seed.size())),
                    name, validity);
}

absl::StatusOr<std::string> KeyFingerprint(std::string_view cert_pem) {
  const X509Ptr cert = ParseCertificate(cert_pem);
  unsigned char* der = nullptr;
  const int size = cert == nullptr ? -1 : i2d_X509_PUBKEY(X509_get_X509_PUBKEY(cert.get()), &der);
  if (size <= 0) {
    ERR_clear_error();
    return absl::InvalidArgumentError("not a certificate");
  }
  const std::string digest =
      Sha256(std::string_view(reinterpret_cast<const char*>(der), static_cast<size_t>(size)));
  OPENSSL_free(der);
  return digest;
}

absl::StatusOr<KeyPair> Issue(const KeyPair& authority, const Subject& subject,
                              const Validity& validity) {
  MESHRUN_ASSIGN_OR_RETURN(const Issuer issuer, ParseAuthority(authority));
  MESHRUN_ASSIGN_OR_RETURN(const std::vector<Extension> extensions, LeafExtensions(subject));
  const Key key(EVP_EC_gen("P-256"));
  const X509Ptr cert(X509_new());
  if (key == nullptr || cert == nullptr) return Failed("make a key");
  X509_set_pubkey(cert.get(), key.get());
  MESHRUN_RETURN_IF_ERROR(SetCommonName(cert.get(), subject.common_name));
  MESHRUN_RETURN_IF_ERROR(
      Sign(cert.get(), issuer.cert.get(), issuer.key.get(), validity, extensions));
  return KeyPair{.cert_pem = ToPem(cert.get()), .key_pem = ToPem(key.get())};
}

absl::StatusOr<std::string> Renew(const KeyPair& authority, std::string_view cert_pem,
                                  const Validity& validity) {
  MESHRUN_ASSIGN_OR_RETURN(const Issuer issuer, ParseAuthority(authority));
  MESHRUN_ASSIGN_OR_RETURN(Certificate known, ReadCertificate(cert_pem));
  const X509Ptr old = ParseCertificate(cert_pem);
  const Key issuer_public(X509_get_pubkey(issuer.cert.get()));
  if (X509_verify(old.get(), issuer_public.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        fmt::format("the certificate of '{}' was not signed by this authority", known.common_name));
  }
  MESHRUN_ASSIGN_OR_RETURN(const std::vector<Extension> extensions,
                           LeafExtensions({.uris = std::move(known.uris),
                                           .hosts = std::move(known.hosts),
                                           .server = known.server}));
  const X509Ptr cert(X509_new());
  const Key key(X509_get_pubkey(old.get()));
  X509_set_pubkey(cert.get(), key.get());
  X509_set_subject_name(cert.get(), X509_get_subject_name(old.get()));
  MESHRUN_RETURN_IF_ERROR(
      Sign(cert.get(), issuer.cert.get(), issuer.key.get(), validity, extensions));
  return ToPem(cert.get());
}

}  // namespace meshrun::certificates
