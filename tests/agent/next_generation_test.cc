// A process that lives on from one generation into the next, and the job's checkpoint right, as its
// agent tells them; the daemon is the test's.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "agent/background.h"
#include "agent/daemon_agent.h"
#include "core/os/fd.h"
#include "tests/agent/support/fake_daemon.h"
#include "tests/worker/support/processes.h"

namespace meshrun::agent {
namespace {

using ::testing::HasSubstr;

constexpr Milliseconds kLong(30000);

class NextGenerationTest : public ::testing::Test {
 protected:
  NextGenerationTest() {
    const std::string address = "unix:" + (directory_ / "agent.sock");
    server_ = Serve(daemon_, address);
    sockaddr_un reports = {};
    reports.sun_family = AF_UNIX;
    std::strcpy(reports.sun_path, (directory_ / "r3.sock").c_str());
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&reports), sizeof(reports)), 0);
    auto agent = DaemonAgent::Connect({.address = address,
                                       .job_id = "job",
                                       .generation = 2,
                                       .rank = 3,
                                       .token = kToken,
                                       .report_socket = directory_ / "r3.sock"},
                                      kLong);
    EXPECT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
  }

  // What a report of the agent tells.
  v1::Progress Told(Agent& agent) {
    agent.Report({.step = 1});
    char buffer[1024];
    const ssize_t n = ::recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    v1::Progress told;
    EXPECT_TRUE(n > 0 && google::protobuf::util::JsonStringToMessage(
                             std::string(buffer, static_cast<size_t>(n)), &told)
                             .ok());
    return told;
  }

  testing::TemporaryDirectory directory_;
  os::UniqueFd socket_{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  FakeDaemon daemon_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Agent> agent_;
};

TEST_F(NextGenerationTest, FindsThePlaceOfThisProcessInTheGenerationThatHolds) {
  EXPECT_FALSE(daemon_.in_process(2));
  EXPECT_TRUE(agent_->SetInProcess(true, kLong).ok());
  EXPECT_TRUE(daemon_.in_process(2));
  // Neither a stop nor a generation yet.
  EXPECT_EQ(agent_->NextGeneration(Milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  daemon_.Begin(3);
  // Over before this process could register.
  EXPECT_EQ(agent_->NextGeneration(kLong).status().code(), absl::StatusCode::kDeadlineExceeded);
  auto next = agent_->NextGeneration(kLong);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->assignment().generation, 4u);
  EXPECT_EQ((*next)->assignment().rank, 1);
  EXPECT_TRUE(daemon_.in_process(4));
}

// The process is the same: what it has sent and waited goes on, and it waits for its generation.
TEST_F(NextGenerationTest, TotalsOfTheProcessGoOnInItsNextGeneration) {
  agent_->SetCollectives(true, std::chrono::seconds(1));
  agent_->SetCollectives(false, std::chrono::seconds(3));
  agent_->AddSent(1000);
  EXPECT_EQ(Told(*agent_).waited_seconds(), 2);
  // Never told to have ended: it ends with its world.
  agent_->SetCollectives(true, meshrun::Clock::Real().SteadyNow());
  constexpr Milliseconds kNone(200);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(agent_->NextGeneration(kNone).ok());
  daemon_.Begin(4);
  auto next = agent_->NextGeneration(kLong);
  ASSERT_TRUE(next.ok()) << next.status();
  agent_.reset();
  const v1::Progress first = Told(**next);
  EXPECT_EQ(first.collective_bytes(), 1000u);
  EXPECT_GE(first.waited_seconds(), 2.2);
  EXPECT_EQ(Told(**next).waited_seconds(), first.waited_seconds()) << "nothing waits any more";
  (*next)->SetCollectives(true, meshrun::Clock::Real().SteadyNow());
  (*next)->AddSent(24);
  (*next)->SetCollectives(false, meshrun::Clock::Real().SteadyNow());
  const v1::Progress last = Told(**next);
  EXPECT_EQ(last.collective_bytes(), 1024u);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(last.waited_seconds(), 2 + took.count());
}

TEST_F(NextGenerationTest, CallsOfSeveralThreadsWaitForEachMomentOnce) {
  agent_->SetCollectives(false, meshrun::Clock::Real().SteadyNow());
  const auto begin = std::chrono::steady_clock::now();
  const auto wait = [&](const std::string& barrier, Milliseconds timeout) {
    EXPECT_FALSE(agent_->Barrier(barrier, {}, timeout).ok());
  };
  std::thread background([&] {
    const InBackground beside;
    wait("never", Milliseconds(900));
  });
  std::thread other([&] { wait("never", Milliseconds(300)); });
  agent_->SetCollectives(true, meshrun::Clock::Real().SteadyNow());
  wait("never", Milliseconds(300));
  agent_->SetCollectives(false, meshrun::Clock::Real().SteadyNow());
  other.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const double waited = Told(*agent_).waited_seconds();
  EXPECT_GE(waited, 0.25);
  EXPECT_LE(waited, took.count());
  background.join();
  EXPECT_EQ(Told(*agent_).waited_seconds(), waited) << "the training did not wait for that";
}

// The news of what ended the generation are lost with the coordinator that had them.
TEST_F(NextGenerationTest, AListenerHearsThatAnotherGenerationHasBegunThoughNoRankWasLost) {
  daemon_.Begin(4);
  std::promise<uint64_t> superseded;
  // A stream that is begun anew says it again.
  agent_->Watch({.on_superseded = [&, told = false](uint64_t generation) mutable {
    if (!std::exchange(told, true)) superseded.set_value(generation);
  }});
  auto heard = superseded.get_future();
  ASSERT_EQ(heard.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(heard.get(), 4u);
}

TEST_F(NextGenerationTest, AStopIsNoGeneration) {
  daemon_.StopGeneration("its node is drained");
  const absl::Status status = agent_->NextGeneration(kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its node is drained"));
}

TEST_F(NextGenerationTest, SaysThatItStandsStill) {
  EXPECT_TRUE(agent_->ReportQuiesced(17, kLong).ok());
  EXPECT_EQ(daemon_.quiesced(), 17);
}

TEST_F(NextGenerationTest, ReportsThatItHasFinishedUntilTheReportIsTaken) {
  EXPECT_EQ(*agent_->HasFinished(kLong), false);
  // The first attempt reaches nobody.
  EXPECT_TRUE(agent_->ReportFinished(kLong).ok());
  EXPECT_EQ(daemon_.finished(), std::set<int>{3});
  EXPECT_EQ(*agent_->HasFinished(kLong), true);
  daemon_.Begin(3);
  const absl::Status refused = agent_->ReportFinished(kLong);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("generation 2 has failed"));
}

TEST_F(NextGenerationTest, CommitsACheckpointOnTopOfTheNewest) {
  EXPECT_FALSE(agent_->CommittedCheckpoint("/ckpt")->has_value());
  EXPECT_TRUE(agent_->CommitCheckpoint("/ckpt", 100, "digest", ".step-100", std::nullopt).ok());
  const auto newest = agent_->CommittedCheckpoint("/ckpt");
  ASSERT_TRUE(newest.ok() && newest->has_value());
  EXPECT_EQ((*newest)->step, 100);
  EXPECT_EQ((*newest)->temporary, ".step-100");
  EXPECT_EQ(agent_->CommitCheckpoint("/ckpt", 200, "digest", ".step-200", 50).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(agent_->CommitCheckpoint("/ckpt", 200, "digest", ".step-200", 100).ok());
}

}  // namespace
}  // namespace meshrun::agent
