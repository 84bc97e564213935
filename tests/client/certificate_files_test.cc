#include "client/certificate_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "core/certificates/certificate.h"
#include "core/os/files.h"

namespace meshrun::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

constexpr WallNanos kNow = std::chrono::seconds(1'800'000'000);

class CertificateFilesTest : public ::testing::Test {
 protected:
  CertificateFilesTest() {
    std::filesystem::remove_all(directory_);
    EXPECT_TRUE(InitAuthority(authority_, "trial", 3650, kNow).ok());
  }
  static mode_t Mode(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777;
  }
  std::string Refusal(const CertificateRequest& request) {
    const auto made = IssueCertificate(authority_, request, directory_ + "/x", kNow);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << made.status();
    return std::string(made.status().message());
  }
  certificates::Certificate Read(const std::string& path) {
    const auto pem = os::ReadFile(path);
    EXPECT_TRUE(pem.ok()) << pem.status();
    return *certificates::ReadCertificate(*pem);
  }

  const std::string directory_ = ::testing::TempDir() + "/certificate_files";
  const std::string authority_ = directory_ + "/ca";
};

TEST_F(CertificateFilesTest, KeysAreTheirOwnersAlone) {
  EXPECT_EQ(Mode(authority_), 0700u);
  EXPECT_EQ(Mode(authority_ + "/ca.key"), 0600u);
  const std::string out = directory_ + "/gpu7";
  ASSERT_TRUE(
      IssueCertificate(authority_, {.roles = {"worker"}, .nodes = {"gpu7"}}, out, kNow).ok());
  EXPECT_EQ(Mode(out), 0700u);
  EXPECT_EQ(Mode(out + "/tls.key"), 0600u);
  EXPECT_EQ(*os::ReadFile(out + "/ca.crt"), *os::ReadFile(authority_ + "/ca.crt"));
}

TEST_F(CertificateFilesTest, ASecondAuthorityIsNotMadeOverTheFirst) {
  EXPECT_EQ(InitAuthority(authority_, "again", 10, kNow).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(CertificateFilesTest, EachRoleGetsWhatItNeeds) {
  const std::string out = directory_;
  ASSERT_TRUE(
      IssueCertificate(authority_, {.roles = {"worker"}, .nodes = {"gpu7"}}, out + "/w", kNow)
          .ok());
  EXPECT_THAT(Read(out + "/w/tls.crt").uris,
              ElementsAre("urn:meshrun:role:worker", "urn:meshrun:node:gpu7"));
  EXPECT_FALSE(Read(out + "/w/tls.crt").server);
  // One that serves its metrics is a server under the names that it is given, and no other.
  ASSERT_TRUE(IssueCertificate(authority_,
                               {.roles = {"worker"}, .nodes = {"gpu7"}, .hosts = {"gpu7.lan"}},
                               out + "/m", kNow)
                  .ok());
  EXPECT_TRUE(Read(out + "/m/tls.crt").server);
  EXPECT_THAT(Read(out + "/m/tls.crt").hosts, ElementsAre("gpu7.lan"));
  ASSERT_TRUE(
      IssueCertificate(authority_, {.roles = {"coordinator"}, .hosts = {"head"}}, out + "/c", kNow)
          .ok());
  EXPECT_TRUE(Read(out + "/c/tls.crt").server);
  EXPECT_THAT(Read(out + "/c/tls.crt").hosts, IsSupersetOf({"head", "localhost", "127.0.0.1"}));
  ASSERT_TRUE(
      IssueCertificate(authority_, {.roles = {"submit"}, .user = "ada"}, out + "/a", kNow).ok());
  EXPECT_EQ(Read(out + "/a/tls.crt").common_name, "ada");
}

TEST_F(CertificateFilesTest, AWrongRequestSaysWhatIsMissing) {
  EXPECT_THAT(Refusal({}), HasSubstr("--role is missing"));
  EXPECT_THAT(Refusal({.roles = {"king"}}), HasSubstr("'king' is not a role"));
  EXPECT_THAT(Refusal({.roles = {"worker"}}), HasSubstr("--node NAME"));
  EXPECT_THAT(Refusal({.roles = {"read"}, .nodes = {"a"}}), HasSubstr("--role worker"));
  EXPECT_THAT(Refusal({.roles = {"read"}, .hosts = {"a"}}), HasSubstr("--role coordinator"));
  EXPECT_THAT(Refusal({.roles = {"read"}, .user = "a,URI:b"}), HasSubstr("cannot stand"));
}

TEST_F(CertificateFilesTest, RenewKeepsTheKeyAndIssueNeverOverwritesOne) {
  const std::string out = directory_ + "/ada";
  const CertificateRequest request = {.roles = {"submit"}, .user = "ada", .days = 10};
  ASSERT_TRUE(IssueCertificate(authority_, request, out, kNow).ok());
  EXPECT_EQ(IssueCertificate(authority_, request, out, kNow).status().code(),
            absl::StatusCode::kAlreadyExists);
  const std::string key = *os::ReadFile(out + "/tls.key");
  const WallNanos later = kNow + std::chrono::hours(24 * 9);
  const auto renewed = RenewCertificate(authority_, out, 10, later);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_THAT(renewed->files, ElementsAre(out + "/tls.crt", out + "/ca.crt"));
  EXPECT_EQ(renewed->name, "ada");
  EXPECT_EQ(*os::ReadFile(out + "/tls.key"), key);
  EXPECT_EQ(Read(out + "/tls.crt").not_after, later + std::chrono::hours(240));
  EXPECT_EQ(Read(out + "/tls.crt").common_name, "ada");
}

TEST_F(CertificateFilesTest, NoCertificateOutlivesItsAuthority) {
  const std::string out = directory_ + "/ada";
  ASSERT_TRUE(
      IssueCertificate(authority_, {.roles = {"read"}, .user = "ada", .days = 9999}, out, kNow)
          .ok());
  EXPECT_EQ(Read(out + "/tls.crt").not_after, Read(authority_ + "/ca.crt").not_after);
}

}  // namespace
}  // namespace meshrun::client
