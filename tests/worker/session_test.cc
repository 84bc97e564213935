// A session whose certificate is renewed: connections with the old certificate come to one
// coordinator that the test plays, those with the renewed one to another.
#include "worker/session.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

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

class RenewalTest : public ::testing::Test {
 protected:
  RenewalTest() {
    auto channel =
        rpc::RenewedChannel::Create([this] { return rpc::MakeChannel("test", address_, {}); },
                                    [](const std::function<void()>& work) { work(); });
    EXPECT_TRUE(channel.ok()) << channel.status();
    Session::Handler handler;
    handler.check_address = [] { return absl::OkStatus(); };
    handler.hello = [] { return v1::Hello(); };
    handler.check_welcome = [](const v1::Welcome&) { return absl::OkStatus(); };
    handler.on_welcome = [](const v1::Welcome&, const v1::Hello&) {};
    handler.on_message = [](const v1::OpenSessionResponse&) {};
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

}  // namespace
}  // namespace meshrun::worker
