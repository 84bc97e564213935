// The event loop while its disk hangs: a clock in the test's hands makes a minute of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "coordinator/event_loop/event_loop.h"
#include "coordinator/state_store/memory_state_store.h"
#include "core/error_detail.h"
#include "core/mutex.h"
#include "tests/coordinator/support/fake_worker.h"
#include "tests/coordinator/support/faulty_state_store.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

// Runs with the host's clock, and jumps when it is told to.
class JumpingClock : public Clock {
 public:
  SteadyNanos SteadyNow() const override {
    return Real().SteadyNow() + SteadyNanos(jumped_.load());
  }
  WallNanos WallNow() const override { return Real().WallNow(); }
  void Jump(SteadyNanos by) { jumped_ += by.count(); }

 private:
  std::atomic<int64_t> jumped_{0};
};

// What came to one call or session.
class Inbox : public Session, public PendingCall {
 public:
  void Send(v1::OpenSessionResponse message) override {
    MutexLock lock(mu_);
    if (message.has_heartbeat_reply()) heartbeat_ = message.heartbeat_reply().sequence();
    if (message.has_welcome()) ++welcomes_;
    changed_.NotifyAll();
  }
  void Close(const absl::Status& status) override { Reply(status, nullptr); }
  void Reply(const absl::Status& status, const MessagePtr& response) override {
    MutexLock lock(mu_);
    ended_ = true;
    status_ = status;
    response_ = response;
    changed_.NotifyAll();
  }

  bool AwaitHeartbeat(uint64_t sequence) {
    return Await([&]() MESHRUN_REQUIRES(mu_) { return heartbeat_ >= sequence; });
  }
  bool AwaitWelcome() {
    return Await([&]() MESHRUN_REQUIRES(mu_) { return welcomes_ > 0; });
  }
  bool AwaitEnd() {
    return Await([&]() MESHRUN_REQUIRES(mu_) { return ended_; });
  }
  bool ended() {
    MutexLock lock(mu_);
    return ended_;
  }
  absl::Status status() {
    MutexLock lock(mu_);
    return status_;
  }
  template <typename Message>
  Message As() {
    MutexLock lock(mu_);
    return response_ == nullptr ? Message() : dynamic_cast<const Message&>(*response_);
  }

 private:
  template <typename Condition>
  bool Await(const Condition& holds) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    MutexLock lock(mu_);
    while (!holds()) {
      if (!changed_.WaitUntil(mu_, deadline)) return false;
    }
    return true;
  }

  Mutex mu_;
  CondVar changed_;
  uint64_t heartbeat_ MESHRUN_GUARDED_BY(mu_) = 0;
  int welcomes_ MESHRUN_GUARDED_BY(mu_) = 0;
  bool ended_ MESHRUN_GUARDED_BY(mu_) = false;
  absl::Status status_ MESHRUN_GUARDED_BY(mu_);
  MessagePtr response_ MESHRUN_GUARDED_BY(mu_);
};

absl::Status NotLeading() {
  absl::Status status = absl::UnavailableError("b leads");
  v1::ErrorDetail detail;
  detail.set_standby(true);
  detail.set_leader("b:1");
  SetDetail(&status, detail);
  return status;
}

class HungCommitTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(loop_.Start().ok()); }
  ~HungCommitTest() override { Release(); }

  void Release() {
    hung_ = false;
    hung_.notify_all();
  }

  struct Connection {
    FakeWorker worker;
    uint64_t id;
    std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();
    uint64_t sequence = 0;
  };
  std::unique_ptr<Connection> Connect(const std::string& name) {
    auto out = std::make_unique<Connection>(Connection{FakeWorker({.name = name}), loop_.NewId()});
    recipients_.AddSession(out->id, out->inbox);
    Say(*out, out->worker.Hello());
    return out;
  }
  void Say(Connection& connection, v1::OpenSessionRequest message) {
    v1::StateEvent event;
    message.mutable_fence()->set_term(loop_.term());
    event.mutable_session_message()->set_session_id(connection.id);
    *event.mutable_session_message()->mutable_message() = std::move(message);
    EXPECT_TRUE(loop_.Post(std::move(event)).ok());
  }
  bool HeartbeatIsAnswered(Connection& connection) {
    v1::OpenSessionRequest message = connection.worker.Heartbeat();
    message.mutable_heartbeat()->set_sequence(++connection.sequence);
    Say(connection, std::move(message));
    return connection.inbox->AwaitHeartbeat(connection.sequence);
  }
  std::shared_ptr<Inbox> Call(v1::StateEvent event) {
    auto inbox = std::make_shared<Inbox>();
    calls_.insert(inbox);
    const uint64_t id = loop_.NewId();
    event.set_call_id(id);
    recipients_.AddCall(id, inbox.get());
    EXPECT_TRUE(loop_.Post(std::move(event)).ok());
    return inbox;
  }
  std::shared_ptr<Inbox> Submit() {
    v1::StateEvent event;
    *event.mutable_submit_job()->mutable_spec() = MakeSpec(9, 1);
    return Call(std::move(event));
  }
  template <typename Response>
  Response Ask(v1::StateEvent event) {
    const auto inbox = Call(std::move(event));
    EXPECT_TRUE(inbox->AwaitEnd());
    EXPECT_TRUE(inbox->status().ok()) << inbox->status();
    return inbox->As<Response>();
  }
  int Jobs() {
    v1::StateEvent event;
    event.mutable_list_jobs();
    return Ask<v1::ListJobsResponse>(std::move(event)).jobs_size();
  }
  std::map<std::string, v1::NodeState> Nodes() {
    v1::StateEvent event;
    event.mutable_list_nodes();
    std::map<std::string, v1::NodeState> out;
    const auto response = Ask<v1::ListNodesResponse>(std::move(event));
    for (const v1::Node& node : response.nodes()) out[node.name()] = node.state();
    return out;
  }
  // A submit whose commit hangs, for a minute by the coordinator's clock.
  std::shared_ptr<Inbox> HangForAMinute(Connection& witness) {
    hung_ = true;
    auto submit = Submit();
    // Answered beside the commit: the loop has begun it.
    clock_.Jump(seconds(1));
    EXPECT_TRUE(HeartbeatIsAnswered(witness));
    EXPECT_FALSE(submit->ended());
    EXPECT_EQ(loop_.read_only_reason(), "");
    clock_.Jump(seconds(59));
    EXPECT_TRUE(HeartbeatIsAnswered(witness));
    return submit;
  }

  std::atomic<bool> broken_{false}, hung_{false};
  JumpingClock clock_;
  FaultyStateStore store_{std::make_unique<MemoryStateStore>(), broken_, &hung_};
  Recipients recipients_;
  std::set<std::shared_ptr<Inbox>> calls_;
  // Each row is a part of its own.
  std::atomic<bool> leads_{true};
  EventLoop loop_{{.clock = clock_,
                   .store = store_,
                   .recipients = recipients_,
                   .part_bytes = 1,
                   .leads = [this] { return leads_.load(); },
                   .not_leading = NotLeading}};
};

TEST_F(HungCommitTest, AMinuteOfItLosesNoWorkerAndNoCall) {
  const auto first = Connect("node1");
  ASSERT_TRUE(first->inbox->AwaitWelcome());
  const auto submit = HangForAMinute(*first);
  // Read-only, with the reason, and reads show what is on disk.
  const auto refused = Submit();
  ASSERT_TRUE(refused->AwaitEnd());
  EXPECT_TRUE(absl::IsUnavailable(refused->status()));
  EXPECT_THAT(std::string(refused->status().message()),
              HasSubstr("read-only: the state cannot be written: its disk has not answered for"));
  EXPECT_EQ(Jobs(), 0);
  // A worker that comes meanwhile is welcome; what it says is kept.
  const auto second = Connect("node2");
  EXPECT_TRUE(second->inbox->AwaitWelcome());
  EXPECT_FALSE(submit->ended());
  Release();
  ASSERT_TRUE(submit->AwaitEnd());
  EXPECT_TRUE(submit->status().ok()) << submit->status();
  EXPECT_EQ(Jobs(), 1);
  EXPECT_EQ(loop_.read_only_reason(), "");
  // No lease has ended: the minute does not count.
  EXPECT_EQ(Nodes(), (std::map<std::string, v1::NodeState>{{"node1", v1::NODE_STATE_HEALTHY},
                                                           {"node2", v1::NODE_STATE_HEALTHY}}));
  EXPECT_FALSE(first->inbox->ended());
  EXPECT_FALSE(second->inbox->ended());
}

TEST_F(HungCommitTest, LeasesEndAgainWhenItIsOver) {
  const auto worker = Connect("node1");
  ASSERT_TRUE(worker->inbox->AwaitWelcome());
  const auto submit = HangForAMinute(*worker);
  Release();
  ASSERT_TRUE(submit->AwaitEnd());
  EXPECT_EQ(Jobs(), 1);
  // In steps below the loop's own standstill.
  for (int i = 0; i < 6; ++i) {
    clock_.Jump(std::chrono::milliseconds(1100));
    Nodes();
  }
  EXPECT_EQ(Nodes().at("node1"), v1::NODE_STATE_LOST);
}

