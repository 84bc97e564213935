// A session whose certificate is renewed: connections with the old certificate come to one
// coordinator that the test plays, those with the renewed one to another.
#include "worker/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/error_detail.h"
#include "core/os/boot_time.h"
#include "core/rpc/channel.h"
#include "core/rpc/renewed_channel.h"
#include "tests/worker/support/fake_coordinator.h"
#include "tests/worker/support/processes.h"
#include "worker/event_loop/event_loop.h"

namespace meshrun::worker {
namespace {

using testing::Eventually;
using testing::FakeCoordinator;
using Request = v1::OpenSessionRequest;

// Takes every coordinator, and runs nothing.
Session::Handler PlainHandler() {
  return {.check_address = [] { return absl::OkStatus(); },
          .hello = [] { return v1::Hello(); },
          .check_welcome = [](const v1::Welcome&) { return absl::OkStatus(); },
          .on_welcome = [](const v1::Welcome&, const v1::Hello&) {},
          .on_message = [](const v1::OpenSessionResponse&) {},
          .on_refused = [](const absl::Status&) { return false; }};
}

class RenewalTest : public ::testing::Test {
 protected:
  RenewalTest() {
    auto channel = rpc::RenewedChannel::Create(
        {.choice = rpc::LeaderChoice::Of("the coordinator"),
         .make = [this](const std::string&) { return rpc::MakeChannel("test", address_, {}); },
         .run = [](const std::function<void()>& work) { work(); }});
    EXPECT_TRUE(channel.ok()) << channel.status();
    Session::Handler handler = PlainHandler();
    handler.on_refused = [this](const absl::Status&) {
      ++refusals_;
      return false;
    };
    session_ =
        std::make_unique<Session>(loop_, *std::move(channel), /*incarnation=*/1, std::move(handler),
                                  /*term=*/0, /*renewal_interval=*/std::chrono::milliseconds(20));
  }
  ~RenewalTest() override {
    loop_.Post([this] { session_->Close(std::chrono::seconds(1), [this] { loop_.Stop(); }); });
    if (!thread_.joinable()) thread_ = std::thread([this] { loop_.Run(); });
    thread_.join();
  }

  std::unique_ptr<FakeCoordinator> Play(const std::string& name,
                                        FakeCoordinator::Options options = {}) {
    options.address = "unix:" + (directory_ / name);
    // No session is given up for its silence.
    options.lease = std::chrono::hours(1);
    return std::make_unique<FakeCoordinator>(std::move(options));
  }
  // Returns the number of the session with the old certificate once it is open.
  uint64_t Start() {
    old_ = Play("old");
    loop_.Post([this] { session_->Start(os::BootTimeNow()); });
    thread_ = std::thread([this] { loop_.Run(); });
    const uint64_t number = AwaitHello(*old_);
    EXPECT_TRUE(old_->AwaitKind(Request::kHeartbeat));
    return number;
  }
  void Renew() {
    loop_.Post([this] {
      address_ = "unix:" + (directory_ / "new");
      session_->Renew();
    });
  }
  // The number of its session; 0: none has come.
  static uint64_t AwaitHello(FakeCoordinator& coordinator) {
    const auto hello = coordinator.AwaitKind(Request::kHello);
    EXPECT_TRUE(hello);
    return hello.value_or(Request()).hello().session_number();
  }
  void ExpectThatTheOldSessionGoesOn() {
    old_->Forget();
    EXPECT_TRUE(old_->AwaitKind(Request::kHeartbeat));
    EXPECT_TRUE(old_->has_session());
  }
  void ExpectThatTheNewSessionHasReplacedIt() {
    EXPECT_TRUE(new_->AwaitKind(Request::kHeartbeat));
    EXPECT_TRUE(Eventually([this] { return !old_->has_session(); }));
    EXPECT_TRUE(new_->has_session());
  }

