// The worker daemon while a file system hangs: a preloaded library holds every call below one
// directory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "core/os/files.h"
#include "tests/worker/support/daemon_fixture.h"

namespace meshrun::worker {
namespace {

using testing::AwaitPid;
using testing::DaemonTest;
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
    StartDaemon({"--file-timeout", "300ms"});
    AwaitHello();
    ASSERT_TRUE(Prepare(PrepareFor("echo $$ > pid; exec sleep 1000")).ok());
    Start();
    rank_ = AwaitPid(directory_ / "pid");
  }
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
    // Said after the hang began.
    uint64_t last = 0;
    for (int i = 0; i < 3; ++i) {
      const auto heartbeat = coordinator_->Await([&](const Request& message) {
        return message.has_heartbeat() && message.heartbeat().sequence() > last;
      });
      ASSERT_TRUE(heartbeat);
      last = heartbeat->heartbeat().sequence();
    }
    EXPECT_EQ(::kill(rank_, 0), 0);
  }
  void Release() { std::filesystem::remove(flag_); }

  std::string flag_ = directory_ / "hangs";
  pid_t rank_ = -1;
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
  // Another generation of the other job is prepared meanwhile, in the place of the one that runs, and
  // its end removes its files.
  EXPECT_TRUE(Prepare(PrepareFor("exit 5"), 2).ok());
  EXPECT_TRUE(AwaitRankExit().teardown());
  Start(2);
  EXPECT_EQ(AwaitRankExit().exit_code(), 5);
  Release();
  // What was given up is tidied away.
  SendPrepare(PrepareFor("exit 0"), 2);
  EXPECT_TRUE(AwaitResult(kHung).ok());
}

}  // namespace
}  // namespace meshrun::worker
