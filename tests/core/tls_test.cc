// Mutual TLS, with certificates made here: who is let in.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <gtest/gtest.h>

#include "core/os/files.h"
#include "core/rpc/channel.h"
#include "core/rpc/security.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "tests/core/support/certificates.h"
#include "tests/worker/support/processes.h"

namespace meshrun::rpc {
namespace {

using testing::CertificateAuthority;

class Service : public v1::AgentService::Service {
  grpc::Status ReportProgress(grpc::ServerContext*, const v1::ReportProgressRequest*,
                              v1::ReportProgressResponse*) override {
    return grpc::Status::OK;
  }
};

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() {
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    const auto credentials = ServerCredentials(
        "test", "127.0.0.1:0", {.tls = Files("server", ours_.Sign("server"), ours_)});
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    if (!credentials.ok()) return;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", *credentials, &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  // The three files of one who shows `own` and trusts what `trusted` has signed.
  TlsFiles Files(const std::string& name, const CertificateAuthority::Signed& own,
                 const CertificateAuthority& trusted) {
    const TlsFiles files = {.cert = directory_ / (name + ".pem"),
                            .key = directory_ / (name + ".key"),
                            .ca = directory_ / (name + ".ca.pem")};
    EXPECT_TRUE(os::WriteFileAtomically(files.cert, own.cert_pem).ok());
    EXPECT_TRUE(os::WriteFileAtomically(files.key, own.key_pem, 0600).ok());
    EXPECT_TRUE(os::WriteFileAtomically(files.ca, trusted.cert_pem()).ok());
    return files;
  }
  grpc::StatusCode Call(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    SetTimeout(context, testing::kPatience);
    v1::ReportProgressResponse response;
    return v1::AgentService::NewStub(channel)->ReportProgress(&context, {}, &response).error_code();
  }
  grpc::StatusCode CallWith(const TlsFiles& files) {
    const auto channel =
        MakeChannel("test", address_, {.tls = files, .insecure_loopback = files.empty()});
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.ok() ? Call(*channel) : grpc::StatusCode::UNKNOWN;
  }

  const CertificateAuthority ours_{"ours"};
  const CertificateAuthority other_{"other"};
  testing::TemporaryDirectory directory_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(TlsTest, AcceptsACertificateOfItsOwnAuthority) {
  EXPECT_EQ(CallWith(Files("client", ours_.Sign("client"), ours_)), grpc::StatusCode::OK);
}

TEST_F(TlsTest, RefusesACertificateOfAnotherAuthority) {
  EXPECT_EQ(CallWith(Files("stranger", other_.Sign("stranger"), ours_)),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, RefusesAClientWithoutACertificate) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = ours_.cert_pem();
  EXPECT_EQ(Call(grpc::CreateChannel(address_, grpc::SslCredentials(options))),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, RefusesPlaintext) { EXPECT_EQ(CallWith({}), grpc::StatusCode::UNAVAILABLE); }

TEST_F(TlsTest, AClientRefusesAServerOfAnotherAuthority) {
  EXPECT_EQ(CallWith(Files("client", ours_.Sign("client"), other_)), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace meshrun::rpc