  testing::TemporaryDirectory directory_;
  std::atomic<bool> refuses_{false};
  std::atomic<int> refusals_{0};
  std::unique_ptr<FakeCoordinator> old_, new_;
  // Where the next connection goes: it shows the certificate that lies in the file now.
  std::string address_ = "unix:" + (directory_ / "old");
  EventLoop loop_;
  std::unique_ptr<Session> session_;
  std::thread thread_;
};

TEST_F(RenewalTest, TheOldSessionGoesOnUntilTheRenewedOneIsWelcome) {
  const uint64_t number = Start();
  new_ = Play("new", {.before_welcome = [this] { ExpectThatTheOldSessionGoesOn(); }});
  Renew();
  EXPECT_GT(AwaitHello(*new_), number);
  ExpectThatTheNewSessionHasReplacedIt();
}

TEST_F(RenewalTest, ARenewalThatIsRefusedIsTriedAgainWhileTheOldSessionGoesOn) {
  uint64_t number = Start();
  refuses_ = true;
  new_ = Play("new", {.answer = [this]() -> std::optional<absl::Status> {
                if (refuses_) return absl::PermissionDeniedError("another node's certificate");
                return absl::OkStatus();
              }});
  Renew();
  for (int i = 0; i < 2; ++i) {
    const uint64_t later = AwaitHello(*new_);
    EXPECT_GT(later, number);
    number = later;
    ExpectThatTheOldSessionGoesOn();
  }
  refuses_ = false;
  ExpectThatTheNewSessionHasReplacedIt();
  EXPECT_EQ(refusals_.load(), 0) << "the daemon has a session";
}

TEST_F(RenewalTest, ASessionThatWaitsForItsWelcomeBeginsAnewWithTheRenewedCertificate) {
  const uint64_t number = Start();
  new_ = Play("new");
  old_->Shutdown();
  old_ = Play("old", {.answer = [] { return std::optional<absl::Status>(); }});
  EXPECT_GT(AwaitHello(*old_), number);
  Renew();
  EXPECT_GT(AwaitHello(*new_), number);
  ExpectThatTheNewSessionHasReplacedIt();
  EXPECT_EQ(old_->received(), 0u);
}

// Two coordinators, of which one leads in each term.
class FollowingTest : public ::testing::Test {
 protected:
  FollowingTest() {
    auto channel = rpc::RenewedChannel::Create(
        {.choice = rpc::LeaderChoice::Of(Address("a") + "," + Address("b")),
         .make = [](const std::string& address) { return rpc::MakeChannel("test", address, {}); },
         .run = [](const std::function<void()>& work) { work(); }});
    EXPECT_TRUE(channel.ok()) << channel.status();
    Session::Handler handler = PlainHandler();
    handler.check_welcome = [](const v1::Welcome& welcome) {
      if (welcome.cluster_id() != "another") return absl::OkStatus();
      return absl::FailedPreconditionError("another cluster");
    };
    handler.on_refused = [this](const absl::Status& why) {
      refused_.set_value(why);
      return true;
    };
    session_ = std::make_unique<Session>(loop_, *std::move(channel), /*incarnation=*/1,
                                         std::move(handler));
  }
  ~FollowingTest() override {
    loop_.Post([this] { session_->Close(std::chrono::seconds(1), [this] { loop_.Stop(); }); });
    if (!thread_.joinable()) thread_ = std::thread([this] { loop_.Run(); });
    thread_.join();
  }

  std::string Address(const std::string& name) const { return "unix:" + (directory_ / name); }
  // A standby while `leads` is false; it names `leader`, if not empty.
  std::unique_ptr<FakeCoordinator> Play(const std::string& name, const std::atomic<bool>& leads,
                                        const std::string& leader, uint64_t term) {
    return std::make_unique<FakeCoordinator>(FakeCoordinator::Options{
        .term = term, .address = Address(name), .answer = [&leads, leader] {
          if (leads) return std::optional(absl::OkStatus());
          absl::Status status = absl::UnavailableError("is a standby");
          v1::ErrorDetail detail;
          detail.set_standby(true);
          detail.set_leader(leader);
          SetDetail(&status, detail);
          return std::optional(status);
        }});
  }
  void Start() {
    loop_.Post([this] { session_->Start(os::BootTimeNow()); });
    thread_ = std::thread([this] { loop_.Run(); });
  }

