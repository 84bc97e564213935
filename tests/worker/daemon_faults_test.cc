// The worker daemon when things happen at the wrong moment: between two messages, while it stops,
// and after its predecessor was killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <latch>
#include <map>
#include <memory>
#include <vector>

#include "core/os/files.h"
#include "meshrun/v1/supervisor.pb.h"
#include "tests/worker/support/daemon_fixture.h"

namespace meshrun::worker {
namespace {

using std::chrono::milliseconds;
using testing::AwaitGone;
using testing::AwaitPid;
using testing::DaemonTest;
using testing::Eventually;
using testing::FakeCoordinator;
using ::testing::HasSubstr;
using testing::kJob;
using Request = v1::OpenSessionRequest;

constexpr std::chrono::hours kForever(1);
constexpr std::chrono::seconds kShortLease(5);
constexpr char kStubborn[] = "trap '' TERM; echo $PPID > supervisor; while :; do sleep 1000; done";

bool SaysDraining(const Request& message) {
  return message.has_heartbeat() && message.heartbeat().draining();
}

class DaemonFaultsTest : public DaemonTest {
 protected:
  v1::Prepare PrepareWithGrace(const std::string& script, milliseconds grace) {
    v1::Prepare prepare = PrepareFor(script);
    *prepare.mutable_spec()->mutable_kill_grace() = ToProtoDuration(grace);
    return prepare;
  }
  void SendStart() {
    v1::OpenSessionResponse message;
    message.mutable_start()->set_master_addr("127.0.0.1");
    coordinator_->Send(message, kJob, 1);
  }
  static v1::OpenSessionResponse Forgetting() {
    v1::OpenSessionResponse message;
    message.mutable_forget();
    return message;
  }
  // Until the daemon has handled what was sent before. Returns true if it has sent another
  // GenerationEnded meanwhile, or one that the test has not awaited.
  bool AwaitHandled() {
    constexpr char kOther[] = "never-here";
    v1::OpenSessionResponse stop;
    stop.mutable_stop();
    coordinator_->Send(stop, kOther, 1);
    bool has_ended = false;
    EXPECT_TRUE(coordinator_->Await([&](const Request& message) {
      if (!message.has_generation_ended()) return false;
      const bool is_answer = message.fence().job_id() == kOther;
      has_ended |= !is_answer;
      return is_answer;
    }));
    return has_ended;
  }
  void ExpectToEnd() {
    EXPECT_EQ(testing::AwaitExit(daemon_), 0);
    daemon_ = -1;
  }

  // Starts a daemon whose Hellos of these numbers, counted from 1, are not read before Release.
  FakeCoordinator& HoldHellos(std::vector<int> numbers, milliseconds lease = kShortLease) {
    coordinator_->Shutdown();
    lease_ = lease;
    for (const int number : numbers) held_->try_emplace(number, 1);
    // A Hello may come while the test ends.
    coordinator_ = std::make_unique<FakeCoordinator>(
        FakeCoordinator::Options{.lease = lease,
                                 .address = CoordinatorAddress(),
                                 .before_welcome = [hellos = hellos_, held = held_] {
                                   const auto it = held->find(++*hellos);
                                   if (it != held->end()) it->second.wait();
                                 }});
    StartDaemon();
    return *coordinator_;
  }
  void Release(int number) { held_->at(number).count_down(); }
  int hellos() const { return *hellos_; }
  // For longer than a session may be silent.
  void ExpectHeartbeats() {
    coordinator_->Forget();
    const auto heartbeat = coordinator_->AwaitKind(Request::kHeartbeat);
    ASSERT_TRUE(heartbeat);
    const auto count = static_cast<uint64_t>(lease_ / 2 / FakeCoordinator::Options().heartbeat);
    EXPECT_TRUE(coordinator_->Await([&](const Request& message) {
      return message.heartbeat().sequence() >= heartbeat->heartbeat().sequence() + count;
    }));
  }

