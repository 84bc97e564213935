// A coordinator process whose disk hangs, a worker process, and a rank that must not notice.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <thread>

#include "core/os/files.h"
#include "core/os/process.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator {
namespace {

using testing::AwaitPid;
using ::testing::ContainsRegex;
using testing::Eventually;

std::string Program(const std::string& path) { return std::filesystem::absolute(path).string(); }

// Whether the disk answers reads while writes hang.
class HungDiskTest : public ::testing::TestWithParam<bool> {
 protected:
  ~HungDiskTest() override {
    std::filesystem::remove(flag_);
    for (const pid_t pid : processes_) {
      ::kill(pid, SIGTERM);
      testing::AwaitExit(pid);
    }
  }
  void Spawn(std::vector<std::string> argv, std::map<std::string, std::string> environment = {}) {
    os::SpawnOptions spawn;
    spawn.argv = std::move(argv);
    spawn.env = std::move(environment);
    const auto pid = os::Spawn(spawn);
    ASSERT_TRUE(pid.ok()) << pid.status();
    processes_.insert(processes_.begin(), *pid);
  }
  grpc::Status Submit(const std::string& script, v1::Job* job) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    // The socket's file is there a moment before anybody listens.
    context.set_wait_for_ready(true);
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name("job");
    for (const std::string& word : {std::string("sh"), std::string("-c"), script}) {
      request.mutable_spec()->add_command(word);
    }
    request.mutable_spec()->set_working_dir(directory_.path());
    request.mutable_spec()->set_min_nodes(1);
    request.mutable_spec()->mutable_procs_per_node()->set_count(1);
    v1::SubmitJobResponse response;
    const grpc::Status status = jobs_->SubmitJob(&context, request, &response);
    *job = response.job();
    return status;
  }
  v1::Job Get(const std::string& id) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    v1::GetJobRequest request;
    request.set_job_id(id);
    v1::GetJobResponse response;
    EXPECT_TRUE(jobs_->GetJob(&context, request, &response).ok());
    return response.job();
  }
  // Empty while the state can be written.
  std::string ReadOnlyReason() {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    v1::DescribeClusterResponse response;
    const grpc::Status status =
        cluster_->DescribeCluster(&context, v1::DescribeClusterRequest(), &response);
    return status.ok() ? response.read_only_reason() : status.error_message();
  }

  testing::TemporaryDirectory directory_;
  const std::string flag_ = directory_ / "hangs";
  std::vector<pid_t> processes_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
};

TEST_P(HungDiskTest, RanksOutliveADiskThatHangsForLongerThanTheLease) {
  const std::string address = "unix:" + (directory_ / "s/c.sock");
  const std::string state = directory_ / "state";
  std::map<std::string, std::string> environment = {
      {"LD_PRELOAD", Program("tests/worker/libhanging_files.so")},
      {"MESHRUN_HANG_BELOW", state},
      {"MESHRUN_HANG_WHILE", flag_}};
  if (GetParam()) environment["MESHRUN_HANG_ONLY"] = "sync";
  Spawn({Program("coordinator/meshrun-coordinator"), "--listen", address, "--state-dir", state,
         "--lease", "1500ms", "--heartbeat", "200ms"},
        environment);
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(directory_ / "s/c.sock"); }));
  Spawn({Program("worker/meshrun-worker"), "--coordinator", address, "--state-dir",
         directory_ / "w", "--name", "here"});
  const auto channel = *rpc::MakeChannel("test", address, {});
  jobs_ = v1::JobService::NewStub(channel);
  cluster_ = v1::ClusterService::NewStub(channel);
  v1::Job running;
  ASSERT_TRUE(Submit("echo $$ > pid; exec sleep 1000", &running).ok());
  const pid_t rank = AwaitPid(directory_ / "pid");
  ASSERT_TRUE(Eventually([&] { return Get(running.job_id()).state() == v1::JOB_STATE_RUNNING; }));

  ASSERT_TRUE(os::WriteFileAtomically(flag_, "").ok());
  grpc::Status status;
  v1::Job during;
  std::thread submit([&] { status = Submit("exit 0", &during); });
  // Read-only after 3 s: two leases.
  EXPECT_TRUE(Eventually([&] { return !ReadOnlyReason().empty(); }));
  EXPECT_THAT(ReadOnlyReason(), ContainsRegex("its disk has not answered for ([3-9]|[1-9][0-9])"));
  v1::Job refused;
  EXPECT_EQ(Submit("exit 0", &refused).error_code(), grpc::StatusCode::UNAVAILABLE);
  // Read beside the commit that hangs.
  if (GetParam()) {
    EXPECT_EQ(Get(running.job_id()).state(), v1::JOB_STATE_RUNNING);
  }
  std::filesystem::remove(flag_);
  submit.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(Eventually([&] { return Get(during.job_id()).state() == v1::JOB_STATE_SUCCEEDED; }));
  EXPECT_EQ(Get(running.job_id()).generation(), 1u);
  EXPECT_EQ(Get(running.job_id()).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(::kill(rank, 0), 0);
}

INSTANTIATE_TEST_SUITE_P(ReadsAnswer, HungDiskTest, ::testing::Bool());

}  // namespace
}  // namespace meshrun::coordinator