  testing::TemporaryDirectory directory_;
  // What the daemon ends with.
  std::promise<absl::Status> refused_;
  std::atomic<bool> a_leads_{false}, b_leads_{false};
  EventLoop loop_;
  std::unique_ptr<Session> session_;
  std::thread thread_;
};

TEST_F(FollowingTest, TheSessionIsWithTheOneThatAStandbyNames) {
  b_leads_ = true;
  const auto a = Play("a", a_leads_, Address("b"), 2);
  const auto b = Play("b", b_leads_, "", 2);
  Start();
  EXPECT_TRUE(b->AwaitKind(Request::kHeartbeat));
  EXPECT_FALSE(a->has_session());
}

TEST_F(FollowingTest, ASessionIsSoonAtTheNextLeader) {
  a_leads_ = true;
  auto a = Play("a", a_leads_, "", 1);
  const auto b = Play("b", b_leads_, Address("a"), 2);
  Start();
  ASSERT_TRUE(a->AwaitKind(Request::kHeartbeat));
  a.reset();
  // The standby knows of no other leader, until it is one.
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(b->AwaitKind(Request::kHello));
  b_leads_ = true;
  const auto elected = std::chrono::steady_clock::now();
  ASSERT_TRUE(b->AwaitKind(Request::kHeartbeat));
  EXPECT_LT(std::chrono::steady_clock::now() - elected, std::chrono::seconds(4));
}

// The kernel of a process that was stopped takes connections.
TEST_F(FollowingTest, ALeaderThatSaysNothingIsLeftForTheNext) {
  const auto a = std::make_unique<FakeCoordinator>(FakeCoordinator::Options{
      .address = Address("a"), .answer = [] { return std::optional<absl::Status>(); }});
  b_leads_ = true;
  const auto b = Play("b", b_leads_, "", 2);
  Start();
  ASSERT_TRUE(a->AwaitKind(Request::kHello));
  EXPECT_TRUE(b->AwaitKind(Request::kHeartbeat));
}

TEST_F(FollowingTest, ACoordinatorOfAnotherClusterIsPassedOver) {
  const FakeCoordinator a({.address = Address("a"), .cluster_id = "another"});
  b_leads_ = true;
  const auto b = Play("b", b_leads_, "", 1);
  Start();
  EXPECT_TRUE(b->AwaitKind(Request::kHeartbeat));
}

TEST_F(FollowingTest, OneOfAnotherClusterWithAnOlderTermIsPassedOver) {
  a_leads_ = true;
  auto a = Play("a", a_leads_, "", 7);
  Start();
  ASSERT_TRUE(a->AwaitKind(Request::kHeartbeat));
  a.reset();
  const FakeCoordinator b({.term = 1, .address = Address("b"), .cluster_id = "another"});
  a = Play("a", a_leads_, "", 7);
  EXPECT_TRUE(a->AwaitKind(Request::kHeartbeat));
}

TEST_F(FollowingTest, WhereEveryCoordinatorRefusesTheDaemonEnds) {
  const auto refuse = [] { return std::optional(absl::PermissionDeniedError("not this node")); };
  const FakeCoordinator a({.address = Address("a"), .answer = refuse});
  const FakeCoordinator b({.address = Address("b"), .answer = refuse});
  Start();
  const auto refused = refused_.get_future();
  ASSERT_EQ(refused.wait_for(testing::kPatience), std::future_status::ready);
}

TEST_F(FollowingTest, WhatTheLeaderRefusesItsStandbysRefuseToo) {
  const FakeCoordinator a({.address = Address("a"), .answer = [] {
                             return std::optional(absl::PermissionDeniedError("not this node"));
                           }});
  const auto b = Play("b", b_leads_, Address("a"), 1);
  Start();
  auto refused = refused_.get_future();
  ASSERT_EQ(refused.wait_for(testing::kPatience), std::future_status::ready);
  EXPECT_TRUE(absl::IsPermissionDenied(refused.get()));
}

TEST_F(FollowingTest, ALeaderThatIsReadOnlyIsAskedAfterGrowingPauses) {
  FakeCoordinator a({.address = Address("a"), .answer = [] {
                       absl::Status status = absl::UnavailableError("read-only");
                       v1::ErrorDetail detail;
                       detail.set_origin(v1::ERROR_ORIGIN_COORDINATOR);
                       SetDetail(&status, detail);
                       return std::optional(status);
                     }});
  const auto begun = std::chrono::steady_clock::now();
  Start();
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(a.AwaitKind(Request::kHello));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(250));
}

}  // namespace
}  // namespace meshrun::worker