 private:
  milliseconds lease_ = kShortLease;
  const std::shared_ptr<std::atomic<int>> hellos_ = std::make_shared<std::atomic<int>>(0);
  const std::shared_ptr<std::map<int, std::latch>> held_ =
      std::make_shared<std::map<int, std::latch>>();
};

TEST_F(DaemonFaultsTest, WhatEndsBetweenHelloAndWelcomeIsTold) {
  RunOnDaemon("echo $PPID > supervisor; while [ ! -e go ]; do sleep 0.01; done; exit 9");
  const pid_t supervisor = AwaitPid(directory_ / "supervisor");
  const std::string address = coordinator_->address();
  coordinator_->Shutdown();
  coordinator_ = std::make_unique<FakeCoordinator>(
      FakeCoordinator::Options{.term = 2, .address = address, .before_welcome = [&] {
                                 EXPECT_TRUE(os::WriteFileAtomically(directory_ / "go", "").ok());
                                 // The daemon lets its supervisor go when it has taken everything
                                 // in.
                                 EXPECT_TRUE(AwaitGone(supervisor));
                               }});
  const Request hello = AwaitHello();
  ASSERT_EQ(hello.hello().running_size(), 1);
  EXPECT_EQ(hello.hello().running(0).exits_size(), 0);
  EXPECT_EQ(AwaitRankExit().exit_code(), 9);
  EXPECT_TRUE(coordinator_->AwaitKind(Request::kGenerationEnded));
}

// The coordinator believes the Hello and waits for the end.
TEST_F(DaemonFaultsTest, WhatIsForgottenAndEndsBetweenHelloAndWelcomeIsTold) {
  RunOnDaemon(kStubborn);
  const pid_t supervisor = AwaitPid(directory_ / "supervisor");
  // Stopped, it does not kill its rank yet.
  ::kill(supervisor, SIGSTOP);
  coordinator_->Send(Forgetting(), kJob, 1);
  EXPECT_FALSE(AwaitHandled());
  const std::string address = coordinator_->address();
  coordinator_->Shutdown();
  coordinator_ = std::make_unique<FakeCoordinator>(
      FakeCoordinator::Options{.term = 2, .address = address, .before_welcome = [supervisor] {
                                 ::kill(supervisor, SIGCONT);
                                 EXPECT_TRUE(AwaitGone(supervisor));
                               }});
  const Request hello = AwaitHello();
  ASSERT_EQ(hello.hello().running_size(), 1);
  EXPECT_FALSE(hello.hello().running(0).ended());
  // The node was part of generation 2 when it was lost, and has not heard of it.
  coordinator_->Send(Forgetting(), kJob, 2);
  coordinator_->Send(Forgetting(), kJob, 1);
  auto ended = coordinator_->AwaitKind(Request::kGenerationEnded);
  // The end of generation 1 is told where the daemon hears of it after the Welcome.
  if (ended && ended->fence().generation() == 1) {
    ended = coordinator_->AwaitKind(Request::kGenerationEnded);
  }
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->fence().job_id(), kJob);
  EXPECT_EQ(ended->fence().generation(), 2u);
  EXPECT_FALSE(AwaitHandled());
}

// As over a connection that a bad network holds up: the next one may pass.
TEST_F(DaemonFaultsTest, ASilentSessionBeginsAnewWithinItsLease) {
  FakeCoordinator& coordinator = HoldHellos({}, std::chrono::seconds(10));
  AwaitHello();
  ASSERT_TRUE(coordinator.AwaitKind(Request::kHeartbeat));
  const auto began = std::chrono::steady_clock::now();
  coordinator.FallSilent();
  AwaitHello();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(9));
}

// The connection after it may be held up as well.
TEST_F(DaemonFaultsTest, AfterASilenceAHelloThatIsNotAnsweredIsSaidOverAnotherConnectionBesideIt) {
  FakeCoordinator& coordinator = HoldHellos({2}, std::chrono::seconds(12));
  const v1::Hello first = AwaitHello().hello();
  EXPECT_EQ(first.attempt(), 1u);
  ASSERT_TRUE(coordinator.AwaitKind(Request::kHeartbeat));
  const auto began = std::chrono::steady_clock::now();
  coordinator.FallSilent();
  const v1::Hello third = AwaitHello().hello();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(11));
  EXPECT_EQ(third.session_number(), first.session_number() + 1);
  EXPECT_EQ(third.attempt(), 2u);
  // The other one's Welcome comes too late to matter.
  Release(2);
  const v1::Hello second = AwaitHello().hello();
  EXPECT_EQ(second.session_number(), third.session_number());
  EXPECT_EQ(second.attempt(), 1u);
  ExpectHeartbeats();
  EXPECT_EQ(hellos(), 3);
}

