// A process that lives on from one generation into the next, and the job's checkpoint right, as its
// agent tells them; the daemon is the test's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "agent/daemon_agent.h"
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
    auto agent = DaemonAgent::Connect(
        {.address = address, .job_id = "job", .generation = 2, .rank = 3, .token = kToken}, kLong);
    EXPECT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
  }

  testing::TemporaryDirectory directory_;
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
