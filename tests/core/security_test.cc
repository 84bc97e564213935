#include "core/rpc/security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "core/secret.h"

namespace meshrun::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kLoopback[] = {"127.0.0.1:7480", "127.8.8.8:1", "localhost:0", "[::1]:7480",
                                     "::1"};
constexpr const char* kRemote[] = {"0.0.0.0:7480",
                                   "[::]:7480",
                                   "10.0.0.1:1",
                                   "node7:7480",
                                   "127.example.org:7480",
                                   "127.0.0.1.x:1",
                                   "[::1].example.org:1",
                                   "[::1]x",
                                   "::2",
                                   ":7480",
                                   "unix-abstract:x",
                                   "vsock:1:2",
                                   "localhost.example.org:1"};
const TlsFiles kTls = {.cert = "c", .key = "k", .ca = "a"};

TEST(SecurityTest, PlaintextIsForUnixSocketsAlone) {
  EXPECT_TRUE(CheckSecurity("x", "unix:/tmp/s", {}).ok());
  for (const std::span<const char* const> addresses :
       std::initializer_list<std::span<const char* const>>{kLoopback, kRemote}) {
    for (const char* address : addresses) {
      const absl::Status status = CheckSecurity("meshrun-coordinator", address, {});
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(address), HasSubstr("--tls-cert"), HasSubstr("unix:PATH")));
      EXPECT_TRUE(CheckSecurity("x", address, {.tls = kTls}).ok()) << address;
    }
  }
}

TEST(SecurityTest, InsecureLoopbackOpensTheLoopbackAndNothingElse) {
  const Security insecure = {.insecure_loopback = true};
  for (const char* address : kLoopback) {
    EXPECT_TRUE(CheckSecurity("x", address, insecure).ok()) << address;
    EXPECT_THAT(InsecureWarning(address, insecure), HasSubstr("every user of this host"));
  }
  for (const char* address : kRemote) {
    EXPECT_FALSE(CheckSecurity("x", address, insecure).ok()) << address;
  }
  EXPECT_EQ(InsecureWarning("unix:/tmp/s", insecure), "");
  EXPECT_EQ(InsecureWarning("127.0.0.1:1", {.tls = kTls, .insecure_loopback = true}), "");
}

TEST(SecurityTest, TlsIsMutualSoAMissingFileIsNamed) {
  const absl::Status status =
      CheckSecurity("x", "127.0.0.1:1", {.tls = {.cert = "c.pem", .ca = "ca.pem"}});
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing: --tls-key"));
}

TEST(SecurityTest, AnUnreadableFileIsNamedWithItsFlag) {
  const auto credentials = ServerCredentials(
      "x", "0.0.0.0:1", {.tls = {.cert = "/nonexistent/c.pem", .key = "k", .ca = "a"}});
  ASSERT_FALSE(credentials.ok());
  EXPECT_THAT(std::string(credentials.status().message()),
              AllOf(HasSubstr("--tls-cert"), HasSubstr("/nonexistent/c.pem")));
}

TEST(SameSecretTest, HoldsForTheWholeSecretAlone) {
  EXPECT_TRUE(SameSecret("abcd", "abcd"));
  for (const char* shown : {"", "abc", "abcde", "xbcd", "abcx", "ABCD"}) {
    EXPECT_FALSE(SameSecret(shown, "abcd")) << shown;
  }
}

}  // namespace
}  // namespace meshrun::rpc
