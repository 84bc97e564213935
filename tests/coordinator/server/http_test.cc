// The coordinator's HTTP port: what is served, and what becomes of it where it does not lead.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <atomic>
#include <thread>

#include "coordinator/http_front.h"
#include "coordinator/http_routes.h"
#include "coordinator/server.h"
#include "core/error_detail.h"
#include "core/os/fd.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator {
namespace {

using ::testing::HasSubstr;

class HttpTest : public ::testing::Test {
 protected:
  std::string Address(const std::string& name) { return "unix:" + (directory_ / name); }
  httplib::Result Get(const std::string& path) {
    httplib::Client client(directory_ / "c.http");
    client.set_address_family(AF_UNIX);
    return client.Get(path.c_str());
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(HttpTest, MetricsAndHealthAreServedBesideTheSocket) {
  auto server = Server::Start({.listen = Address("c.sock"), .http = "auto"});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto health = Get("/healthz");
  ASSERT_TRUE(health) << httplib::to_string(health.error());
  EXPECT_EQ(health->body, "ok\n");
  const auto channel = rpc::MakeChannel("test", (*server)->address(), {});
  ASSERT_TRUE(channel.ok()) << channel.status();
  grpc::ClientContext context;
  rpc::SetTimeout(context, testing::kPatience);
  v1::DescribeClusterResponse cluster;
  ASSERT_TRUE(v1::ClusterService::NewStub(*channel)->DescribeCluster(&context, {}, &cluster).ok());
  EXPECT_EQ(cluster.http_address(), Address("c.http"));
  const auto metrics = Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(metrics->body, HasSubstr("meshrun_coordinator_leader 1\n"));
  EXPECT_THAT(metrics->body, HasSubstr("meshrun_coordinator_term 1\n"));
  EXPECT_THAT(metrics->body,
              HasSubstr("meshrun_rpc_seconds_count{method=\"DescribeCluster\",code=\"OK\"} 1\n"));
  EXPECT_THAT(metrics->body, HasSubstr("meshrun_nodes{state=\"lost\"} 0\n"));
  EXPECT_EQ(Get("/none")->status, 404);
  (*server)->Stop();
  struct stat info;
  EXPECT_NE(::stat((directory_ / "c.http").c_str(), &info), 0) << "the socket is left";
}

TEST_F(HttpTest, NoneIsServedNowhere) {
  auto server = Server::Start({.listen = Address("c.sock"), .http = "none"});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_FALSE(Get("/healthz"));
}

TEST_F(HttpTest, AnAddressThatIsTakenIsAnErrorOfTheFlag) {
  auto front = HttpFront::Open({.listen = Address("c.http")});
  ASSERT_TRUE(front.ok()) << front.status();
  const auto server = Server::Start({.listen = Address("c.sock"), .http = "auto"});
  EXPECT_EQ(server.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("--http"));
}

TEST_F(HttpTest, TwoCoordinatorsOfOneDirectoryServeBoth) {
  auto first = Server::Start({.listen = Address("a.sock"), .http = "auto"});
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = Server::Start({.listen = Address("b.sock"), .http = "auto"});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_NE((*first)->http_address(), (*second)->http_address());
  (*second)->Stop();
  (*first)->Stop();
}

TEST_F(HttpTest, TheDefaultIsBesideAUnixSocketAlone) {
  EXPECT_EQ(HttpAddress("auto", "unix:/run/meshrun/coordinator.sock"),
            "unix:/run/meshrun/coordinator.http");
  EXPECT_EQ(HttpAddress("auto", "unix:d.2"), "unix:d.2.http");
  EXPECT_EQ(HttpAddress("auto", "0.0.0.0:7480"), "");
  EXPECT_EQ(HttpAddress("none", "unix:/run/meshrun/coordinator.sock"), "");
  EXPECT_EQ(HttpAddress("0.0.0.0:7481", "0.0.0.0:7480"), "0.0.0.0:7481");
}

TEST_F(HttpTest, WithoutRoutesThePortSaysWhy) {
  auto front = HttpFront::Open({.listen = Address("c.http")});
  ASSERT_TRUE(front.ok()) << front.status();
  (*front)->Withdraw("this coordinator stands by");
  const auto health = Get("/healthz");
  EXPECT_EQ(health->status, 503);
  EXPECT_EQ(health->body, "this coordinator stands by\n");
  const auto metrics = Get("/metrics");
  EXPECT_EQ(metrics->status, 503);
  EXPECT_THAT(metrics->body, HasSubstr("stands by"));
}

TEST_F(HttpTest, ACoordinatorThatStandsByIsHealthyAndHasNoTerm) {
  const CoordinatorMetrics metrics_of_process;
  auto front = HttpFront::Open({.listen = Address("c.http")});
  ASSERT_TRUE(front.ok()) << front.status();
  (*front)->Serve(MakeStandbyRoutes(metrics_of_process, **front, nullptr, {}, [] {
    return absl::UnavailableError("another coordinator leads");
  }));
  EXPECT_EQ(Get("/healthz")->status, 200);
  const auto metrics = Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_THAT(metrics->body, HasSubstr("meshrun_coordinator_leader 0\n"));
  EXPECT_THAT(metrics->body, ::testing::Not(HasSubstr("meshrun_coordinator_term")));
  const auto jobs = Get("/api/v1/jobs");
  EXPECT_EQ(jobs->status, 503);
  EXPECT_THAT(jobs->body, HasSubstr("another coordinator leads"));
}

TEST_F(HttpTest, WithdrawnRoutesAreCalledNoMore) {
  auto front = HttpFront::Open({.listen = Address("c.http")});
  ASSERT_TRUE(front.ok()) << front.status();
  std::atomic<bool> gone{false};
  std::atomic<bool> streams{false};
  http::Routes routes;
  routes.Add("/watch", "", [&](const http::Request&) -> http::Answer {
    return http::Streaming{.content_type = "text/event-stream",
                           .next =
                               [&](std::chrono::milliseconds) {
                                 EXPECT_FALSE(gone);
                                 streams = true;
                                 return ": still here\n\n";
                               },
                           .closed = [&] { EXPECT_FALSE(gone); }};
  });
  (*front)->Serve(std::move(routes));
  std::thread reader([&] { Get("/watch"); });
  ASSERT_TRUE(testing::Eventually([&] { return streams.load(); }));
  (*front)->Withdraw("this coordinator stands by");
  gone = true;
  reader.join();
  EXPECT_EQ(Get("/watch")->status, 503);
}

TEST_F(HttpTest, AReaderThatReadsNothingDoesNotHoldBackAnEnd) {
  auto front = HttpFront::Open({.listen = Address("c.http")});
  ASSERT_TRUE(front.ok()) << front.status();
  std::atomic<int> pieces{0};
  std::atomic<int> closed{0};
  http::Routes routes;
  routes.Add("/watch", "", [&](const http::Request&) -> http::Answer {
    return http::Streaming{.content_type = "text/event-stream",
                           .next =
                               [&](std::chrono::milliseconds) {
                                 ++pieces;
                                 return std::string(8 << 20, ' ');
                               },
                           .closed = [&] { ++closed; }};
  });
  (*front)->Serve(std::move(routes));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = directory_ / "c.http";
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const os::UniqueFd deaf(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(deaf.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  constexpr std::string_view kRequest = "GET /watch HTTP/1.1\r\n\r\n";
  ASSERT_GT(::send(deaf.get(), kRequest.data(), kRequest.size(), 0), 0);
  ASSERT_TRUE(testing::Eventually([&] { return pieces == 1; }));
  const auto began = std::chrono::steady_clock::now();
  (*front)->Withdraw("this coordinator stands by");
  // The least rate of a reader gives these bytes four minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  EXPECT_EQ(closed, 1);
}

TEST_F(HttpTest, AHandlerIsToldThatItsRoutesAreWithdrawn) {
  auto front = HttpFront::Open({.listen = Address("c.http")});
  ASSERT_TRUE(front.ok()) << front.status();
  std::atomic<bool> asked{false};
  http::Routes routes;
  routes.Add("/stacks", "", [&](const http::Request& request) -> http::Answer {
    EXPECT_FALSE(request.gone());
    asked = true;
    EXPECT_TRUE(testing::Eventually(request.gone));
    return http::Response{};
  });
  (*front)->Serve(std::move(routes));
  std::thread reader([&] { Get("/stacks"); });
  ASSERT_TRUE(testing::Eventually([&] { return asked.load(); }));
  (*front)->Withdraw("this coordinator stands by");
  reader.join();
}

TEST_F(HttpTest, AStandbySaysWhichPortToAsk) {
  auto front = HttpFront::Open({.listen = Address("s.http")});
  ASSERT_TRUE(front.ok()) << front.status();
  absl::Status standby = absl::UnavailableError("b is a standby: a leads at head1:7480");
  const CoordinatorMetrics metrics;
  http::Routes routes = MakeStandbyRoutes(metrics, **front, nullptr, {}, [&] { return standby; });
  const auto said = [&] {
    const http::Answer answer =
        routes.Handle({.method = "GET", .path = "/api/v1/jobs", .trusted = true});
    const auto& response = std::get<http::Response>(answer);
    EXPECT_EQ(response.status, 503);
    return response.body;
  };
  EXPECT_THAT(said(), ::testing::Not(HasSubstr("healthz")));
  v1::ErrorDetail detail;
  detail.set_leader("head1:7480");
  SetDetail(&standby, detail);
  EXPECT_THAT(said(), HasSubstr("a leads at head1:7480 (its gRPC address); send this call to the "
                                "HTTP port of the coordinator whose /healthz answers"));
}

}  // namespace
}  // namespace meshrun::coordinator
