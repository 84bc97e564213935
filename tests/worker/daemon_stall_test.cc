// A worker daemon that stands still, under the probes that deploy/ sets up.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>

#include "core/exit_codes.h"
#include "tests/worker/support/daemon_fixture.h"

namespace meshrun::worker {
namespace {

using std::chrono::milliseconds;
using testing::AwaitPid;
using testing::DaemonTest;
using testing::Eventually;
using testing::FakeCoordinator;

class DaemonStallTest : public DaemonTest {
 protected:
  // As a probe of a pod asks.
  int Probe(const std::string& service) {
    os::SpawnOptions spawn;
    spawn.argv = {std::filesystem::absolute("deploy/probe/meshrun-probe").string(),
                  "--timeout",
                  "0.3",
                  "--service",
                  service,
                  "unix:" + State("/agent.sock")};
    const auto pid = os::Spawn(spawn);
    EXPECT_TRUE(pid.ok()) << pid.status();
    return pid.ok() ? WEXITSTATUS(testing::AwaitExit(*pid)) : -1;
  }
};

TEST_F(DaemonStallTest, IsNotReadyMeanwhileAndEndsNoRank) {
  coordinator_->Shutdown();
  coordinator_ = std::make_unique<FakeCoordinator>(
      FakeCoordinator::Options{.lease = milliseconds(500), .address = CoordinatorAddress()});
  RunOnDaemon("echo $$ > pid; exec sleep 1000");
  const pid_t rank = AwaitPid(directory_ / "pid");
  EXPECT_TRUE(Eventually([&] { return Probe("meshrun.ready") == kExitOk; }));
  EXPECT_TRUE(Eventually([&] { return Probe("") == kExitOk; }));
  // Three leases: each probe waits for its timeout. Pods are killed after 60 such answers.
  ::kill(daemon_, SIGSTOP);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Probe("meshrun.ready"), kExitTryAgain);
  ::kill(daemon_, SIGCONT);
  EXPECT_TRUE(Eventually([&] { return Probe("meshrun.ready") == kExitOk; }));
  EXPECT_TRUE(Eventually([&] { return Probe("") == kExitOk; }));
  EXPECT_EQ(::kill(rank, 0), 0);
}

}  // namespace
}  // namespace meshrun::worker
