// The worker daemon while a file system hangs: a preloaded library holds every call below one
// directory.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <sstream>

#include "core/os/files.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "tests/worker/support/daemon_fixture.h"

namespace meshrun::worker {
namespace {

using testing::AwaitPid;
using testing::DaemonTest;
using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::kJob;
using Request = v1::OpenSessionRequest;

constexpr char kHung[] = "hung-p2q8r1";

class DaemonHangTest : public DaemonTest {
 protected:
  // A daemon for which everything below `directory` hangs, beside a job whose rank runs.
  void StartDaemonBeside(const std::string& directory) {
    ASSERT_TRUE(os::WriteFileAtomically(flag_, "").ok());
    const std::string library =
        std::filesystem::absolute("tests/worker/libhanging_files.so").string();
    environment_ = {
        {"LD_PRELOAD", library}, {"MESHRUN_HANG_BELOW", directory}, {"MESHRUN_HANG_WHILE", flag_}};
    StartDaemon({"--file-timeout", "2s"});
    AwaitHello();
    ASSERT_TRUE(Prepare(PrepareFor("echo $$ > pid; exec sleep 1000")).ok());
    Start();
    rank_ = AwaitPid(directory_ / "pid");
  }
  // A daemon for whose records of rank processes the file system hangs later, and one rank.
  void StartDaemonWithRank(const std::string& file_timeout) {
    environment_ = {
        {"LD_PRELOAD", std::filesystem::absolute("tests/worker/libhanging_files.so").string()},
        {"MESHRUN_HANG_BELOW", State("/g/")},
        {"MESHRUN_HANG_WHILE", flag_}};
    file_timeout_ = file_timeout;
    StartDaemonAgain();
    ASSERT_TRUE(
        Prepare(PrepareFor("echo $MESHRUN_TOKEN; echo $MESHRUN_AGENT; exec sleep 1000")).ok());
    Start();
    ASSERT_TRUE(Eventually([&] {
      const auto output = os::ReadFile(Stdout(0));
      if (!output.ok()) return false;
      std::istringstream lines(*output);
      return std::getline(lines, token_) && std::getline(lines, address_) &&
             output->ends_with('\n');
    }));
    agent_ = v1::AgentService::NewStub(
        grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  v1::RunningGeneration StartDaemonAgain() {
    StartDaemon({"--file-timeout", file_timeout_});
    const Request hello = AwaitHello();
    incarnation_ = hello.fence().incarnation();
    return hello.hello().running_size() == 1 ? hello.hello().running(0) : v1::RunningGeneration();
  }
  void KillDaemon() {
    ::kill(daemon_, SIGKILL);
    testing::AwaitExit(daemon_);
  }
  template <typename Message>
  Message Of() {
    Message request;
    request.mutable_fence()->set_job_id(kJob);
    request.mutable_fence()->set_generation(1);
    request.set_token(token_);
    return request;
  }
  grpc::StatusCode Register() {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    context.set_wait_for_ready(true);
    auto request = Of<v1::RegisterRankRequest>();
    request.set_in_process(true);
    v1::RegisterRankResponse response;
    return agent_->RegisterRank(&context, request, &response).error_code();
  }
  grpc::StatusCode StandStill() {
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    context.set_wait_for_ready(true);
    auto request = Of<v1::ReportQuiescedRequest>();
    request.set_step(17);
    v1::ReportQuiescedResponse response;
    return agent_->ReportQuiesced(&context, request, &response).error_code();
  }
  void Hang() { ASSERT_TRUE(os::WriteFileAtomically(flag_, "").ok()); }
  void SendPrepare(const v1::Prepare& prepare, uint64_t generation = 1) {
    v1::OpenSessionResponse message;
    *message.mutable_prepare() = prepare;
    coordinator_->Send(message, kHung, generation);
  }
  v1::PrepareResult AwaitResult(const std::string& job) {
    const auto result = coordinator_->Await([&](const Request& message) {
      return message.has_prepare_result() && message.fence().job_id() == job;
    });
    EXPECT_TRUE(result);
    return result ? result->prepare_result() : v1::PrepareResult();
  }
  void ExpectTheOtherJobLives() {
    ExpectHeartbeats();
    EXPECT_EQ(::kill(rank_, 0), 0);
  }
  void ExpectHeartbeats() {
    // Said after the hang began.
    uint64_t last = 0;
    for (int i = 0; i < 3; ++i) {
      const auto heartbeat = coordinator_->Await([&](const Request& message) {
        return message.has_heartbeat() && message.heartbeat().sequence() > last;
      });
      ASSERT_TRUE(heartbeat);
      last = heartbeat->heartbeat().sequence();
    }
  }
  void Release() { std::filesystem::remove(flag_); }

  std::string flag_ = directory_ / "hangs";
  pid_t rank_ = -1;
  std::string file_timeout_, token_, address_;
  uint64_t incarnation_ = 0;
  std::unique_ptr<v1::AgentService::Stub> agent_;
};

TEST_F(DaemonHangTest, AHangingWorkingDirectoryIsAnErrorOfItsJobAlone) {
  const std::string nfs = directory_ / "nfs";
  std::filesystem::create_directory(nfs);
  StartDaemonBeside(nfs);
  v1::Prepare prepare = PrepareFor("exit 0");
  prepare.mutable_spec()->set_working_dir(nfs);
  SendPrepare(prepare);
  const v1::PrepareResult result = AwaitResult(kHung);
  EXPECT_FALSE(result.ok());
  EXPECT_FALSE(result.bad_command());
  EXPECT_THAT(result.error(), HasSubstr("working directory " + nfs + " has not answered for"));
  ExpectTheOtherJobLives();
  // Nothing stays of it, and the same job can come again.
  Release();
  SendPrepare(prepare, 2);
  EXPECT_TRUE(AwaitResult(kHung).ok());
}

TEST_F(DaemonHangTest, AHangingDirectoryOfAJobsFilesHoldsNoOtherJob) {
  const std::string logs = State("/logs/") + kHung;
  StartDaemonBeside(logs);
  SendPrepare(PrepareFor("exit 0"));
  const v1::PrepareResult result = AwaitResult(kHung);
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(result.error(), HasSubstr(logs + "/1 has not answered for"));
  ExpectTheOtherJobLives();
  // Another generation of the other job is prepared meanwhile, in the place of the one that runs,
  // and its end removes its files.
  EXPECT_TRUE(Prepare(PrepareFor("exit 5"), 2).ok());
  EXPECT_TRUE(AwaitRankExit().teardown());
  Start(2);
  EXPECT_EQ(AwaitRankExit().exit_code(), 5);
  Release();
  // What was given up is tidied away.
  SendPrepare(PrepareFor("exit 0"), 2);
  EXPECT_TRUE(AwaitResult(kHung).ok());
}

// A daemon that is killed before it has written what a rank said does not know it when it is
// started again, so the rank must not go on as if it did.
TEST_F(DaemonHangTest, ARankIsAnsweredWhenAnotherDaemonWouldKnowWhatItSaid) {
  StartDaemonWithRank("1h");
  Hang();
  auto call = std::async(std::launch::async, [&] { return Register(); });
  ASSERT_TRUE(coordinator_->AwaitKind(Request::kRanksJoined));
  KillDaemon();
  EXPECT_EQ(call.get(), grpc::StatusCode::UNAVAILABLE);
  Release();
  EXPECT_EQ(StartDaemonAgain().joined().ranks_size(), 0);
  EXPECT_EQ(Register(), grpc::StatusCode::OK);
  KillDaemon();
  EXPECT_THAT(StartDaemonAgain().joined().in_process(), ElementsAre(0));
  // The same of a rank that stands still.
  Hang();
  call = std::async(std::launch::async, [&] { return StandStill(); });
  ASSERT_TRUE(coordinator_->AwaitKind(Request::kRanksQuiesced));
  KillDaemon();
  EXPECT_EQ(call.get(), grpc::StatusCode::UNAVAILABLE);
  Release();
  StartDaemonAgain();
  EXPECT_EQ(StandStill(), grpc::StatusCode::OK);
  KillDaemon();
  StartDaemonAgain();
  const auto quiesced = coordinator_->Await([&](const Request& message) {
    return message.has_ranks_quiesced() && message.fence().incarnation() == incarnation_;
  });
  ASSERT_TRUE(quiesced);
  EXPECT_EQ(quiesced->ranks_quiesced().steps().at(0), 17);
}

TEST_F(DaemonHangTest, ARankGoesOnWhereItsRecordHangsAndNoHeartbeatWaits) {
  StartDaemonWithRank("2s");
  Hang();
  auto other = std::async(std::launch::async, [&] { return StandStill(); });
  EXPECT_EQ(Register(), grpc::StatusCode::OK);
  EXPECT_EQ(other.get(), grpc::StatusCode::OK);
  ExpectHeartbeats();
  Release();
}

}  // namespace
}  // namespace meshrun::worker