TEST_F(DaemonFaultsTest, OfTwoHellosTheLaterOneIsTheSessionAlsoWhereBothAreWelcomed) {
  FakeCoordinator& coordinator = HoldHellos({2, 3});
  AwaitHello();
  ASSERT_TRUE(coordinator.AwaitKind(Request::kHeartbeat));
  coordinator.FallSilent();
  EXPECT_TRUE(Eventually([&] { return hellos() == 3; }));
  Release(2);
  EXPECT_EQ(AwaitHello().hello().attempt(), 1u);
  ExpectHeartbeats();
  Release(3);
  EXPECT_EQ(AwaitHello().hello().attempt(), 2u);
  // Over the last one that was welcomed.
  EXPECT_TRUE(Prepare(PrepareFor("exit 0")).ok());
  ExpectHeartbeats();
  EXPECT_EQ(hellos(), 3);
}

// The later Hello says that a generation runs. Its end was told and acknowledged in the session of
// the earlier Hello, but a coordinator that has got the later one by then ignores that session.
TEST_F(DaemonFaultsTest, OfTwoHellosTheLaterOneIsCorrectedWhereItIsOutOfDate) {
  FakeCoordinator& coordinator = HoldHellos({2, 3});
  AwaitHello();
  EXPECT_TRUE(
      Prepare(PrepareFor("echo $PPID > supervisor; while [ ! -e go ]; do sleep 0.01; done")).ok());
  Start();
  const pid_t supervisor = AwaitPid(directory_ / "supervisor");
  coordinator.FallSilent();
  EXPECT_TRUE(Eventually([&] { return hellos() == 3; }));
  EXPECT_TRUE(os::WriteFileAtomically(directory_ / "go", "").ok());
  EXPECT_TRUE(AwaitGone(supervisor));
  Release(2);
  EXPECT_EQ(AwaitHello().hello().attempt(), 1u);
  EXPECT_TRUE(coordinator.AwaitKind(Request::kGenerationEnded));
  coordinator.Send(Forgetting(), kJob, 1);
  EXPECT_FALSE(AwaitHandled());
  Release(3);
  const v1::Hello later = AwaitHello().hello();
  EXPECT_EQ(later.attempt(), 2u);
  ASSERT_EQ(later.running_size(), 1);
  EXPECT_FALSE(later.running(0).ended());
  coordinator.Send(Forgetting(), kJob, 1);
  const auto ended = coordinator.AwaitKind(Request::kGenerationEnded);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->fence().job_id(), kJob);
  EXPECT_EQ(ended->fence().generation(), 1u);
  // The coordinator answers with Forget. An answer to that would begin an endless exchange.
  coordinator.Send(Forgetting(), kJob, 1);
  EXPECT_FALSE(AwaitHandled());
}

TEST_F(DaemonFaultsTest, AStoppingWorkerSaysSoAtOnceAndTakesNothingNew) {
  coordinator_->Shutdown();
  // No heartbeat is due while this test lasts.
  coordinator_ = std::make_unique<FakeCoordinator>(FakeCoordinator::Options{
      .lease = kForever, .heartbeat = kForever, .address = CoordinatorAddress()});
  StartDaemon({"--orphan-timeout", "1h"});
  EXPECT_FALSE(AwaitHello().hello().draining());
  Prepare(PrepareWithGrace(kStubborn, kForever));
  Start();
  AwaitPid(directory_ / "supervisor");
  ::kill(daemon_, SIGTERM);
  EXPECT_TRUE(coordinator_->Await(SaysDraining));
  for (const uint64_t generation : {uint64_t{2}, uint64_t{1}}) {
    const v1::PrepareResult refused = Prepare(PrepareFor("exit 0"), generation);
    EXPECT_FALSE(refused.ok());
    EXPECT_TRUE(refused.draining());
    EXPECT_THAT(refused.error(), HasSubstr("the worker on here stops: it got SIGTERM"));
  }
  const std::string address = coordinator_->address();
  coordinator_->Shutdown();
  coordinator_ =
      std::make_unique<FakeCoordinator>(FakeCoordinator::Options{.term = 2, .address = address});
  EXPECT_TRUE(AwaitHello().hello().draining());
  ::kill(daemon_, SIGTERM);
  ExpectToEnd();
}

