#include "core/rpc/renewed_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"

namespace meshrun::rpc {
namespace {

const absl::Status kUnreached = absl::UnavailableError("connection refused");
const absl::Status kRefused = absl::UnauthenticatedError("the certificate is denied");

class RenewedChannelTest : public ::testing::Test {
 protected:
  explicit RenewedChannelTest(std::vector<std::string> addresses = {"unix:/a"}, bool chooses = true)
      : chooses_(chooses), choice_(std::make_shared<LeaderChoice>(std::move(addresses), clock_)) {}
  void SetUp() override {
    auto made = RenewedChannel::Create(
        {.choice = choice_,
         .chooses = chooses_,
         .make = [this](const std::string& address) { return Make(address); },
         .run = [this](std::function<void()> work) { queued_.push_back(std::move(work)); },
         .clock = clock_});
    ASSERT_TRUE(made.ok());
    channel_ = *std::move(made);
  }
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Make(const std::string& address) {
    ++made_;
    made_to_ = address;
    if (fails_) return absl::NotFoundError("no certificate file");
    return grpc::CreateChannel("unix:/nowhere", grpc::InsecureChannelCredentials());
  }
  // What OnEnd hands to another thread.
  size_t RunQueued() {
    const std::vector<std::function<void()>> work = std::exchange(queued_, {});
    for (const auto& each : work) each();
    return work.size();
  }

  void OnEnd(const absl::Status& status) { channel_->OnEnd(status, channel_->Get()); }

  FakeClock clock_;
  const bool chooses_;
  const std::shared_ptr<LeaderChoice> choice_;
  std::vector<std::function<void()>> queued_;
  bool fails_ = false;
  int made_ = 0;
  std::string made_to_;
  std::shared_ptr<RenewedChannel> channel_;
};

TEST_F(RenewedChannelTest, OnlyARefusedCertificateMakesANewOne) {
  const auto first = channel_->Get();
  OnEnd(absl::OkStatus());
  OnEnd(absl::UnavailableError("its host is gone"));
  EXPECT_EQ(RunQueued(), 0u);
  EXPECT_EQ(channel_->Get(), first);
  OnEnd(kRefused);
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
  for (int i = 0; i < 10; ++i) OnEnd(kRefused);
  EXPECT_EQ(RunQueued(), 1u);
  OnEnd(kRefused);
  EXPECT_EQ(RunQueued(), 0u);
  EXPECT_EQ(made_, 2);
}

// Twice: the second certificate is refused as well, and a third one is there.
TEST_F(RenewedChannelTest, AnAttemptThatFailsIsFollowedByOthers) {
  const auto first = channel_->Get();
  fails_ = true;
  OnEnd(kRefused);
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_EQ(channel_->Get(), first);
  fails_ = false;
  auto last = first;
  for (int i = 0; i < 2; ++i) {
    clock_.Advance(RenewedChannel::kLeastDistance - std::chrono::nanoseconds(1));
    OnEnd(kRefused);
    EXPECT_EQ(RunQueued(), 0u);
    clock_.Advance(std::chrono::nanoseconds(1));
    OnEnd(kRefused);
    EXPECT_EQ(RunQueued(), 1u);
    EXPECT_NE(channel_->Get(), last);
    last = channel_->Get();
  }
}

TEST_F(RenewedChannelTest, WhatAnOlderConnectionCameToChangesNothing) {
  const auto first = channel_->Get();
  channel_->OnEnd(kRefused, first);
  // The new one is being made.
  channel_->OnEnd(kUnreached, first);
  EXPECT_EQ(RunQueued(), 1u);
  clock_.Advance(RenewedChannel::kLeastDistance);
  channel_->OnEnd(kRefused, first);
  EXPECT_EQ(RunQueued(), 0u);
}

class FollowingChannelTest : public RenewedChannelTest {
 protected:
  FollowingChannelTest() : RenewedChannelTest({"unix:/a", "unix:/b"}) {}
};

TEST_F(FollowingChannelTest, TheNextCallsGoToTheOneThatIsChosen) {
  const auto first = channel_->Get();
  OnEnd(kUnreached);
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_EQ(made_to_, "unix:/b");
  EXPECT_NE(channel_->Get(), first);
}

TEST_F(FollowingChannelTest, WhatAnotherChannelFoundOutHoldsForThisOne) {
  choice_->OnUnreached("unix:/a");
  const auto first = channel_->Get();
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_NE(channel_->Get(), first);
  EXPECT_EQ(made_to_, "unix:/b");
}

TEST_F(FollowingChannelTest, ASilentConnectionIsLeftForAnotherAddress) {
  channel_->Leave();
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_EQ(made_to_, "unix:/b");
}

TEST_F(FollowingChannelTest, ARenewedCertificateIsShownAtTheSameAddress) {
  const auto first = channel_->Get();
  channel_->Replace();
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_EQ(made_to_, "unix:/a");
  EXPECT_NE(channel_->Get(), first);
}

// A leader, say, that only TLS reaches.
TEST_F(FollowingChannelTest, AnAddressToWhichNoChannelCanBeMadeIsLeft) {
  const auto first = channel_->Get();
  fails_ = true;
  OnEnd(kUnreached);
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_EQ(choice_->address(), "unix:/a");
  EXPECT_EQ(channel_->Get(), first);
  EXPECT_EQ(RunQueued(), 0u);
}

// A worker's session alone finds out who leads: calls of its ranks come and go.
class FollowerChannelTest : public RenewedChannelTest {
 protected:
  FollowerChannelTest() : RenewedChannelTest({"unix:/a", "unix:/b"}, /*chooses=*/false) {}
};

TEST_F(FollowerChannelTest, ItsCallsChooseNothing) {
  OnEnd(kUnreached);
  EXPECT_EQ(RunQueued(), 0u);
  EXPECT_EQ(choice_->address(), "unix:/a");
  choice_->OnLeads("unix:/b");
  channel_->Get();
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_EQ(made_to_, "unix:/b");
}

// A certificate file, say, that is being replaced.
TEST_F(FollowerChannelTest, AChannelThatItCannotMakeMovesNobody) {
  choice_->OnLeads("unix:/b");
  fails_ = true;
  channel_->Get();
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_EQ(choice_->address(), "unix:/b");
  fails_ = false;
  channel_->Get();
  EXPECT_EQ(RunQueued(), 1u);
  EXPECT_EQ(made_to_, "unix:/b");
}

}  // namespace
}  // namespace meshrun::rpc
