#include "client/certificate_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/certificates/authority.h"
#include "core/certificates/certificate.h"
#include "core/certificates/expiry.h"
#include "core/os/files.h"
#include "core/os/host_name.h"
#include "core/os/private_directory.h"
#include "core/os/user.h"
#include "core/rpc/roles.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

using certificates::KeyPair;
using certificates::Subject;
using certificates::Validity;

// Clocks of two hosts differ.
constexpr std::chrono::minutes kSkew(5);

Validity For(uint32_t days, WallNanos now) {
  return {.not_before = now - kSkew, .not_after = now + std::chrono::hours(24) * days};
}

absl::StatusOr<KeyPair> ReadAuthority(const std::string& directory) {
  KeyPair out;
  for (const auto& [file, text] : {std::pair<const char*, std::string*>{"/ca.crt", &out.cert_pem},
                                   {"/ca.key", &out.key_pem}}) {
    auto content = os::ReadFile(directory + file);
    if (absl::IsNotFound(content.status())) {
      return absl::NotFoundError(fmt::format(
          "there is no authority in {}: 'meshrun ca init' makes one, --ca names another",
          directory));
    }
    MESHRUN_RETURN_IF_ERROR(content.status());
    *text = *std::move(content);
  }
  return out;
}

// No certificate outlives what signs it.
absl::StatusOr<Validity> Within(const KeyPair& authority, Validity validity) {
  MESHRUN_ASSIGN_OR_RETURN(const auto own, certificates::ReadCertificate(authority.cert_pem));
  validity.not_before = std::max(validity.not_before, own.not_before);
  validity.not_after = std::min(validity.not_after, own.not_after);
  if (validity.not_after > validity.not_before) return validity;
  return absl::FailedPreconditionError("the authority's certificate has ended: make another");
}

absl::StatusOr<Subject> SubjectOf(const CertificateRequest& request) {
  rpc::Roles roles = 0;
  Subject subject;
  for (const std::string& name : request.roles) {
    MESHRUN_ASSIGN_OR_RETURN(const rpc::Roles role, rpc::ParseRole(name));
    if ((roles & role) == 0) subject.uris.push_back(std::string(rpc::kRoleUri) + name);
    roles |= role;
  }
  if (roles == 0) {
    return absl::InvalidArgumentError(
        "--role is missing: write coordinator, worker, submit, operate or read");
  }
  const bool worker = (roles & rpc::kWorkerRole) != 0;
  const bool coordinator = (roles & rpc::kCoordinatorRole) != 0;
  // A worker serves its metrics, where it is asked to, under these names alone.
  subject.server = coordinator || (worker && !request.hosts.empty());
  if (worker != !request.nodes.empty()) {
    return absl::InvalidArgumentError(
        worker ? "a worker's certificate is for its own node: pass --node NAME, as its --name is "
                 "(default: its host's name); '*' is every node"
               : "--node goes with --role worker");
  }
  if (!request.hosts.empty() && !subject.server) {
    return absl::InvalidArgumentError("--host goes with --role coordinator or --role worker");
  }
  for (const std::string& node : request.nodes) {
    subject.uris.push_back(std::string(rpc::kNodeUri) + node);
  }
  if (subject.server) {
    if (coordinator) subject.hosts = {"localhost", "127.0.0.1", "::1", os::HostName()};
    subject.hosts.insert(subject.hosts.end(), request.hosts.begin(), request.hosts.end());
    std::sort(subject.hosts.begin(), subject.hosts.end());
    subject.hosts.erase(std::unique(subject.hosts.begin(), subject.hosts.end()),
                        subject.hosts.end());
  }
  subject.common_name = !request.user.empty() ? request.user
                        : worker              ? "worker " + request.nodes.front()
                        : coordinator         ? "coordinator"
                                              : os::UserName();
  return subject;
}

