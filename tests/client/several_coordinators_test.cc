// What a client says and does where several coordinators do not belong together.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "client/client.h"
#include "core/error_detail.h"
#include "core/http/server.h"
#include "core/mutex.h"
#include "core/rpc/security.h"
#include "core/rpc/status_conversion.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "tests/core/support/certificates.h"
#include "tests/worker/support/processes.h"

namespace meshrun::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A coordinator that leads `cluster`, or stands by where that is empty.
class Coordinator : public v1::JobService::Service, public v1::ClusterService::Service {
 public:
  explicit Coordinator(const rpc::Security& security, std::string cluster = "",
                       std::string leader = "")
      : cluster_(std::move(cluster)), leader_(std::move(leader)) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0",
                             *rpc::ServerCredentials("test", "127.0.0.1:0", security), &port);
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(static_cast<v1::ClusterService::Service*>(this));
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~Coordinator() override { Stop(); }

  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }
  void Lead(std::string cluster) {
    MutexLock lock(mu_);
    cluster_ = std::move(cluster);
  }
  const std::string& address() const { return address_; }
  int asked_for_jobs() const { return asked_for_jobs_; }
  int described() const { return described_; }

  grpc::Status DescribeCluster(grpc::ServerContext*, const v1::DescribeClusterRequest*,
                               v1::DescribeClusterResponse* response) override {
    ++described_;
    MutexLock lock(mu_);
    if (cluster_.empty()) return StandsBy();
    response->set_cluster_id(cluster_);
    return grpc::Status::OK;
  }
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* response) override {
    MutexLock lock(mu_);
    if (cluster_.empty()) return StandsBy();
    response->add_nodes()->set_name(cluster_);
    return grpc::Status::OK;
  }
  // Runs until the coordinator stops; one that has been asked before says that it has ended.
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    {
      MutexLock lock(mu_);
      if (cluster_.empty()) return StandsBy();
      ++asked_for_jobs_;
      if (cluster_ == "other") {
        return rpc::ToGrpc(absl::NotFoundError("no job among the 0 that are known"),
                           v1::ERROR_ORIGIN_COORDINATOR);
      }
    }
    v1::WatchJobResponse response;
    response.mutable_job()->set_job_id(request->job_id());
    response.mutable_job()->set_state(ends_ ? v1::JOB_STATE_SUCCEEDED : v1::JOB_STATE_RUNNING);
    writer->Write(response);
    while (!ends_ && !context->IsCancelled()) std::this_thread::sleep_for(milliseconds(2));
    return grpc::Status::OK;
  }

  std::atomic<bool> ends_{false};

 private:
  grpc::Status StandsBy() {
    v1::ErrorDetail detail;
    detail.set_standby(true);
    detail.set_leader(leader_);
    absl::Status status = absl::UnavailableError(
        leader_.empty() ? "a is a standby, and no coordinator leads now"
                        : "coordinator a is a standby: b leads at " + leader_);
    SetDetail(&status, detail);
    return rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR);
  }

  Mutex mu_;
  std::string cluster_ MESHRUN_GUARDED_BY(mu_);
  const std::string leader_;
  std::atomic<int> asked_for_jobs_{0};
  std::atomic<int> described_{0};
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

const rpc::Security kPlain = {.insecure_loopback = true};

Options To(const std::string& addresses, const rpc::Security& security = kPlain) {
  return {.address = addresses,
          .security = security,
          .timeout = seconds(2),
          .connect_timeout = seconds(2)};
}

TEST(SeveralCoordinatorsTest, ALeaderWhoseCertificateIsRefusedIsNamedWithTheReason) {
  const meshrun::testing::TemporaryDirectory directory;
  const meshrun::testing::CertificateAuthority ours("ours", directory.path());
  const rpc::TlsFiles tls = ours.Sign("coordinator");
  // One for clients alone, as it was started with by mistake.
  const Coordinator leader({.tls = ours.Sign("ada", {.roles = {"operate"}, .server = false})},
                           "cluster");
  const Coordinator standby({.tls = tls}, "", leader.address());
  for (const std::string& addresses :
       {standby.address(), standby.address() + "," + leader.address(),
        leader.address() + "," + standby.address()}) {
    const auto client = Client::Connect(To(addresses, {.tls = ours.Sign("client")}));
    EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
    const std::string text(client.status().message());
    EXPECT_THAT(text, HasSubstr("b leads at " + leader.address()));
    EXPECT_THAT(text, HasSubstr("certificate"));
  }
}

