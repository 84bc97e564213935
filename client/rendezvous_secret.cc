#include "client/rendezvous_secret.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "core/certificates/authority.h"
#include "core/hash.h"
#include "core/os/files.h"
#include "core/rpc/roles.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

using certificates::KeyPair;

constexpr size_t kDigits = 32;
constexpr size_t kMostOfFile = 4096;
constexpr char kAuthorityName[] = "meshrun run";
// Clocks of two hosts differ, and nobody renews what lives as long as a job.
constexpr std::chrono::hours kSkew(24);
constexpr std::chrono::hours kLife(24 * 365);

absl::StatusOr<KeyPair> AuthorityOf(std::string_view token, WallNanos now) {
  return certificates::DeriveAuthority(Sha256(fmt::format("meshrun rendezvous {}", token)),
                                       kAuthorityName,
                                       {.not_before = now - kSkew, .not_after = now + kLife});
}

absl::StatusOr<std::string> FingerprintOf(std::string_view token) {
  MESHRUN_ASSIGN_OR_RETURN(const KeyPair authority, AuthorityOf(token, kSkew));
  MESHRUN_ASSIGN_OR_RETURN(const std::string digest,
                           certificates::KeyFingerprint(authority.cert_pem));
  return HexEncode(digest).substr(0, kDigits);
}

// What a certificate's name may have.
std::string CommonName(std::string user) {
  for (char& c : user) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                       std::string_view("._-@").find(c) != std::string_view::npos;
    if (!plain) c = '_';
  }
  return user.empty() ? "user" : user.substr(0, 64);
}

}  // namespace

absl::StatusOr<RendezvousSecret> RendezvousSecret::Make() {
  char bytes[kDigits / 2];
  if (::getrandom(bytes, sizeof(bytes), 0) != ssize_t{sizeof(bytes)}) {
    return os::ErrnoStatus(errno, "getrandom");
  }
  const std::string token = HexEncode(std::string_view(bytes, sizeof(bytes)));
  MESHRUN_ASSIGN_OR_RETURN(const std::string fingerprint, FingerprintOf(token));
  return RendezvousSecret(fmt::format("{}.{}", fingerprint, token));
}

absl::StatusOr<RendezvousSecret> RendezvousSecret::Parse(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t from = text.find_first_not_of(kSpace);
  if (from == std::string_view::npos) return absl::InvalidArgumentError("it is empty");
  text = text.substr(from, text.find_last_not_of(kSpace) + 1 - from);
  const bool formed = text.size() == 2 * kDigits + 1 && text[kDigits] == '.' &&
                      text.find_first_not_of("0123456789abcdef.") == std::string_view::npos;
  if (!formed) {
    return absl::InvalidArgumentError(
        "it is not what node 0 printed: 32 digits, a dot and 32 digits (0-9, a-f)");
  }
  MESHRUN_ASSIGN_OR_RETURN(const std::string fingerprint, FingerprintOf(text.substr(kDigits + 1)));
  if (fingerprint != text.substr(0, kDigits)) {
    return absl::InvalidArgumentError("its two halves do not fit: copy all that node 0 printed");
  }
  return RendezvousSecret(std::string(text));
}

absl::StatusOr<RendezvousSecret> RendezvousSecret::Read(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd file, os::OpenRegularFile(path));
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return os::ErrnoStatus(errno, path);
  if ((info.st_mode & 077) != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: others can read or write it (mode {:04o}): 'chmod 600 {}', and make another secret",
        path, info.st_mode & 07777, path));
  }
  if (info.st_uid != ::geteuid()) {
    return absl::InvalidArgumentError(fmt::format("{}: it belongs to another user", path));
  }
  MESHRUN_ASSIGN_OR_RETURN(const std::string text, os::ReadRegularFile(path, kMostOfFile));
  auto secret = Parse(text);
  if (!secret.ok()) return Annotate(secret.status(), path);
  return secret;
}

absl::Status RendezvousSecret::Write(const std::string& path) const {
  return os::WriteFileAtomically(path, text_ + "\n", 0600);
}

absl::Status RendezvousSecret::WriteCertificate(const Holder& holder, const std::string& directory,
                                                WallNanos now) const {
  MESHRUN_ASSIGN_OR_RETURN(const KeyPair authority,
                           AuthorityOf(std::string_view(text_).substr(kDigits + 1), now));
  certificates::Subject subject;
  subject.common_name = CommonName(holder.user);
  for (const char* role : {"worker", "operate"}) {
    subject.uris.push_back(std::string(rpc::kRoleUri) + role);
  }
  subject.uris.push_back(std::string(rpc::kNodeUri) + "*");
  if (!holder.host.empty()) {
    subject.server = true;
    subject.uris.push_back(std::string(rpc::kRoleUri) + "coordinator");
    subject.hosts = {"localhost", "127.0.0.1", "::1"};
    if (std::find(subject.hosts.begin(), subject.hosts.end(), holder.host) == subject.hosts.end()) {
      subject.hosts.push_back(holder.host);
    }
  }
  MESHRUN_ASSIGN_OR_RETURN(const KeyPair made, certificates::Issue(authority, subject,
                                                                   {.not_before = now - kSkew,
                                                                    .not_after = now + kLife}));
  MESHRUN_RETURN_IF_ERROR(os::WriteFileAtomically(directory + "/ca.crt", authority.cert_pem, 0600));
  MESHRUN_RETURN_IF_ERROR(os::WriteFileAtomically(directory + "/tls.crt", made.cert_pem, 0600));
  return os::WriteFileAtomically(directory + "/tls.key", made.key_pem, 0600);
}

}  // namespace meshrun::client
