// The worker daemon as a process, with the coordinator in the test's hands.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/os/process.h"
#include "core/proto_time.h"
#include "tests/worker/support/fake_coordinator.h"
#include "tests/worker/support/processes.h"

namespace meshrun::testing {

inline constexpr char kJob[] = "geoid-k3x9w2";

class DaemonTest : public ::testing::Test {
 protected:
  using Request = v1::OpenSessionRequest;

  ~DaemonTest() override {
    if (daemon_ > 0) {
      ::kill(daemon_, SIGTERM);
      AwaitExit(daemon_);
    }
  }

  void StartDaemon(std::vector<std::string> flags = {}) {
    os::SpawnOptions spawn;
    spawn.argv = {program_, "--coordinator", coordinator_->address(), "--state-dir", State(""),
                  "--name", "here"};
    spawn.argv.insert(spawn.argv.end(), flags.begin(), flags.end());
    spawn.env = environment_;
    spawn.stderr_fd = log_.get();
    const auto pid = os::Spawn(spawn);
    ASSERT_TRUE(pid.ok()) << pid.status();
    daemon_ = *pid;
  }
  Request AwaitHello() {
    const auto hello = coordinator_->AwaitKind(Request::kHello);
    EXPECT_TRUE(hello);
    return hello.value_or(Request());
  }

  // One rank per script.
  v1::Prepare PrepareFor(const std::string& script, int ranks = 1) {
    v1::Prepare prepare;
    for (const std::string& word : {std::string("sh"), std::string("-c"), script}) {
      prepare.mutable_spec()->add_command(word);
    }
    prepare.mutable_spec()->set_working_dir(directory_.path());
    prepare.set_world_size(ranks);
    prepare.set_node_count(1);
    for (int rank = 0; rank < ranks; ++rank) {
      prepare.add_ranks()->set_rank(rank);
      prepare.mutable_ranks(rank)->set_local_rank(rank);
    }
    return prepare;
  }
  v1::PrepareResult Prepare(const v1::Prepare& prepare, uint64_t generation = 1) {
    v1::OpenSessionResponse message;
    *message.mutable_prepare() = prepare;
    coordinator_->Send(message, kJob, generation);
    const auto result = coordinator_->AwaitKind(Request::kPrepareResult);
    EXPECT_TRUE(result);
    return result ? result->prepare_result() : v1::PrepareResult();
  }
  std::map<int, int64_t> Start(uint64_t generation = 1) {
    v1::OpenSessionResponse message;
    message.mutable_start()->set_master_addr("127.0.0.1");
    message.mutable_start()->set_master_port(20001);
    coordinator_->Send(message, kJob, generation);
    const auto started = coordinator_->AwaitKind(Request::kRanksStarted);
    EXPECT_TRUE(started);
    if (!started) return {};
    return {started->ranks_started().pids().begin(), started->ranks_started().pids().end()};
  }
  // A daemon, and on it one rank of the script.
  void RunOnDaemon(const std::string& script) {
    StartDaemon();
    AwaitHello();
    Prepare(PrepareFor(script));
    Start();
  }
  void Stop(std::chrono::milliseconds grace, const std::string& reason) {
    v1::OpenSessionResponse message;
    *message.mutable_stop()->mutable_grace() = ToProtoDuration(grace);
    message.mutable_stop()->set_reason(reason);
    coordinator_->Send(message, kJob, 1);
  }
  v1::RankExit AwaitRankExit() {
    const auto exit = coordinator_->AwaitKind(Request::kRankExit);
    EXPECT_TRUE(exit);
    return exit ? exit->rank_exit() : v1::RankExit();
  }
  std::string CoordinatorAddress() const { return "unix:" + (directory_ / "c.sock"); }
  std::string State(const std::string& name) const { return directory_ / ("w" + name); }
  std::string Stdout(int rank) const {
    return State("/logs/" + std::string(kJob) + "/1/" + std::to_string(rank) + ".stdout.log");
  }

  std::string program_ = WorkerProgram();
  TemporaryDirectory directory_;
  std::unique_ptr<FakeCoordinator> coordinator_ =
      std::make_unique<FakeCoordinator>(FakeCoordinator::Options{.address = CoordinatorAddress()});
  // Added to the daemon's.
  std::map<std::string, std::string> environment_;
  // Where the daemon logs to; none: the test's own output.
  os::UniqueFd log_;
  pid_t daemon_ = -1;
};

}  // namespace meshrun::testing
