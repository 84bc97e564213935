#include "core/rpc/security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SecurityTest, OnlyAddressesOfThisHostMayBePlaintext) {
  for (const char* local :
       {"127.0.0.1:7480", "127.8.8.8:1", "localhost:0", "unix:/tmp/s", "[::1]:7480", "::1"}) {
    EXPECT_TRUE(CheckSecurity("x", local, {}).ok()) << local;
  }
  for (const char* remote : {"0.0.0.0:7480", "[::]:7480", "10.0.0.1:1", "node7:7480",
                             "127.example.org:7480", "127.0.0.1.x:1", "[::1].example.org:1",
                             "[::1]x", "::2", "localhost.example.org:1", ":7480"}) {
    const absl::Status status = CheckSecurity("meshrun-coordinator", remote, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << remote;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(remote), HasSubstr("--tls-cert")));
  }
}

TEST(SecurityTest, TlsIsMutualSoAMissingFileIsNamed) {
  const absl::Status status = CheckSecurity("x", "127.0.0.1:1", {.cert = "c.pem", .ca = "ca.pem"});
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing: --tls-key"));
}

TEST(SecurityTest, AnUnreadableFileIsNamedWithItsFlag) {
  const auto credentials =
      ServerCredentials("x", "0.0.0.0:1", {.cert = "/nonexistent/c.pem", .key = "k", .ca = "a"});
  ASSERT_FALSE(credentials.ok());
  EXPECT_THAT(std::string(credentials.status().message()),
              AllOf(HasSubstr("--tls-cert"), HasSubstr("/nonexistent/c.pem")));
}

}  // namespace
}  // namespace meshrun::rpc
