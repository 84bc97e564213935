// A process that lives on from one generation into the next, and the job's checkpoint right, as its
// agent tells them; the daemon is the test's.
#include <gmock/gmock.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "agent/daemon_agent.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/agent_service.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"
#include "tests/worker/support/processes.h"

namespace meshrun::agent {
namespace {

using ::testing::HasSubstr;

constexpr Milliseconds kLong(30000);

// This process was rank 3 of generation 2. Generation 3 is over before it can register there; in
// generation 4 it is rank 1.
class FakeDaemon : public v1::AgentService::Service, public v1::StoreService::Service {
 public:
  grpc::Status RegisterRank(grpc::ServerContext*, const v1::RegisterRankRequest* request,
                            v1::RegisterRankResponse* response) override {
    std::lock_guard lock(mu_);
    if (request->fence().generation() == 3) {
      current_ = 4;
      return {grpc::StatusCode::FAILED_PRECONDITION, "generation 3 is over"};
    }
    in_process_[request->fence().generation()] = request->in_process();
    response->mutable_assignment()->set_rank(request->rank());
    response->set_world_size(4);
    return grpc::Status::OK;
  }
  grpc::Status WatchGeneration(grpc::ServerContext* context,
                               const v1::WatchGenerationRequest* request,
                               grpc::ServerWriter<v1::WatchGenerationResponse>* writer) override {
    v1::WatchGenerationResponse event;
    std::unique_lock lock(mu_);
    if (!stop_.empty()) {
      event.set_stopping(true);
      event.set_reason(stop_);
      writer->Write(event);
      return grpc::Status::OK;
    }
    if (request->fence().generation() >= current_) {
      lock.unlock();
      EXPECT_TRUE(testing::Eventually([&] { return context->IsCancelled(); }));
      return grpc::Status::CANCELLED;
    }
    event.mutable_new_generation()->mutable_fence()->set_generation(current_);
    event.mutable_new_generation()->mutable_assignment()->set_rank(current_ == 4 ? 1 : 2);
    writer->Write(event);
    return grpc::Status::OK;
  }
  grpc::Status ReportQuiesced(grpc::ServerContext*, const v1::ReportQuiescedRequest* request,
                              v1::ReportQuiescedResponse*) override {
    quiesced_ = request->step();
    return grpc::Status::OK;
  }
  grpc::Status ReportFinished(grpc::ServerContext*, const v1::ReportFinishedRequest* request,
                              v1::ReportFinishedResponse*) override {
    std::lock_guard lock(mu_);
    // A coordinator that is started again.
    if (finish_calls_++ == 0) return {grpc::StatusCode::UNAVAILABLE, "not yet"};
    if (request->fence().generation() < current_) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "generation 2 has failed"};
    }
    finished_.insert(request->rank());
    return grpc::Status::OK;
  }
  grpc::Status GetFinished(grpc::ServerContext*, const v1::GetFinishedRequest*,
                           v1::GetFinishedResponse* response) override {
    std::lock_guard lock(mu_);
    response->set_finished(!finished_.empty());
    return grpc::Status::OK;
  }
  std::set<int> finished() {
    std::lock_guard lock(mu_);
    return finished_;
  }
  grpc::Status CommitCheckpoint(grpc::ServerContext*, const v1::CommitCheckpointRequest* request,
                                v1::CommitCheckpointResponse*) override {
    if (request->has_expected_step() != commit_.has_value() ||
        (commit_ && commit_->step() != request->expected_step())) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "another one is the newest"};
    }
    commit_ = request->commit();
    return grpc::Status::OK;
  }
  grpc::Status GetCheckpoint(grpc::ServerContext*, const v1::GetCheckpointRequest*,
                             v1::GetCheckpointResponse* response) override {
    if (!commit_) return {grpc::StatusCode::NOT_FOUND, "none"};
    *response->mutable_commit() = *commit_;
    return grpc::Status::OK;
  }
  void Stop(const std::string& reason) {
    std::lock_guard lock(mu_);
    stop_ = reason;
  }
  void Begin(uint64_t generation) {
    std::lock_guard lock(mu_);
    current_ = generation;
  }
  bool in_process(uint64_t generation) {
    std::lock_guard lock(mu_);
    return in_process_[generation];
  }
  int64_t quiesced_ = -1;

 private:
  std::mutex mu_;
  uint64_t current_ = 2;
  std::string stop_;
  std::map<uint64_t, bool> in_process_;
  int finish_calls_ = 0;
  std::set<int> finished_;
  std::optional<v1::CheckpointCommit> commit_;
};

class NextGenerationTest : public ::testing::Test {
 protected:
  NextGenerationTest() {
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(builder);
    const std::string address = "unix:" + (directory_ / "agent.sock");
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<v1::AgentService::Service*>(&daemon_));
    builder.RegisterService(static_cast<v1::StoreService::Service*>(&daemon_));
    server_ = builder.BuildAndStart();
    auto agent = DaemonAgent::Connect(
        {.address = address, .job_id = "job", .generation = 2, .rank = 3, .token = "token"}, kLong);
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
  daemon_.Stop("its node is drained");
  const absl::Status status = agent_->NextGeneration(kLong).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its node is drained"));
}

TEST_F(NextGenerationTest, SaysThatItStandsStill) {
  EXPECT_TRUE(agent_->ReportQuiesced(17, kLong).ok());
  EXPECT_EQ(daemon_.quiesced_, 17);
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
