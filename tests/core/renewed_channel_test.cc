#include "core/rpc/renewed_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/clock.h"

namespace meshrun::rpc {
namespace {

const absl::Status kRefused = absl::UnauthenticatedError("the certificate is denied");

class RenewedChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = RenewedChannel::Create(
        [this] { return Make(); },
        [this](std::function<void()> work) { queued_.push_back(std::move(work)); }, clock_);
    ASSERT_TRUE(made.ok());
    channel_ = *std::move(made);
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Make() {
    ++made_;
    if (fails_) return absl::NotFoundError("no certificate file");
    return grpc::CreateChannel("unix:/nowhere", grpc::InsecureChannelCredentials());
  }
  // What OnEnd hands to another thread.
  size_t RunQueued() {
    const std::vector<std::function<void()>> work = std::exchange(queued_, {});
    for (const auto& each : work) each();
    return work.size();
  }

  FakeClock clock_;
  std::vector<std::function<void()>> queued_;
  bool fails_ = false;
  int made_ = 0;
  std::shared_ptr<RenewedChannel> channel_;
};

TEST_F(RenewedChannelTest, OnlyARefusedCertificateMakesANewOne) {
  const auto first = channel_->Get();
  channel_->OnEnd(absl::OkStatus());
  channel_->OnEnd(absl::UnavailableError("its host is gone"));
  EXPECT_EQ(RunQueued(), 0u);
  EXPECT_EQ(channel_->Get(), first);
  channel_->OnEnd(kRefused);
  EXPECT_EQ(channel_->Get(), first);
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_NE(channel_->Get(), first);
}

TEST_F(RenewedChannelTest, AConnectionThatStandsStillIsReplacedOnRequest) {
  const auto first = channel_->Get();
  channel_->Replace();
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_NE(channel_->Get(), first);
}

TEST_F(RenewedChannelTest, ManyRefusedCallsAreOneAttempt) {
  for (int i = 0; i < 10; ++i) channel_->OnEnd(kRefused);
  EXPECT_EQ(RunQueued(), 1u);
  channel_->OnEnd(kRefused);  // of a call that began before
  EXPECT_EQ(RunQueued(), 0u);
  EXPECT_EQ(made_, 2);
}

// Twice: the second certificate is refused as well, and a third one is there.
TEST_F(RenewedChannelTest, AnAttemptThatFailsIsFollowedByOthers) {
  const auto first = channel_->Get();
  fails_ = true;
  channel_->OnEnd(kRefused);
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_EQ(channel_->Get(), first);
  fails_ = false;
  auto last = first;
  for (int i = 0; i < 2; ++i) {
    clock_.Advance(RenewedChannel::kLeastDistance - std::chrono::nanoseconds(1));
    channel_->OnEnd(kRefused);
    EXPECT_EQ(RunQueued(), 0u);
    clock_.Advance(std::chrono::nanoseconds(1));
    channel_->OnEnd(kRefused);
    EXPECT_EQ(RunQueued(), 1u);
    EXPECT_NE(channel_->Get(), last);
    last = channel_->Get();
  }
}

}  // namespace
}  // namespace meshrun::rpc
