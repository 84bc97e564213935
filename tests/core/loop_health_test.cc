// What probes and systemd hear of a loop that stalls.
#include "core/rpc/loop_health.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>

#include "core/os/fd.h"
#include "core/rpc/channel.h"
#include "deploy/probe/health.grpc.pb.h"
#include "tests/worker/support/processes.h"

namespace meshrun::rpc {
namespace {

using std::chrono::milliseconds;
using testing::Eventually;
using Status = grpc::health::v1::HealthCheckResponse;

class LoopHealthTest : public ::testing::Test {
 protected:
  LoopHealthTest() {
    EnableServerPlugins();
    grpc::ServerBuilder builder;
    const std::string address = "unix:" + (directory_ / "s");
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    server_ = builder.BuildAndStart();
    stub_ = grpc::health::v1::Health::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }
  bool Serves(const std::string& service) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    Status response;
    EXPECT_TRUE(stub_->Check(&context, request, &response).ok());
    return response.status() == Status::SERVING;
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
};

TEST_F(LoopHealthTest, AStallShowsInReadinessAloneUntilItIsLong) {
  LoopHealth health({.ready_timeout = milliseconds(200), .live_timeout = std::chrono::hours(1)});
  health.Watch(*server_);
  EXPECT_TRUE(Eventually([&] { return !Serves(kReadyService); }));
  EXPECT_TRUE(Serves(""));
  EXPECT_TRUE(Eventually([&] {
    health.Turned();
    return Serves(kReadyService);
  }));
}

TEST_F(LoopHealthTest, LivenessEndsAfterItsOwnTimeAndComesBack) {
  LoopHealth health({.ready_timeout = milliseconds(100), .live_timeout = milliseconds(300)});
  health.Watch(*server_);
  EXPECT_TRUE(Eventually([&] { return !Serves(""); }));
  EXPECT_FALSE(Serves(kReadyService));
  EXPECT_TRUE(Eventually([&] {
    health.Turned();
    return Serves("") && Serves(kReadyService);
  }));
}

TEST_F(LoopHealthTest, SystemdIsToldWhileTheLoopTurns) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = directory_ / "notify";
  std::memcpy(address.sun_path, path.data(), path.size());
  const os::UniqueFd systemd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(systemd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  ::setenv("WATCHDOG_USEC", "600000000", 1);
  LoopHealth health({.ready_timeout = std::chrono::seconds(5)});
  ::unsetenv("NOTIFY_SOCKET");
  ::unsetenv("WATCHDOG_USEC");
  health.Watch(*server_);
  pollfd ready = {systemd.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
  char text[64] = {};
  EXPECT_GT(::read(systemd.get(), text, sizeof(text) - 1), 0);
  EXPECT_STREQ(text, "WATCHDOG=1");
}

TEST(LoopHealthOptionsTest, ATimeThatMeansNothingIsRefused) {
  EXPECT_TRUE(LoopHealth::Check({}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(LoopHealth::Check({.ready_timeout = milliseconds(500)})));
  EXPECT_TRUE(
      absl::IsInvalidArgument(LoopHealth::Check({.live_timeout = std::chrono::seconds(1)})));
}

}  // namespace
}  // namespace meshrun::rpc
