#include "core/certificates/certificate.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <ctime>

#include "core/certificates/openssl.h"
#include "core/os/files.h"

namespace meshrun::certificates {
namespace {

constexpr size_t kLargestPem = 1 << 20;

using GeneralNames = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

WallNanos ToWall(const ASN1_TIME* time) {
  std::tm broken = {};
  if (time == nullptr || ASN1_TIME_to_tm(time, &broken) != 1) return WallNanos(0);
  // Any year may stand there, and nanoseconds end in 2262.
  constexpr int64_t kLatest = 7'258'118'400;  // 2200-01-01
  return std::chrono::seconds(std::clamp<int64_t>(::timegm(&broken), 0, kLatest));
}

std::string Text(const ASN1_STRING* text) {
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     ASN1_STRING_length(text));
}

std::string Address(const ASN1_OCTET_STRING* bytes) {
  char out[INET6_ADDRSTRLEN] = {};
  const int family = ASN1_STRING_length(bytes) == 4 ? AF_INET : AF_INET6;
  if (family == AF_INET6 && ASN1_STRING_length(bytes) != 16) return "";
  ::inet_ntop(family, ASN1_STRING_get0_data(bytes), out, sizeof(out));
  return out;
}

std::string Hex(const BIGNUM* number) {
  std::vector<unsigned char> bytes(static_cast<size_t>(BN_num_bytes(number)));
  BN_bn2bin(number, bytes.data());
  std::string out;
  for (const unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out.starts_with('0') ? out.substr(1) : out;
}

void ReadNames(X509* cert, Certificate* out) {
  const GeneralNames names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(cert, NID_subject_alt_name, nullptr, nullptr)));
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  for (int i = 0; i < count; ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_URI) out->uris.push_back(Text(name->d.uniformResourceIdentifier));
    if (name->type == GEN_DNS) out->hosts.push_back(Text(name->d.dNSName));
    if (name->type == GEN_IPADD) out->hosts.push_back(Address(name->d.iPAddress));
  }
}

}  // namespace

X509Ptr ParseCertificate(std::string_view pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  X509Ptr cert(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return cert;
}

Key ParseKey(std::string_view pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  // No question at a terminal where it is encrypted.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  ERR_clear_error();
  return key;
}

bool MayServe(std::string_view pem) {
  const X509Ptr cert = ParseCertificate(pem);
  const bool may =
      cert != nullptr && X509_check_purpose(cert.get(), X509_PURPOSE_SSL_SERVER, /*ca=*/0) == 1;
  ERR_clear_error();
  return may;
}

bool NamesHost(std::string_view pem, const std::string& host) {
  const X509Ptr cert = ParseCertificate(pem);
  if (cert == nullptr || host.empty()) return false;
  const bool has_names = X509_get_ext_by_NID(cert.get(), NID_subject_alt_name, -1) >= 0;
  const unsigned flags =
      X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | (has_names ? X509_CHECK_FLAG_NEVER_CHECK_SUBJECT : 0);
  const bool names = X509_check_ip_asc(cert.get(), host.c_str(), 0) == 1 ||
                     X509_check_host(cert.get(), host.data(), host.size(), flags, nullptr) == 1;
  ERR_clear_error();
  return names;
}

bool KeyFits(std::string_view cert_pem, std::string_view key_pem) {
  const X509Ptr cert = ParseCertificate(cert_pem);
  const Key key = ParseKey(key_pem);
  const bool fits =
      cert != nullptr && key != nullptr && X509_check_private_key(cert.get(), key.get()) == 1;
  ERR_clear_error();
  return fits;
}

absl::Status CheckPair(const std::string& cert_file, const std::string& key_file) {
  const auto cert = os::ReadRegularFile(cert_file, kLargestPem);
  const auto key = os::ReadRegularFile(key_file, kLargestPem);
  if (!cert.ok() || !key.ok() || KeyFits(*cert, *key)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("the key in {} is not that of the certificate in {}", key_file, cert_file));
}

absl::StatusOr<Certificate> ReadCertificate(std::string_view pem) {
  constexpr size_t kLargest = 1 << 20;
  const X509Ptr cert = pem.size() > kLargest ? nullptr : ParseCertificate(pem);
  if (cert == nullptr) return absl::InvalidArgumentError("no certificate in PEM's form");
  Certificate out;
  const X509_NAME* const subject = X509_get_subject_name(cert.get());
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at >= 0) out.common_name = Text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  const std::unique_ptr<BIGNUM, Freed<BN_free>> serial(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(cert.get()), nullptr));
  if (serial != nullptr) out.serial = Hex(serial.get());
  out.not_before = ToWall(X509_get0_notBefore(cert.get()));
  out.not_after = ToWall(X509_get0_notAfter(cert.get()));
  ReadNames(cert.get(), &out);
  out.authority = X509_check_ca(cert.get()) == 1;
  const uint32_t usage = X509_get_extended_key_usage(cert.get());
  out.server = usage != UINT32_MAX && (usage & XKU_SSL_SERVER) != 0;
  return out;
}

}  // namespace meshrun::certificates
