// A server that ends while sessions and streams are being ended for their certificates.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <string>

#include "coordinator/door.h"
#include "coordinator/server.h"
#include "core/os/files.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "tests/coordinator/support/grpc_worker.h"
#include "tests/core/support/certificates.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator::testing {
namespace {

using meshrun::testing::CertificateAuthority;
using meshrun::testing::Eventually;
using meshrun::testing::kPatience;
using meshrun::testing::TemporaryDirectory;

// The door outlives its server, as that of a coordinator which leads no more.
class CertificateWatchTest : public ::testing::Test {
 protected:
  void Start() {
    std::ofstream(list_) << "# nobody yet\n";
    auto door = Door::Open({.listen = "127.0.0.1:0",
                            .security = {.tls = ours_.Sign("coordinator"), .deny_file = list_}});
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    Server::Options options;
    options.door = door_.get();
    options.lease = std::chrono::seconds(120);
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const rpc::TlsFiles& files) {
    return *rpc::MakeChannel("test", server_->address(), {.tls = files});
  }

  const TemporaryDirectory directory_;
  const std::string list_ = directory_ / "deny";
  const CertificateAuthority ours_{"ours", directory_.path()};
  std::unique_ptr<Door> door_;
  std::unique_ptr<Server> server_;
};

// Longer than a server takes to end that does not wait.
constexpr std::chrono::seconds kHeld(2);

TEST_F(CertificateWatchTest, AServerOutlivesTheCallsThatEndItsStreams) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const rpc::TlsFiles of_ada = ours_.Sign("ada", {.roles = {"submit"}});
  // It is watched before the streams, so it is called first, when they are due already.
  std::promise<void> called, gone;
  std::atomic<bool> outlives_server{false};
  door_->standing()->Watch(*os::ReadFile(of_ada.cert), WallNanos(0), [&](const absl::Status&) {
    called.set_value();
    outlives_server = gone.get_future().wait_for(kHeld) == std::future_status::ready;
  });
  std::atomic<bool> log_is_open{false};
  GrpcWorker worker(ChannelOf(ours_.Sign("w1", {.roles = {"worker"}, .nodes = {"node1"}})),
                    {.name = "node1"}, [&](GrpcWorker&, const v1::OpenSessionResponse& message) {
                      if (message.has_open_log()) log_is_open = true;
                    });
  ASSERT_TRUE(worker.Connect());
  const auto jobs = v1::JobService::NewStub(ChannelOf(of_ada));
  v1::SubmitJobRequest submit;
  submit.mutable_spec()->set_name("train");
  submit.mutable_spec()->add_command("./train");
  v1::SubmitJobResponse job;
  {
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    ASSERT_TRUE(jobs->SubmitJob(&context, submit, &job).ok());
  }
  grpc::ClientContext watching;
  rpc::SetTimeout(watching, kPatience);
  v1::WatchJobRequest watch_request;
  watch_request.set_job_id(job.job().job_id());
  const auto watch = jobs->WatchJob(&watching, watch_request);
  v1::WatchJobResponse item;
  const auto state = [&item] {
    return item.has_job() ? item.job().state() : item.delta().head().state();
  };
  do {
    ASSERT_TRUE(watch->Read(&item));
  } while (state() != v1::JOB_STATE_RUNNING);
  grpc::ClientContext reading;
  rpc::SetTimeout(reading, kPatience);
  v1::ReadLogsRequest read_request;
  read_request.set_job_id(job.job().job_id());
  read_request.set_follow(true);
  const auto logs = jobs->ReadLogs(&reading, read_request);
  ASSERT_TRUE(Eventually([&] { return log_is_open.load(); }));

  std::ofstream(list_) << "name:ada\nname:w1\n";
  called.get_future().wait();
  server_.reset();
  gone.set_value();
  door_->standing()->Quiesce();
  EXPECT_FALSE(outlives_server);
  EXPECT_FALSE(worker.AwaitEnd().ok());
  while (watch->Read(&item)) {
  }
  EXPECT_FALSE(watch->Finish().ok());
  v1::ReadLogsResponse piece;
  EXPECT_FALSE(logs->Read(&piece));
  EXPECT_FALSE(logs->Finish().ok());
}

}  // namespace
}  // namespace meshrun::coordinator::testing
