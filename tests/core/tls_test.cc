// Mutual TLS, with certificates made here: who is let in.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <gtest/gtest.h>

#include "core/os/files.h"
#include "core/rpc/channel.h"
#include "core/rpc/security.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "tests/core/support/certificates.h"
#include "tests/worker/support/processes.h"

namespace meshrun::rpc {
namespace {

using testing::CertificateAuthority;

class Service : public v1::ClusterService::Service {
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse*) override {
    return grpc::Status::OK;
  }
};

constexpr std::chrono::seconds kReread(1);

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    const auto credentials =
        ServerCredentials("test", "127.0.0.1:0", {.tls = files_, .reread = kReread});
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    if (!credentials.ok()) return;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", *credentials, &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  grpc::StatusCode Call(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    SetTimeout(context, testing::kPatience);
    v1::ListNodesResponse response;
    return v1::ClusterService::NewStub(channel)->ListNodes(&context, {}, &response).error_code();
  }
  grpc::StatusCode CallWith(const TlsFiles& files) {
    const auto channel =
        MakeChannel("test", address_, {.tls = files, .insecure_loopback = files.empty()});
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.ok() ? Call(*channel) : grpc::StatusCode::UNKNOWN;
  }

  testing::TemporaryDirectory directory_;
  const CertificateAuthority ours_{"ours", directory_.path()};
  const TlsFiles files_ = ours_.Sign("server");
  const CertificateAuthority other_{"other", directory_.path()};
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(TlsTest, AcceptsACertificateOfItsOwnAuthority) {
  EXPECT_EQ(CallWith(ours_.Sign("client", {.roles = {"read"}})), grpc::StatusCode::OK);
}

TEST_F(TlsTest, RefusesACertificateOfAnotherAuthority) {
  EXPECT_EQ(CallWith(other_.Trusting(other_.Sign("stranger"), ours_)),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, RefusesAClientWithoutACertificate) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = ours_.pair().cert_pem;
  EXPECT_EQ(Call(grpc::CreateChannel(address_, grpc::SslCredentials(options))),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, RefusesACertificateThatHasEnded) {
  EXPECT_EQ(CallWith(ours_.Sign("late", {.lasts = std::chrono::seconds(-60)})),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, RefusesACertificateWithoutTheRole) {
  EXPECT_EQ(CallWith(ours_.Sign("nobody", {.roles = {}})), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(CallWith(ours_.Sign("worker", {.roles = {"worker"}, .nodes = {"*"}})),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(TlsTest, RereadsItsFilesOnBothSides) {
  // Files of a client that goes on: new connections show what lies there then.
  const TlsFiles own = other_.Trusting(other_.Sign("client"), ours_);
  const auto channel = MakeChannel("test", address_, {.tls = own, .reread = kReread});
  ASSERT_TRUE(channel.ok()) << channel.status();
  ASSERT_EQ(Call(*channel), grpc::StatusCode::UNAVAILABLE);
  const TlsFiles right = ours_.Sign("right");
  for (const auto& [from, to] : {std::pair(right.key, own.key), std::pair(right.cert, own.cert)}) {
    ASSERT_TRUE(os::WriteFileAtomically(to, *os::ReadFile(from), 0600).ok());
  }
  EXPECT_TRUE(testing::Eventually([&] { return Call(*channel) == grpc::StatusCode::OK; }));

  // Files of the server, which moves to another authority.
  const TlsFiles moved = other_.Sign("moved");
  for (const auto& [from, to] :
       {std::pair(moved.key, files_.key), std::pair(moved.cert, files_.cert),
        std::pair(moved.ca, files_.ca)}) {
    ASSERT_TRUE(os::WriteFileAtomically(to, *os::ReadFile(from), 0600).ok());
  }
  const TlsFiles theirs = other_.Sign("theirs");
  EXPECT_TRUE(testing::Eventually([&] { return CallWith(theirs) == grpc::StatusCode::OK; }));
}

TEST_F(TlsTest, RefusesPlaintext) { EXPECT_EQ(CallWith({}), grpc::StatusCode::UNAVAILABLE); }

TEST_F(TlsTest, AClientRefusesAServerOfAnotherAuthority) {
  EXPECT_EQ(CallWith(ours_.Trusting(ours_.Sign("client"), other_)), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace meshrun::rpc
