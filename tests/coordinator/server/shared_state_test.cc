// A coordinator whose etcd is away.
#include "coordinator/shared_state.h"

#include <gtest/gtest.h>
#include <httplib.h>

#include "tests/worker/support/processes.h"

namespace meshrun::coordinator {
namespace {

TEST(SharedStateTest, AStandbyServesHttp) {
  const meshrun::testing::TemporaryDirectory directory;
  StateFlags flags;
  flags.state = "etcd://127.0.0.1:1/meshrun";
  flags.name = "a";
  flags.advertise = "unix:" + (directory / "c.sock");
  const auto server = StartElected(
      flags,
      [&]() -> absl::StatusOr<Server::Options> {
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

}  // namespace
}  // namespace meshrun::coordinator