TEST_F(DaemonFaultsTest, EndsAfterAWhileWithoutWhatCannotBeKilled) {
  StartDaemon({"--stop-timeout", "50ms"});
  AwaitHello();
  Prepare(PrepareWithGrace(kStubborn, milliseconds(50)));
  Start();
  // Stopped, it kills nobody.
  const pid_t supervisor = AwaitPid(directory_ / "supervisor");
  ::kill(supervisor, SIGSTOP);
  ::kill(daemon_, SIGTERM);
  ExpectToEnd();
  EXPECT_TRUE(coordinator_->AwaitKind(Request::kGoodbye));
  ::kill(supervisor, SIGKILL);
}

TEST_F(DaemonFaultsTest, ASecondSignalDoesNotWaitForTheGrace) {
  StartDaemon({"--stop-timeout", "50ms"});
  AwaitHello();
  Prepare(PrepareWithGrace(kStubborn, kForever));
  Start();
  const pid_t supervisor = AwaitPid(directory_ / "supervisor");
  ::kill(supervisor, SIGSTOP);
  ::kill(daemon_, SIGTERM);
  EXPECT_TRUE(coordinator_->Await(SaysDraining));
  ::kill(daemon_, SIGTERM);
  ExpectToEnd();
  ::kill(supervisor, SIGKILL);
}

TEST_F(DaemonFaultsTest, AStartThatNeverReachedTheSupervisorIsSentAgain) {
  StartDaemon();
  AwaitHello();
  Prepare(PrepareFor("exit 4"));
  ::kill(daemon_, SIGKILL);
  testing::AwaitExit(daemon_);
  // As it is when the daemon dies between writing the record and sending.
  const std::filesystem::directory_iterator generation(State("/g"));
  const std::string path = (generation->path() / "record").string();
  const auto content = os::ReadFile(path);
  ASSERT_TRUE(content.ok()) << content.status();
  v1::ProcessesRecord record;
  ASSERT_TRUE(record.ParseFromString(*content));
  record.mutable_generations(0)->mutable_start()->set_master_addr("127.0.0.1");
  ASSERT_TRUE(os::WriteFileAtomically(path, record.SerializeAsString(), 0600).ok());
  StartDaemon();
  EXPECT_EQ(AwaitRankExit().exit_code(), 4);
}

TEST_F(DaemonFaultsTest, AnEndedGenerationIsNotSilentlyPreparedOrStarted) {
  RunOnDaemon("exit 0");
  EXPECT_TRUE(coordinator_->AwaitKind(Request::kGenerationEnded));
  SendStart();
  EXPECT_TRUE(coordinator_->AwaitKind(Request::kGenerationEnded));
  const v1::PrepareResult refused = Prepare(PrepareFor("exit 0"));
  EXPECT_FALSE(refused.ok());
  EXPECT_FALSE(refused.draining());
  EXPECT_THAT(refused.error(), HasSubstr("has ended"));
}

TEST_F(DaemonFaultsTest, RemovesTheOldestLogsWhenAGenerationEnds) {
  StartDaemon({"--keep-logs", "0"});
  AwaitHello();
  for (const uint64_t generation : {uint64_t{1}, uint64_t{2}}) {
    EXPECT_TRUE(Prepare(PrepareFor("echo something"), generation).ok());
    Start(generation);
    EXPECT_TRUE(coordinator_->AwaitKind(Request::kGenerationEnded));
  }
  EXPECT_TRUE(Eventually([&] { return !os::ReadFile(Stdout(0)).ok(); }));
  EXPECT_TRUE(os::ReadFile(State("/logs/" + std::string(kJob) + "/2/0.stdout.log")).ok());
}

}  // namespace
}  // namespace meshrun::worker