absl::Status Write(const std::string& pem, mode_t mode, const std::string& file,
                   WrittenCertificate* written) {
  const std::string path = written->directory + "/" + file;
  MESHRUN_RETURN_IF_ERROR(os::WriteFileAtomically(path, pem, mode));
  written->files.push_back(path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> DefaultAuthorityDirectory() {
  if (const char* const xdg = std::getenv("XDG_CONFIG_HOME"); xdg != nullptr && xdg[0] == '/') {
    return std::string(xdg) + "/meshrun/ca";
  }
  if (const char* const home = std::getenv("HOME"); home != nullptr && home[0] == '/') {
    return std::string(home) + "/.config/meshrun/ca";
  }
  return absl::FailedPreconditionError("no directory for the authority: pass --ca DIR");
}

absl::StatusOr<WrittenCertificate> InitAuthority(const std::string& directory,
                                                 const std::string& name, uint32_t days,
                                                 WallNanos now) {
  MESHRUN_RETURN_IF_ERROR(os::MakePrivateDirectory(directory));
  for (const char* file : {"/ca.key", "/ca.crt"}) {
    std::error_code error;
    if (!std::filesystem::exists(directory + file, error)) continue;
    return absl::AlreadyExistsError(
        fmt::format("{} is there: a new authority would lock out all who have certificates of this "
                    "one; pass another --ca",
                    directory + file));
  }
  const Validity validity = For(days, now);
  MESHRUN_ASSIGN_OR_RETURN(const KeyPair pair, certificates::MakeAuthority(name, validity));
  WrittenCertificate written = {.directory = directory, .name = name};
  MESHRUN_RETURN_IF_ERROR(Write(pair.key_pem, 0600, "ca.key", &written));
  MESHRUN_RETURN_IF_ERROR(Write(pair.cert_pem, 0644, "ca.crt", &written));
  written.not_after = validity.not_after;
  written.sentence = fmt::format(
      "{}: ca.crt, and ca.key, which makes whoever has it anybody: keep it off the cluster",
      directory);
  return written;
}

absl::StatusOr<WrittenCertificate> IssueCertificate(const std::string& authority,
                                                    const CertificateRequest& request,
                                                    const std::string& out, WallNanos now) {
  MESHRUN_ASSIGN_OR_RETURN(const Subject subject, SubjectOf(request));
  MESHRUN_ASSIGN_OR_RETURN(const KeyPair issuer, ReadAuthority(authority));
  MESHRUN_ASSIGN_OR_RETURN(const Validity validity, Within(issuer, For(request.days, now)));
  std::error_code error;
  if (std::filesystem::exists(out + "/tls.key", error)) {
    return absl::AlreadyExistsError(fmt::format(
        "{}/tls.key is there: 'meshrun ca renew {}' renews its certificate, another --out keeps it",
        out, out));
  }
  MESHRUN_ASSIGN_OR_RETURN(const KeyPair made, certificates::Issue(issuer, subject, validity));
  MESHRUN_RETURN_IF_ERROR(os::MakeDirectories(out, 0700));
  WrittenCertificate written = {.directory = out, .name = subject.common_name};
  MESHRUN_RETURN_IF_ERROR(Write(made.key_pem, 0600, "tls.key", &written));
  MESHRUN_RETURN_IF_ERROR(Write(made.cert_pem, 0644, "tls.crt", &written));
  MESHRUN_RETURN_IF_ERROR(Write(issuer.cert_pem, 0644, "ca.crt", &written));
  written.not_after = validity.not_after;
  written.sentence = fmt::format("{}: '{}', {}; {}", out, subject.common_name,
                                 fmt::format("{}", fmt::join(request.roles, ", ")),
                                 certificates::DescribeEnd(now, validity.not_after));
  return written;
}

absl::StatusOr<WrittenCertificate> RenewCertificate(const std::string& authority,
                                                    const std::string& directory, uint32_t days,
                                                    WallNanos now) {
  MESHRUN_ASSIGN_OR_RETURN(const KeyPair issuer, ReadAuthority(authority));
  MESHRUN_ASSIGN_OR_RETURN(const Validity validity, Within(issuer, For(days, now)));
  MESHRUN_ASSIGN_OR_RETURN(const std::string old, os::ReadFile(directory + "/tls.crt"));
  const auto renewed = certificates::Renew(issuer, old, validity);
  if (!renewed.ok()) return Annotate(renewed.status(), directory + "/tls.crt");
  WrittenCertificate written = {.directory = directory};
  MESHRUN_RETURN_IF_ERROR(Write(*renewed, 0644, "tls.crt", &written));
  MESHRUN_RETURN_IF_ERROR(Write(issuer.cert_pem, 0644, "ca.crt", &written));
  MESHRUN_ASSIGN_OR_RETURN(const auto now_known, certificates::ReadCertificate(*renewed));
  written.name = now_known.common_name;
  written.not_after = validity.not_after;
  written.sentence = fmt::format("{}: '{}' {}", directory, now_known.common_name,
                                 certificates::DescribeEnd(now, validity.not_after));
  return written;
}

}  // namespace meshrun::client
