#include "tests/core/support/certificates.h"

#include <gtest/gtest.h>

#include "core/os/files.h"
#include "core/rpc/roles.h"

namespace meshrun::testing {
namespace {

certificates::Validity From(std::chrono::seconds age, std::chrono::seconds lasts) {
  const WallNanos now = Clock::Real().WallNow();
  return {.not_before = now - age, .not_after = now + lasts};
}

void Write(const std::string& path, const std::string& content) {
  EXPECT_TRUE(os::WriteFileAtomically(path, content, 0600).ok()) << path;
}

}  // namespace

CertificateAuthority::CertificateAuthority(const std::string& name, std::string directory)
    : directory_(std::move(directory)), ca_file_(directory_ + "/" + name + ".ca.crt") {
  auto made =
      certificates::MakeAuthority(name, From(std::chrono::hours(24 * 365), std::chrono::hours(1)));
  EXPECT_TRUE(made.ok()) << made.status();
  if (made.ok()) pair_ = *std::move(made);
  Write(ca_file_, pair_.cert_pem);
}

rpc::TlsFiles CertificateAuthority::Sign(const std::string& name, const Options& options) const {
  certificates::Subject subject = {
      .common_name = name, .hosts = {"127.0.0.1", "localhost"}, .server = options.server};
  for (const std::string& role : options.roles) {
    subject.uris.push_back(std::string(rpc::kRoleUri) + role);
  }
  for (const std::string& node : options.nodes) {
    subject.uris.push_back(std::string(rpc::kNodeUri) + node);
  }
  const auto made = certificates::Issue(pair_, subject, From(options.age, options.lasts));
  EXPECT_TRUE(made.ok()) << made.status();
  const rpc::TlsFiles files = {.cert = directory_ + "/" + name + ".crt",
                               .key = directory_ + "/" + name + ".key",
                               .ca = ca_file_};
  if (!made.ok()) return files;
  Write(files.cert, made->cert_pem);
  Write(files.key, made->key_pem);
  return files;
}

rpc::TlsFiles CertificateAuthority::Trusting(rpc::TlsFiles files,
                                             const CertificateAuthority& other) const {
  files.ca = other.ca_file();
  return files;
}

}  // namespace meshrun::testing
