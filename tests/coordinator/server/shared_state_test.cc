// A coordinator whose etcd is away, and what it is refused for before it looks for etcd.
#include "coordinator/shared_state.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include <fstream>

#include "tests/core/support/certificates.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator {
namespace {

TEST(SharedStateTest, FilesAreLookedAtBeforeItStandsBy) {
  const meshrun::testing::TemporaryDirectory directory;
  std::ofstream(directory / "env.sh") << "export A=1\n";
  std::ofstream(directory / "empty") << "\n";
  const auto refused = [&](StateFlags flags) {
    flags.state = "etcd://127.0.0.1:1/meshrun";
    flags.name = "a";
    const auto server = StartElected(
        flags, [](const Note&) -> absl::StatusOr<Server::Options> { return Server::Options(); },
        [](const absl::Status&) {});
    return server.status();
  };
  EXPECT_EQ(refused({.import_file = directory / "env.sh"}),
            absl::InvalidArgumentError("--import: " + (directory / "env.sh") +
                                       " is not a backup of meshrun's state: name a file that "
                                       "`meshrun backup` has written"));
  EXPECT_TRUE(absl::IsNotFound(refused({.import_file = directory / "none"})));
  const absl::Status empty = refused({.etcd_user = "u", .etcd_password_file = directory / "empty"});
  EXPECT_TRUE(absl::IsInvalidArgument(empty)) << empty;
  EXPECT_TRUE(
      absl::IsNotFound(refused({.etcd_user = "u", .etcd_password_file = directory / "none"})));
}

TEST(SharedStateTest, AStandbyServesHttp) {
  const meshrun::testing::TemporaryDirectory directory;
  StateFlags flags;
  flags.state = "etcd://127.0.0.1:1/meshrun";
  flags.name = "a";
  flags.advertise = "unix:" + (directory / "c.sock");
  const auto server = StartElected(
      flags,
      [&](const Note&) -> absl::StatusOr<Server::Options> {
        Server::Options options;
        options.listen = "unix:" + (directory / "c.sock");
        options.security.insecure_loopback = true;
        options.http = "auto";
        return options;
      },
      [](const absl::Status&) {});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->http_address(), "unix:" + (directory / "c.http"));
  httplib::Client client(directory / "c.http");
  client.set_address_family(AF_UNIX);
  const auto health = client.Get("/healthz");
  ASSERT_TRUE(health) << httplib::to_string(health.error());
  EXPECT_EQ(health->status, 200);
  const auto jobs = client.Get("/v1/jobs");
  ASSERT_TRUE(jobs);
  EXPECT_EQ(jobs->status, 503);
  EXPECT_NE(jobs->body.find("is a standby"), std::string::npos) << jobs->body;
  (*server)->Stop();
}

// They would lead, and keep everybody out.
class OwnCertificateTest : public ::testing::Test {
 protected:
  absl::Status Start(const rpc::TlsFiles& tls, const std::string& advertise,
                     const std::string& listen = "127.0.0.1:0") {
    StateFlags flags;
    flags.state = "etcd://127.0.0.1:1/meshrun";
    flags.name = "a";
    flags.advertise = advertise;
    return StartElected(
               flags,
               [&](const Note&) -> absl::StatusOr<Server::Options> {
                 Server::Options options;
                 options.listen = listen;
                 options.security.insecure_loopback = true;
                 options.security.tls = tls;
                 options.http = "none";
                 return options;
               },
               [](const absl::Status&) {})
        .status();
  }

  const meshrun::testing::TemporaryDirectory directory_;
  const meshrun::testing::CertificateAuthority authority_{"ours", directory_.path()};
};

TEST_F(OwnCertificateTest, ACertificateForClientsAloneIsRefused) {
  const absl::Status started =
      Start(authority_.Sign("ada", {.roles = {"operate"}, .server = false}), "");
  EXPECT_EQ(started.code(), absl::StatusCode::kInvalidArgument) << started;
  const std::string text(started.message());
  for (const char* part : {"'ada'", "operate", "meshrun ca issue --role coordinator --host"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST_F(OwnCertificateTest, TheAdvertisedHostMustBeNamed) {
  const rpc::TlsFiles tls = authority_.Sign("coordinator");
  const absl::Status started = Start(tls, "head9:7480");
  EXPECT_EQ(started.code(), absl::StatusCode::kInvalidArgument) << started;
  const std::string text(started.message());
  for (const char* part : {"head9:7480", "127.0.0.1", "localhost", "--host head9"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  // Also where nobody says what is advertised: the host's name.
  EXPECT_EQ(Start(tls, "", "0.0.0.0:0").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(OwnCertificateTest, WhatClientsTakeIsTaken) {
  const rpc::TlsFiles tls = authority_.Sign("coordinator");
  for (const char* advertise : {"", "127.0.0.1:7480", "localhost:7480", "LOCALHOST:1"}) {
    EXPECT_TRUE(Start(tls, advertise).ok()) << Start(tls, advertise);
  }
  // TLS looks at no role: an authority of the users' own may write none.
  EXPECT_TRUE(Start(authority_.Sign("head", {.roles = {}}), "localhost:1").ok());
  // On a Unix socket there is no certificate to look at.
  EXPECT_TRUE(Start(authority_.Sign("ada", {.roles = {"operate"}, .server = false}), "",
                    "unix:" + (directory_ / "c.sock"))
                  .ok());
}

}  // namespace
}  // namespace meshrun::coordinator