TEST_F(HungCommitTest, ACommitThatFailsInTheEndHappenedNowhere) {
  const auto worker = Connect("node1");
  ASSERT_TRUE(worker->inbox->AwaitWelcome());
  const auto submit = HangForAMinute(*worker);
  broken_ = true;
  Release();
  ASSERT_TRUE(submit->AwaitEnd());
  EXPECT_TRUE(absl::IsUnavailable(submit->status()));
  EXPECT_THAT(loop_.read_only_reason(), HasSubstr("disk full"));
  EXPECT_EQ(Jobs(), 0);
  EXPECT_TRUE(HeartbeatIsAnswered(*worker));
  broken_ = false;
  clock_.Jump(seconds(2));
  // The next Hello repeats what was dropped.
  ASSERT_TRUE(worker->inbox->AwaitEnd());
  EXPECT_TRUE(absl::IsUnavailable(worker->inbox->status()));
  EXPECT_EQ(loop_.read_only_reason(), "");
}

TEST_F(HungCommitTest, ANoteOfAReadOnlyTimeIsAnEventAfterIt) {
  const auto worker = Connect("node1");
  ASSERT_TRUE(worker->inbox->AwaitWelcome());
  HangForAMinute(*worker);
  v1::StateEvent note;
  note.mutable_notice()->set_kind("EtcdAlarm");
  loop_.PostEnd(note);
  broken_ = true;
  Release();
  // The one before was held.
  note.mutable_notice()->set_kind("EtcdNearlyFull");
  loop_.PostEnd(note);
  ASSERT_TRUE(HeartbeatIsAnswered(*worker));
  broken_ = false;
  clock_.Jump(seconds(2));
  ASSERT_TRUE(worker->inbox->AwaitEnd());
  v1::StateEvent describe;
  describe.mutable_describe_cluster();
  const auto cluster = Call(describe);
  ASSERT_TRUE(cluster->AwaitEnd());
  std::vector<std::string> kinds;
  const auto described = cluster->As<v1::DescribeClusterResponse>();
  for (const v1::ClusterEvent& event : described.events()) {
    kinds.push_back(event.kind());
  }
  EXPECT_THAT(kinds, IsSupersetOf({"EtcdAlarm", "EtcdNearlyFull"}));
}

// The commit may have been refused, or not: only the next leader knows.
TEST_F(HungCommitTest, OneThatLeadsNoMoreSaysNothingOfWhatItCommits) {
  const auto worker = Connect("node1");
  ASSERT_TRUE(worker->inbox->AwaitWelcome());
  hung_ = true;
  const auto submit = Submit();
  clock_.Jump(seconds(1));
  // Answered beside the commit: the loop has begun it.
  ASSERT_TRUE(HeartbeatIsAnswered(*worker));
  v1::StateEvent read;
  read.mutable_list_jobs();
  const auto jobs = Call(read);
  leads_ = false;
  // At once: its disk may hang for ever.
  for (const auto& inbox : {submit, jobs, worker->inbox}) ASSERT_TRUE(inbox->AwaitEnd());
  // It was never looked at.
  EXPECT_EQ(jobs->status(), NotLeading());
  EXPECT_EQ(worker->inbox->status(), NotLeading());
  EXPECT_TRUE(absl::IsUnavailable(submit->status())) << submit->status();
  EXPECT_FALSE(DetailOf(submit->status()).standby());
  EXPECT_EQ(DetailOf(submit->status()).leader(), "b:1");
  EXPECT_THAT(std::string(submit->status().message()), HasSubstr("is not known"));
  Release();
  EXPECT_EQ(loop_.Post(read), NotLeading());
  // One that comes later goes as any other.
  const auto late = std::make_shared<Inbox>();
  recipients_.AddSession(1000, late);
  recipients_.Close(1000, absl::OkStatus());
  EXPECT_EQ(late.use_count(), 1);
}

TEST_F(HungCommitTest, AnotherCoordinatorOnTheSameStateEndsThisOnesSessions) {
  const auto worker = Connect("node1");
  ASSERT_TRUE(worker->inbox->AwaitWelcome());
  ASSERT_EQ(*store_.BeginTerm(), loop_.term() + 1);
  const auto submit = Submit();
  ASSERT_TRUE(submit->AwaitEnd());
  EXPECT_TRUE(absl::IsUnavailable(submit->status()));
  EXPECT_THAT(loop_.read_only_reason(), HasSubstr("another coordinator has begun term 2"));
  EXPECT_TRUE(worker->inbox->AwaitEnd());
}

}  // namespace
}  // namespace meshrun::coordinator::testing
