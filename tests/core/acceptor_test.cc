// Connections of a server: who is let in, who gives way.
#include "core/rpc/acceptor.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <vector>

#include "core/os/tcp_listeners.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "tests/core/support/loopback.h"
#include "tests/worker/support/processes.h"

namespace meshrun::rpc {
namespace {

using testing::Ended;
using testing::Eventually;
using ::testing::HasSubstr;

class ProvingService : public v1::ClusterService::Service {
 public:
  Acceptor* acceptor = nullptr;

 private:
  grpc::Status ListNodes(grpc::ServerContext* context, const v1::ListNodesRequest*,
                         v1::ListNodesResponse*) override {
    acceptor->Prove(context->peer(), "ada");
    return grpc::Status::OK;
  }
};

class AcceptorTest : public ::testing::Test {
 protected:
  void Begin(const std::string& listen, const Acceptor::Limits& limits = {}) {
    auto acceptor = Acceptor::Listen(listen, limits);
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
    service_.acceptor = acceptor_.get();
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    acceptor_->Serve(builder, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    acceptor_->Start();
  }
  ~AcceptorTest() override {
    if (acceptor_ != nullptr) acceptor_->Stop();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  // A connection that has made a call.
  std::shared_ptr<grpc::Channel> Caller(const std::string& host) {
    const auto channel = MakeChannel("test", fmt::format("{}:{}", host, acceptor_->port()),
                                     {.insecure_loopback = true});
    EXPECT_TRUE(channel.ok()) << channel.status();
    EXPECT_EQ(Call(*channel), grpc::StatusCode::OK);
    return *channel;
  }
  static grpc::StatusCode Call(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    SetTimeout(context, testing::kPatience);
    v1::ListNodesResponse response;
    return v1::ClusterService::NewStub(channel)->ListNodes(&context, {}, &response).error_code();
  }
  os::UniqueFd Silent(const char* host = "127.0.0.1") {
    return testing::ConnectFrom(host, acceptor_->port());
  }

  ProvingService service_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

// A server that took it for a connection that has ended would ask for ever.
TEST(AcceptTest, WithoutDescriptorsItSaysSoAndTheConnectionWaits) {
  const auto listeners = os::ListenOnTcp("127.0.0.1:0", 64 << 10);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  const int listener = listeners->sockets[0].get();
  const os::Accepted none = os::Accept(listener);
  EXPECT_FALSE(none.socket || none.may_be_more || none.exhausted);
  const os::UniqueFd caller = testing::ConnectFrom("127.0.0.1", listeners->port);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const os::Accepted exhausted = os::Accept(listener);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(exhausted.socket || exhausted.may_be_more);
  EXPECT_TRUE(exhausted.exhausted);
  const os::Accepted accepted = os::Accept(listener);
  ASSERT_TRUE(accepted.socket);
  EXPECT_EQ(os::PeerOf(accepted.from).address, "127.0.0.1");
}

TEST_F(AcceptorTest, ACallProvesItsConnection) {
  Begin("0.0.0.0:0");
  const auto first = Caller("127.0.0.1");
  EXPECT_EQ(acceptor_->counts().unproven, 0u);
  EXPECT_EQ(acceptor_->counts().open, 1u);
  const os::UniqueFd silent = Silent();
  EXPECT_TRUE(Eventually([&] { return acceptor_->counts().unproven == 1; }));
}

TEST_F(AcceptorTest, AlsoOverIpv6) {
  if (!Acceptor::Listen("[::1]:0", {}).ok()) GTEST_SKIP() << "this host has no IPv6";
  Begin("[::]:0");
  const auto first = Caller("[::1]");
  const auto second = Caller("127.0.0.1");
  EXPECT_EQ(acceptor_->counts().unproven, 0u);
  EXPECT_EQ(acceptor_->counts().open, 2u);
}

TEST_F(AcceptorTest, OfSilentOnesTheOldestGiveWay) {
  Begin("127.0.0.1:0", {.unproven_per_address = 4});
  const auto caller = Caller("127.0.0.1");
  std::vector<os::UniqueFd> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(Silent());
    ASSERT_TRUE(Eventually([&] { return acceptor_->counts().closed + 4 >= silent.size(); }));
  }
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(Eventually([&] { return Ended(silent[i]); })) << i;
  for (int i = 16; i < 20; ++i) EXPECT_FALSE(Ended(silent[i])) << i;
  EXPECT_EQ(Call(caller), grpc::StatusCode::OK);
  const auto other = Caller("127.0.0.1");
  EXPECT_TRUE(Eventually([&] { return acceptor_->counts().open == 5; }));
}

TEST_F(AcceptorTest, OfManyAddressesTheOneWithTheMostGivesWay) {
  Begin("127.0.0.1:0", {.unproven = 6});
  std::vector<os::UniqueFd> many;
  for (int i = 0; i < 5; ++i) many.push_back(Silent("127.0.0.2"));
  const os::UniqueFd single = Silent("127.0.0.3");
  const os::UniqueFd another = Silent("127.0.0.4");
  EXPECT_TRUE(Eventually([&] { return Ended(many[0]); }));
  EXPECT_FALSE(Ended(many[1]));
  EXPECT_FALSE(Ended(single));
  EXPECT_FALSE(Ended(another));
}

TEST_F(AcceptorTest, BeyondItsLimitAnAddressIsRefusedUntilOneOfItsEnds) {
  Begin("127.0.0.1:0", {.per_address = 2});
  const auto first = Caller("127.0.0.1");
  auto second = Caller("127.0.0.1");
  const os::UniqueFd refused = Silent();
  EXPECT_TRUE(Eventually([&] { return Ended(refused); }));
  EXPECT_EQ(acceptor_->counts().refused, 1u);
  // Others are not concerned.
  const os::UniqueFd other = Silent("127.0.0.2");
  EXPECT_TRUE(Eventually([&] { return acceptor_->counts().open == 3; }));
  EXPECT_FALSE(Ended(other));
  second.reset();
  EXPECT_TRUE(Eventually([&] { return acceptor_->counts().open == 2; }));
  const auto third = Caller("127.0.0.1");
}

TEST_F(AcceptorTest, OfAFloodTheBusyConnectionsAreClosed) {
  Begin("127.0.0.1:0");
  const auto caller = Caller("127.0.0.1");
  const os::UniqueFd silent = Silent();
  // Nobody knows whose it is.
  const os::UniqueFd busy = Silent();
  EXPECT_TRUE(Eventually([&] { return acceptor_->counts().open == 3; }));
  const auto floods = [&] {
    const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // Frames of HTTP/2 that are ignored.
    const std::string frame = std::string("\0\x40\0\xfe\0\0\0\0\0", 9) + std::string(16384, 'x');
    std::string bytes = preface + std::string("\0\0\0\x04\0\0\0\0\0", 9);
    for (int i = 0; i < 8; ++i) bytes += frame;
    return ::send(busy.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0;
  };
  acceptor_->CloseBusiest("bob");
  EXPECT_TRUE(floods());
  EXPECT_TRUE(Eventually([&] {
    acceptor_->CloseBusiest("bob");
    return Ended(busy);
  }));
  EXPECT_FALSE(Ended(silent));
  EXPECT_EQ(acceptor_->counts().closed, 1u);
  EXPECT_EQ(Call(caller), grpc::StatusCode::OK);
  EXPECT_TRUE(Eventually([&] { return acceptor_->counts().open == 2; }))
      << "that of ada, who does not flood, goes on";
}

TEST_F(AcceptorTest, AClosedConnectionIsForgottenAtOnce) {
  Begin("127.0.0.1:0", {.unproven_per_address = 1});
  const os::UniqueFd first = Silent();
  const os::UniqueFd second = Silent();
  EXPECT_TRUE(Eventually([&] { return Ended(first) && acceptor_->counts().open == 1; }));
}

TEST_F(AcceptorTest, AddressesThatCannotBe) {
  const auto refusal = [](const std::string& address) {
    return Acceptor::Listen(address, {}).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(refusal("127.0.0.1:port")));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal("127.0.0.1:70000")));
  EXPECT_TRUE(absl::IsInvalidArgument(refusal("no such host:0")));
  EXPECT_TRUE(absl::IsAlreadyExists(refusal("203.0.113.1:0")));
  Begin("127.0.0.1:0");
  const absl::Status taken = refusal(fmt::format("127.0.0.1:{}", acceptor_->port()));
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_THAT(std::string(taken.message()), HasSubstr("it is taken"));
  EXPECT_TRUE(absl::IsAlreadyExists(refusal(fmt::format("0.0.0.0:{}", acceptor_->port()))));
}

}  // namespace
}  // namespace meshrun::rpc
