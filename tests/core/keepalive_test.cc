// Both sides notice a peer that is gone without a word. A server does not refuse a client's pings.
#include <grpcpp/server.h>
#include <gtest/gtest.h>

#include <atomic>

#include "core/rpc/channel.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "tests/core/support/byte_proxy.h"
#include "tests/worker/support/processes.h"

namespace meshrun::rpc {
namespace {

using std::chrono::milliseconds;
using testing::ByteProxy;
using testing::Eventually;

constexpr Keepalive kShort = {.time = milliseconds(100), .timeout = milliseconds(100)};
constexpr Keepalive kNever = {.time = std::chrono::hours(1), .timeout = std::chrono::hours(1)};

// A stream that says nothing until it is told to end.
class SilentService : public v1::AgentService::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::WatchGenerationResponse>* WatchGeneration(
      grpc::CallbackServerContext*, const v1::WatchGenerationRequest*) override {
    auto* const reactor = new Silent(*this);
    reactor_ = reactor;
    return reactor;
  }
  bool called() const { return reactor_ != nullptr; }
  bool cancelled() const { return cancelled_; }
  void End() { reactor_.load()->Finish(grpc::Status::OK); }

 private:
  class Silent : public grpc::ServerWriteReactor<v1::WatchGenerationResponse> {
   public:
    explicit Silent(SilentService& owner) : owner_(owner) {}
    void OnCancel() override {
      owner_.cancelled_ = true;
      Finish(grpc::Status::CANCELLED);
    }
    void OnDone() override { delete this; }

   private:
    SilentService& owner_;
  };
  std::atomic<Silent*> reactor_ = nullptr;
  std::atomic<bool> cancelled_ = false;
};

// A call through a proxy, under way.
class KeepaliveTest : public ::testing::Test {
 protected:
  void Begin(const std::optional<Keepalive>& server, const Keepalive& client) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder, server);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    proxy_ = std::make_unique<ByteProxy>(static_cast<uint16_t>(port));
    const auto channel =
        MakeChannel("test", proxy_->address(), {.insecure_loopback = true}, client);
    ASSERT_TRUE(channel.ok()) << channel.status();
    SetTimeout(context_, testing::kPatience * 2);
    reader_ = v1::AgentService::NewStub(*channel)->WatchGeneration(&context_, {});
    ASSERT_TRUE(Eventually([&] { return service_.called(); }));
  }
  grpc::Status AwaitEnd() {
    v1::WatchGenerationResponse response;
    EXPECT_FALSE(reader_->Read(&response));
    return reader_->Finish();
  }

  SilentService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ByteProxy> proxy_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchGenerationResponse>> reader_;
};

TEST_F(KeepaliveTest, AClientNoticesADeadServer) {
  Begin(std::nullopt, kShort);
  proxy_->Swallow();
  EXPECT_EQ(AwaitEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(KeepaliveTest, AServerNoticesADeadClient) {
  Begin(kShort, kNever);
  proxy_->Swallow();
  EXPECT_TRUE(Eventually([&] { return service_.cancelled(); }));
  context_.TryCancel();
  AwaitEnd();
}

TEST_F(KeepaliveTest, AServerBearsPingsAsOftenAsAClientSendsThem) {
  // One a second. A server with gRPC's own limits ends the connection at the fourth.
  Begin(Keepalive(), {.time = milliseconds(100), .timeout = testing::kPatience});
  EXPECT_TRUE(Eventually([&] { return proxy_->client_pings() >= 5; }));
  service_.End();
  const grpc::Status status = AwaitEnd();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace meshrun::rpc
