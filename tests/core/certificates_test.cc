#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/certificates/authority.h"
#include "core/certificates/certificate.h"
#include "core/certificates/expiry.h"
#include "core/certificates/expiry_watch.h"
#include "core/os/files.h"

namespace meshrun::certificates {
namespace {

using std::chrono::hours;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr WallNanos kNow = std::chrono::seconds(1'800'000'000);
const Validity kYear = {.not_before = kNow, .not_after = kNow + hours(24 * 365)};

KeyPair Authority(const std::string& name = "cluster") {
  auto made = MakeAuthority(name, kYear);
  EXPECT_TRUE(made.ok()) << made.status();
  return *made;
}

// The common name is head1.example.org, and there is no extension.
constexpr char kWithoutExtensions[] = R"(-----BEGIN CERTIFICATE-----
MIIBMzCB2wIUbtLPyFmrohZIEzJd3WCSJOmKoiEwCgYIKoZIzj0EAwIwHDEaMBgG
A1UEAwwRaGVhZDEuZXhhbXBsZS5vcmcwIBcNMjYxMTMwMTc1MzUwWhgPMjEyNjEx
MDYxNzUzNTBaMBwxGjAYBgNVBAMMEWhlYWQxLmV4YW1wbGUub3JnMFkwEwYHKoZI
zj0CAQYIKoZIzj0DAQcDQgAETk0rc3Ap2+y33uPRoCBiImR3mhF9v1NrKMfuD4wL
3Mig8VxnxsGW0hVfmP4oGw+Ok1qyQU6PcwAAxYDvy/QA7TAKBggqhkjOPQQDAgNH
ADBEAiB00JS2TqeDA7EVWTs7Iy1nfC4im2CDKu8nmXpfzG01DAIgFKGR9idn0sdm
BpP9H9oKYoOEq+5BIslCyRgg51oIips=
-----END CERTIFICATE-----
)";

TEST(CertificatesTest, SaysWhatWasAskedFor) {
  const KeyPair authority = Authority();
  EXPECT_TRUE(ReadCertificate(authority.cert_pem)->authority);
  const auto issued = Issue(authority,
                            {.common_name = "ada@example.org",
                             .uris = {"urn:meshrun:role:submit", "urn:meshrun:role:read"},
                             .hosts = {"head", "10.0.0.1", "::1"},
                             .server = true},
                            kYear);
  ASSERT_TRUE(issued.ok()) << issued.status();
  EXPECT_THAT(issued->key_pem, HasSubstr("BEGIN PRIVATE KEY"));
  const auto read = ReadCertificate(issued->cert_pem);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->common_name, "ada@example.org");
  EXPECT_THAT(read->uris, ElementsAre("urn:meshrun:role:submit", "urn:meshrun:role:read"));
  EXPECT_THAT(read->hosts, ElementsAre("head", "10.0.0.1", "::1"));
  EXPECT_TRUE(read->server);
  EXPECT_FALSE(read->authority);
  EXPECT_EQ(read->not_before, kYear.not_before);
  EXPECT_EQ(read->not_after, kYear.not_after);
}

TEST(CertificatesTest, AClientsCertificateMayNotServe) {
  const KeyPair authority = Authority();
  const auto client = Issue(authority, {.common_name = "ada", .hosts = {"head"}}, kYear);
  const auto server =
      Issue(authority, {.common_name = "c", .hosts = {"head"}, .server = true}, kYear);
  ASSERT_TRUE(client.ok() && server.ok());
  EXPECT_FALSE(MayServe(client->cert_pem));
  EXPECT_TRUE(MayServe(server->cert_pem));
  // An authority of the user's own that says nothing of what its certificates are for.
  EXPECT_TRUE(MayServe(kWithoutExtensions));
  EXPECT_FALSE(MayServe("no certificate"));
}

TEST(CertificatesTest, NamesAreComparedAsClientsDo) {
  const auto made = Issue(Authority(),
                          {.common_name = "common",
                           .hosts = {"head1", "*.cluster.example.org", "10.0.0.1", "::1"},
                           .server = true},
                          kYear);
  ASSERT_TRUE(made.ok()) << made.status();
  for (const char* host : {"head1", "HEAD1", "a.cluster.example.org", "10.0.0.1", "::1"}) {
    EXPECT_TRUE(NamesHost(made->cert_pem, host)) << host;
  }
  for (const char* host : {"head9", "head", "head1.example.org", "cluster.example.org",
                           "a.b.cluster.example.org", "10.0.0.2", "common", ""}) {
    EXPECT_FALSE(NamesHost(made->cert_pem, host)) << host;
  }
  // There are no other names than the common one.
  EXPECT_TRUE(NamesHost(kWithoutExtensions, "head1.example.org"));
  EXPECT_FALSE(NamesHost(kWithoutExtensions, "head2.example.org"));
}

TEST(CertificatesTest, RenewKeepsAllButTheTimes) {
  const KeyPair authority = Authority();
  const auto first = Issue(authority, {.common_name = "w", .uris = {"urn:meshrun:node:w"}}, kYear);
  ASSERT_TRUE(first.ok());
  const Validity next = {.not_before = kNow, .not_after = kNow + hours(24 * 700)};
  const auto renewed = Renew(authority, first->cert_pem, next);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  const auto read = ReadCertificate(*renewed);
  EXPECT_EQ(read->common_name, "w");
  EXPECT_THAT(read->uris, ElementsAre("urn:meshrun:node:w"));
  EXPECT_FALSE(read->server);
  EXPECT_EQ(read->not_after, next.not_after);
  EXPECT_NE(*renewed, first->cert_pem);
}

TEST(CertificatesTest, OneSeedMakesOneAuthorityWhereverItIsKnown) {
  const std::string seed(32, 's');
  const auto here = DeriveAuthority(seed, "run", kYear);
  const auto there = DeriveAuthority(seed, "run", kYear);
  const auto other = DeriveAuthority(std::string(32, 'o'), "run", kYear);
  ASSERT_TRUE(here.ok() && there.ok() && other.ok()) << here.status();
  EXPECT_EQ(*KeyFingerprint(here->cert_pem), *KeyFingerprint(there->cert_pem));
  EXPECT_NE(*KeyFingerprint(here->cert_pem), *KeyFingerprint(other->cert_pem));
  EXPECT_FALSE(KeyFingerprint("no certificate").ok());
  EXPECT_FALSE(DeriveAuthority("short", "run", kYear).ok());
  // What one signs, the other one knows as its own, and a third does not.
  const auto issued = Issue(*here, {.common_name = "w"}, kYear);
  ASSERT_TRUE(issued.ok()) << issued.status();
  EXPECT_TRUE(Renew(*there, issued->cert_pem, kYear).ok());
  EXPECT_FALSE(Renew(*other, issued->cert_pem, kYear).ok());
}

TEST(CertificatesTest, RenewRefusesWhatAnotherAuthoritySigned) {
  const KeyPair other = Authority("other");
  const auto foreign = Issue(other, {.common_name = "w"}, kYear);
  ASSERT_TRUE(foreign.ok());
  const auto renewed = Renew(Authority(), foreign->cert_pem, kYear);
  EXPECT_EQ(renewed.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CertificatesTest, ANameCannotBringMoreNames) {
  const KeyPair authority = Authority();
  for (const char* name : {"", "a,URI:urn:meshrun:role:operate", "a\nb", "a;b", "a=b", "a\"b"}) {
    EXPECT_EQ(Issue(authority, {.common_name = name}, kYear).status().code(),
              absl::StatusCode::kInvalidArgument)
        << name;
    EXPECT_FALSE(Issue(authority, {.common_name = "a", .uris = {name}}, kYear).ok()) << name;
    EXPECT_FALSE(Issue(authority, {.common_name = "a", .hosts = {name}}, kYear).ok()) << name;
  }
  EXPECT_FALSE(Issue(authority, {.common_name = std::string(65, 'a')}, kYear).ok());
}

TEST(CertificatesTest, DamagedTextIsAnError) {
  const std::string pem = Authority().cert_pem;
  for (const std::string& text : {std::string(), std::string("no"), pem.substr(0, 200),
                                  std::string("-----BEGIN CERTIFICATE-----\nAAAA\n-----END "
                                              "CERTIFICATE-----\n")}) {
    EXPECT_EQ(ReadCertificate(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(
      Issue({.cert_pem = pem, .key_pem = Authority().key_pem}, {.common_name = "a"}, kYear).ok());
}

TEST(CertificatesTest, EachStageIsToldOnceAndARenewedCertificateAnew) {
  const std::string file = ::testing::TempDir() + "/ending.crt";
  const KeyPair authority = Authority();
  ASSERT_TRUE(os::WriteFileAtomically(file, authority.cert_pem).ok());
  ExpiryNotices notices({.cert = file, .ca = "/nonexistent"});
  const WallNanos end = kYear.not_after;
  EXPECT_EQ(notices.Look(kNow).due.size(), 0u);
  for (const hours before : {hours(24 * 29), hours(24 * 6), hours(23), hours(-1)}) {
    EXPECT_EQ(notices.Look(end - before).due.size(), 1u) << before.count();
    EXPECT_EQ(notices.Look(end - before).due.size(), 0u) << before.count();
  }
  const auto next = MakeAuthority("cluster", {.not_before = kNow, .not_after = end + hours(100)});
  ASSERT_TRUE(next.ok());
  ASSERT_TRUE(os::WriteFileAtomically(file, next->cert_pem).ok());
  const auto due = notices.Look(end).due;
  ASSERT_EQ(due.size(), 1u);
  EXPECT_THAT(due[0], HasSubstr("'cluster' in " + file + " ends in 4 days"));
}

TEST(CertificatesTest, ARenewedCertificateIsSeenOnceItsKeyIsThere) {
  const std::string directory = ::testing::TempDir();
  const CertificateFiles files{.cert = directory + "/own.crt", .key = directory + "/own.key"};
  const auto write = [&](const std::string& file, const std::string& text) {
    ASSERT_TRUE(os::WriteFileAtomically(file, text).ok());
  };
  const KeyPair first = Authority();
  write(files.cert, first.cert_pem);
  write(files.key, first.key_pem);
  ExpiryNotices notices(files);
  EXPECT_FALSE(notices.Look(kNow).renewed.has_value()) << "it is the one that is in use";
  EXPECT_FALSE(notices.Look(kNow).renewed.has_value());
  // Also one that ends earlier.
  const auto next =
      *MakeAuthority("next", {.not_before = kNow, .not_after = kYear.not_after - hours(1)});
  write(files.cert, next.cert_pem);
  EXPECT_THAT(notices.Look(kNow).due, IsEmpty()) << "its key is on its way";
  const auto late = notices.Look(kNow);
  EXPECT_FALSE(late.renewed.has_value());
  ASSERT_EQ(late.due.size(), 1u);
  EXPECT_THAT(late.due[0], HasSubstr("own.crt does not fit the key in"));
  EXPECT_THAT(notices.Look(kNow).due, IsEmpty()) << "said once";
  EXPECT_TRUE(absl::IsInvalidArgument(CheckPair(files.cert, files.key)));
  write(files.key, next.key_pem);
  EXPECT_TRUE(CheckPair(files.cert, files.key).ok());
  const auto renewed = notices.Look(kNow).renewed;
  ASSERT_TRUE(renewed.has_value());
  EXPECT_EQ(renewed->common_name, "next");
  EXPECT_FALSE(notices.Look(kNow).renewed.has_value());
  write(files.cert, first.cert_pem);
  write(files.key, first.key_pem);
  EXPECT_FALSE(notices.Look(kYear.not_after).renewed.has_value()) << "it has ended";
}

TEST(CertificatesTest, TheEndIsToldThreeTimes) {
  const auto at = [](hours left, hours whole) {
    return ExpiryAt(kNow, {.not_before = kNow + left - whole, .not_after = kNow + left});
  };
  constexpr hours kDay(24);
  constexpr hours kLong = kDay * 365;
  EXPECT_EQ(at(kDay * 31, kLong), Expiry::kFar);
  EXPECT_EQ(at(kDay * 30, kLong), Expiry::kMonth);
  EXPECT_EQ(at(kDay * 7, kLong), Expiry::kWeek);
  EXPECT_EQ(at(kDay, kLong), Expiry::kDay);
  EXPECT_EQ(at(hours(0), kLong), Expiry::kOver);
  // Those that live a short time, and are renewed often.
  EXPECT_EQ(at(kDay * 29, kDay * 30), Expiry::kFar);
  EXPECT_EQ(at(kDay * 7, kDay * 30), Expiry::kWeek);
  EXPECT_EQ(at(hours(23), kDay), Expiry::kFar);
  EXPECT_EQ(at(hours(0), kDay), Expiry::kOver);
  EXPECT_EQ(DescribeEnd(kNow, kNow + hours(24 * 6)), "ends in 6 days (2027-01-21 08:00 UTC)");
  EXPECT_EQ(DescribeEnd(kNow, kNow + hours(1)), "ends in 1 hour (2027-01-15 09:00 UTC)");
  EXPECT_THAT(DescribeEnd(kNow, kNow - std::chrono::minutes(1)), HasSubstr("ended 1 minute ago"));
  EXPECT_THAT(DescribeEnd(kNow, kNow - hours(72)), HasSubstr("ended 3 days ago"));
}

}  // namespace
}  // namespace meshrun::certificates