TEST(SeveralCoordinatorsTest, WhatRunsThereAndIsNoCoordinatorForThisClientIsNotAbsent) {
  const meshrun::testing::TemporaryDirectory directory;
  const meshrun::testing::CertificateAuthority ours("ours", directory.path());
  const meshrun::testing::CertificateAuthority others("others", directory.path());
  const rpc::Security mine = {.tls = ours.Sign("client")};
  // It would take our certificate; we do not take its.
  const Coordinator foreign({.tls = others.Trusting(others.Sign("c"), ours)}, "cluster");
  const auto refused = Client::Connect(To(foreign.address(), mine));
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("what runs at " + foreign.address() +
                              " showed a certificate that is not trusted"),
                    Not(HasSubstr("no coordinator is running"))));

  auto http =
      http::Server::Start({.listen = "127.0.0.1:0",
                           .security = {.tls = ours.Sign("coordinator")},
                           .handler = [](const http::Request&) { return http::Response(); }});
  ASSERT_TRUE(http.ok()) << http.status();
  const auto wrong_port = Client::Connect(To((*http)->address(), mine));
  EXPECT_TRUE(absl::IsUnavailable(wrong_port.status())) << wrong_port.status();
  EXPECT_THAT(std::string(wrong_port.status().message()), HasSubstr("is it the HTTP port?"));

  // Each has its own reason.
  const auto both = Client::Connect(To(foreign.address() + ",127.0.0.1:1", mine));
  EXPECT_TRUE(absl::IsUnavailable(both.status())) << both.status();
  EXPECT_THAT(std::string(both.status().message()),
              AllOf(HasSubstr(foreign.address() + " ("), HasSubstr("certificate verify failed"),
                    HasSubstr("127.0.0.1:1 (connection refused)")));
}

TEST(SeveralCoordinatorsTest, AddressesThatAreDownGetNoAdviceToStartADevCluster) {
  const auto down = Client::Connect(To("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"));
  EXPECT_THAT(std::string(down.status().message()),
              AllOf(HasSubstr("127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3 (connection refused): start "
                              "meshrun-coordinator there"),
                    Not(HasSubstr("dev up"))));
}

// The third address leads into another cluster, and is the first to answer after a loss.
TEST(SeveralCoordinatorsTest, AFollowerStaysWithItsCluster) {
  Coordinator a(kPlain, "ours");
  Coordinator b(kPlain);
  const Coordinator c(kPlain, "other");
  auto client = Client::Connect(To(a.address() + "," + c.address() + "," + b.address()));
  ASSERT_TRUE(client.ok()) << client.status();
  StreamOptions options;
  options.patience = seconds(60);
  std::atomic<int> seen{0};
  absl::Status watched;
  std::thread watcher([&] {
    watched = (*client)->Watch(
        "j", [&](const v1::Job&) { ++seen; }, options);
  });
  EXPECT_TRUE(meshrun::testing::Eventually([&] { return seen == 1; }));
  a.Stop();
  EXPECT_TRUE(meshrun::testing::Eventually([&] {
    const auto nodes = (*client)->ListNodes();
    return absl::IsUnavailable(nodes.status()) &&
           nodes.status().message().find("leads cluster other") != std::string::npos;
  }));
  b.ends_ = true;
  b.Lead("ours");
  watcher.join();
  EXPECT_TRUE(watched.ok()) << watched;
  EXPECT_EQ(c.asked_for_jobs(), 0);
  EXPECT_EQ(b.asked_for_jobs(), 1);
  const auto nodes = (*client)->ListNodes();
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_EQ(nodes->front().name(), "ours");
}

TEST(SeveralCoordinatorsTest, AClientThatCouldNotAskBeforeStaysWithTheFirstCluster) {
  Coordinator a(kPlain, "ours");
  const Coordinator c(kPlain, "other");
  Options options = To(a.address() + "," + c.address());
  options.check = false;
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->ListNodes()->front().name(), "ours");
  a.Stop();
  const absl::Status gone = (*client)->ListNodes().status();
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()),
              AllOf(HasSubstr(c.address() + " leads cluster other"), HasSubstr("cluster ours")));
}

// It may have been set up anew.
TEST(SeveralCoordinatorsTest, OneCoordinatorMayLeadAnotherClusterThanBefore) {
  Coordinator one(kPlain, "ours");
  auto client = Client::Connect(To(one.address()));
  ASSERT_TRUE(client.ok()) << client.status();
  one.Lead("another");
  const auto described = (*client)->DescribeCluster();
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->cluster_id(), "another");
  EXPECT_TRUE((*client)->ListNodes().ok());
}

// Nobody asks twice.
TEST(SeveralCoordinatorsTest, OneCoordinatorIsNotAskedForItsCluster) {
  const Coordinator one(kPlain, "ours");
  Options options = To(one.address());
  options.check = false;
  auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok());
  EXPECT_TRUE((*client)->ListNodes().ok());
  EXPECT_EQ(one.described(), 0);
}

}  // namespace
}  // namespace meshrun::client
