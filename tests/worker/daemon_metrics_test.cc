// What the worker daemon tells Prometheus, with real ranks and the coordinator in the test's hands.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <httplib.h>

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
  void ReportWaited(uint64_t generation, int rank, double seconds) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    v1::ReportProgressRequest request;
    request.mutable_fence()->set_job_id(kJob);
    request.mutable_fence()->set_generation(generation);
    request.set_rank(rank);
    request.set_token(token_);
    request.mutable_progress()->set_waited_seconds(seconds);
    v1::ReportProgressResponse response;
    const grpc::Status status = agent_->ReportProgress(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
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
  EXPECT_TRUE(Tells(waited + R"({place="0",user="",rank="0"} 50)"));
  EXPECT_TRUE(Tells(waited + R"({place="1",user="",rank="1"} 3000)"));
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
  EXPECT_TRUE(Tells(waited + R"({place="1",user="",rank="0"} 3001)"));
  EXPECT_TRUE(Tells(waited + R"({place="0",user="",rank="1"} 2)"));
  EXPECT_THAT(Metrics(), Not(HasSubstr(R"(place="1",user="",rank="1")")));
}

}  // namespace
}  // namespace meshrun::worker
