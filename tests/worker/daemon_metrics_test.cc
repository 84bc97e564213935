// What the worker daemon tells Prometheus, with real ranks and the coordinator in the test's hands.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <string>

#include "core/os/files.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "tests/worker/support/daemon_fixture.h"

namespace meshrun::worker {
namespace {

using testing::DaemonTest;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::kJob;
using ::testing::Not;

class DaemonMetricsTest : public DaemonTest {
 protected:
  void StartServing() {
    StartDaemon({"--http", "unix:" + (directory_ / "http.sock")});
    AwaitHello();
  }
  std::string Metrics() {
    httplib::Client client(directory_ / "http.sock");
    client.set_address_family(AF_UNIX);
    const auto answer = client.Get("/metrics");
    return answer && answer->status == 200 ? answer->body : "";
  }
  bool Tells(const std::string& line) {
    return Metrics().find("\n" + line + "\n") != std::string::npos;
  }
  bool WillTell(const std::string& line) {
    return Eventually([&] { return Tells(line); });
  }
  // Ranks 0 and 1, which run until "go0" and "go1" are there.
  void RunTwo() {
    StartServing();
    EXPECT_TRUE(Prepare(PrepareFor(kUntilGo, 2)).ok());
    Start();
    std::string address;
    ASSERT_TRUE(Eventually([&] {
      const auto output = os::ReadFile(Stdout(0));
      if (!output.ok()) return false;
      std::istringstream lines(*output);
      return std::getline(lines, token_) && std::getline(lines, address) && output->ends_with('\n');
    }));
    agent_ =
        v1::AgentService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }
  // Once the generation has begun.
  void ReportWaited(uint64_t generation, int rank, double seconds) {
    v1::ReportProgressRequest request;
    request.mutable_fence()->set_job_id(kJob);
    request.mutable_fence()->set_generation(generation);
    request.set_rank(rank);
    request.set_token(token_);
    request.mutable_progress()->set_waited_seconds(seconds);
    grpc::Status status;
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      rpc::SetTimeout(context, testing::kPatience);
      v1::ReportProgressResponse response;
      status = agent_->ReportProgress(&context, request, &response);
      return status.ok();
    })) << status.error_message();
  }

  static constexpr char kUntilGo[] =
      "echo $MESHRUN_TOKEN; echo $MESHRUN_AGENT; while [ ! -e go$RANK ]; do sleep 0.01; done";
  std::string token_;
  std::unique_ptr<v1::AgentService::Stub> agent_;
};

// A total belongs to a process: another one's must not stand in its series.
TEST_F(DaemonMetricsTest, AProcessThatLivesOnAsAnotherRankKeepsItsPlace) {
  RunTwo();
  const std::string waited = "meshrun_rank_collective_wait_seconds_total";
  ReportWaited(1, 0, 50);
  ReportWaited(1, 1, 3000);
  EXPECT_TRUE(WillTell(waited + R"({place="0",user="",rank="0"} 50)"));
  EXPECT_TRUE(WillTell(waited + R"({place="1",user="",rank="1"} 3000)"));
  // Rank 1 lives on as rank 0, beside a new process, which is rank 1.
  ASSERT_TRUE(os::WriteFileAtomically(directory_ / "go0", "").ok());
  EXPECT_EQ(AwaitRankExit().rank(), 0);
  v1::Prepare next = PrepareFor("exec sleep 600", 2);
  next.mutable_ranks(0)->set_process_generation(1);
  next.mutable_ranks(0)->set_process_rank(1);
  next.mutable_ranks(1)->set_process_generation(2);
  next.mutable_ranks(1)->set_process_rank(1);
  EXPECT_TRUE(Prepare(next, 2).ok());
  Start(2);
  ReportWaited(2, 0, 3001);
  ReportWaited(2, 1, 2);
  EXPECT_TRUE(WillTell(waited + R"({place="1",user="",rank="0"} 3001)"));
  EXPECT_TRUE(WillTell(waited + R"({place="0",user="",rank="1"} 2)"));
  EXPECT_THAT(Metrics(), Not(HasSubstr(R"(place="1",user="",rank="1")")));
}

// Its errors are counted in the series that stood at 0, or no alert sees them.
TEST_F(DaemonMetricsTest, AGpuThatFallsOffTheBusKeepsItsLabels) {
  const std::string state = directory_ / "gpus";
  const std::string driver = directory_ / "driver";
  std::filesystem::create_directory(driver);
  std::filesystem::create_symlink(
      std::filesystem::absolute("tests/acceptance/ranks/libtest_gpus.so"),
      driver + "/libnvidia-ml.so.1");
  environment_ = {{"LD_LIBRARY_PATH", driver}, {"MESHRUN_TEST_GPU_STATE", state}};
  ASSERT_TRUE(os::WriteFileAtomically(state, "temperature 50\n").ok());
  StartServing();
  const std::string labels = R"({gpu="0",uuid="GPU-6d657368-7275-6e00-0000-000000000001"} )";
  EXPECT_TRUE(Eventually([&] {
    return Tells("meshrun_gpu_temperature_celsius" + labels + "50") &&
           Tells("meshrun_gpu_xid_errors_total" + labels + "0");
  }));
  ASSERT_TRUE(os::WriteFileAtomically(state, "lost 1\n").ok());
  EXPECT_TRUE(Eventually([&] {
    const std::string text = Metrics();
    return !text.empty() && text.find("\nmeshrun_gpu_temperature_celsius{") == std::string::npos;
  }));
  ASSERT_TRUE(os::WriteFileAtomically(state, "lost 1\nxid 79\n").ok());
  EXPECT_TRUE(Eventually([&] { return Tells("meshrun_gpu_last_xid" + labels + "79"); }));
  EXPECT_TRUE(Tells("meshrun_gpu_xid_errors_total" + labels + "1")) << Metrics();
  EXPECT_THAT(Metrics(), Not(HasSubstr("uuid=\"\"")));
}

}  // namespace
}  // namespace meshrun::worker
