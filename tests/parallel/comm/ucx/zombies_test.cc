#include "parallel/comm/ucx/engine/execution/zombies.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "tests/parallel/comm/ucx/lent_memory.h"
#include "tests/parallel/comm/ucx/recorded_transport.h"

namespace meshrun::ucx {
namespace {

// A send that is under way cannot be taken back, and its receiver reads the sender's memory.
TEST(ZombiesTest, MemoryOfAFailedSendIsKept) {
  Simulation ranks(2, options());
  ranks.add_world();
  std::weak_ptr<Bytes> watched;
  Simulation::Handle send;
  {
    auto memory = std::make_shared<Bytes>(bytes(1 << 20, 7));
    watched = memory;
    PointToPointSpec spec = point_to_point_spec(true, 1, *memory);
    spec.keep_alive = memory;
    send = ranks.submit(0, "world", std::move(spec));
  }
  ranks.settle();
  ranks.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
  ranks.step();
  ASSERT_TRUE(send->is_done() && send->failure());
  EXPECT_FALSE(ranks.executor(0).has_unfinished());
  send.reset();
  ranks.finished.clear();
  ranks.settle();
  EXPECT_FALSE(watched.expired());
  ranks.executor(0).close("end");
  EXPECT_FALSE(watched.expired()) << "let go of under the lock";
  ranks.executor(0).take();
  EXPECT_TRUE(watched.expired());
}

TEST(ZombiesTest, MemoryOfAFailedSendIsLetGoOnceItIsTaken) {
  Simulation ranks(2, options());
  ranks.add_world();
  auto memory = std::make_shared<Bytes>(bytes(1 << 20, 7));
  Bytes received = bytes(1 << 20, 0);
  PointToPointSpec spec = point_to_point_spec(true, 1, *memory);
  spec.keep_alive = memory;
  spec.timeout = std::chrono::seconds(1);
  const std::weak_ptr<Bytes> watched = memory;
  memory.reset();
  ranks.submit(0, "world", std::move(spec));
  ranks.settle();
  ranks.hold(1);
  const auto receive = ranks.submit(1, "world", point_to_point_spec(false, 0, received));
  ranks.pass(std::chrono::seconds(2));
  EXPECT_TRUE(ranks.executor(0).group_failure(1).has_value());
  EXPECT_FALSE(watched.expired());
  ranks.release(1);
  ranks.settle();
  // It had been matched before rank 1 heard of the failure, or not: memory is kept only if so.
  EXPECT_TRUE(receive->is_done());
}

TEST(ZombiesTest, MemoryIsLetGoWithTheOperation) {
  Simulation ranks(2, options());
  ranks.add_world();
  auto memory = std::make_shared<int>(1);
  OperationSpec spec = barrier_spec();
  spec.keep_alive = memory;
  const auto handle = ranks.submit(0, "world", std::move(spec));
  const std::weak_ptr<int> watched = memory;
  memory.reset();
  ranks.settle();
  EXPECT_FALSE(watched.expired());
  ranks.submit(1, "world", barrier_spec());
  ranks.settle();
  EXPECT_TRUE(handle->is_done());
  EXPECT_TRUE(watched.expired()) << "though the handle lives";
}

TEST(ZombiesTest, MemoryOwnedThroughANullPointerIsLetGoWithTheOperationToo) {
  Simulation ranks(1, options());
  ranks.add_world();
  auto memory = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = memory;
  OperationSpec spec = barrier_spec();
  spec.keep_alive = std::shared_ptr<void>(std::move(memory), nullptr);
  const auto handle = ranks.submit(0, "world", std::move(spec));
  ranks.settle();
  EXPECT_TRUE(handle->is_done());
  EXPECT_TRUE(watched.expired());
}

// The sender has passed the comparison of headers, the receiver has not looked yet.
TEST_F(LentBeforeAllAgreeTest, IsKeptUntilTheSenderIsThrough) {
  expect_kept_until_the_sender_is_through();
}

TEST_F(LentBeforeAllAgreeTest, IsLetGoWhenTheSenderHasHeardOfTheFailure) {
  barrier(ranks_);  // or the sender does not know whom to tell, nor where to write
  ranks_.settle();
  const auto received = receive();
  ranks_.settle();
  ranks_.hold(1);
  ranks_.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_TRUE(is_kept());
  ranks_.release(1);
  ranks_.settle();
  EXPECT_FALSE(is_kept());
}

TEST_F(LentBeforeAllAgreeTest, IsLetGoWhereTheSenderIsWhoTellsOfTheFailure) {
  barrier(ranks_);
  ranks_.settle();
  const auto received = receive();
  ranks_.settle();
  EXPECT_TRUE(is_kept());
  ranks_.executor(1).abort(1, {FailureKind::kAborted, "aborted", {1}});
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_FALSE(is_kept());
}

TEST_F(LentBeforeAllAgreeTest, IsLetGoWhereTheRanksDisagree) {
  const auto received = receive();
  OperationSpec other = barrier_spec();
  other.signature.digest = 1;
  const auto sent = ranks_.submit(1, "world", std::move(other));
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_EQ(received->failure()->kind, FailureKind::kMismatch);
  EXPECT_FALSE(is_kept());
}

TEST_F(LentMemoryTest, OfAFailedOperationIsKeptUntilTheSenderIsThrough) {
  expect_kept_until_the_sender_is_through();
}

TEST_F(LentMemoryTest, StagingOfAFailedOperationIsKeptUntilTheSenderIsThrough) {
  by_staging_ = true;
  expect_kept_until_the_sender_is_through();
}

TEST_F(LentMemoryTest, IsNobodyElsesWhereTheSenderNeverSaysThatItIsThrough) {
  const auto received = receive();
  ranks_.settle();
  ranks_.kill(1);
  ranks_.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
  ranks_.settle();
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_TRUE(is_kept());
  ranks_.executor(0).close("end");
  ranks_.executor(0).take();
  EXPECT_TRUE(is_kept()) << "the sender may have been in the middle of it";
}

// Rank 1's memory is that of a process of its own, which the kernel knows to be dead or alive.
class LentToAProcessTest : public LentMemoryTest {
 protected:
  LentToAProcessTest() {
    int address_pipe[2];
    EXPECT_EQ(pipe(address_pipe), 0);
    process_ = fork();
    if (process_ == 0) {
      const auto heap = SharedHeap::create(8 << 20);
      const HeapAddress address = heap->address();
      if (write(address_pipe[1], &address, sizeof(address)) != sizeof(address)) _exit(1);
      while (true) pause();
    }
    AddressRecord record = ranks_.executor(1).address_record(1);
    EXPECT_EQ(read(address_pipe[0], &record.heap, sizeof(record.heap)),
              ssize_t{sizeof(record.heap)});
    for (const int fd : address_pipe) close(fd);
    ranks_.executor(0).found(1, 1, record, "");
  }
  ~LentToAProcessTest() override {
    if (process_ != 0) kill_process();
  }

  void kill_process() {
    kill(process_, SIGKILL);
    EXPECT_EQ(waitpid(process_, nullptr, 0), process_);
    process_ = 0;
  }
  // Its receive has failed, and rank 1 says nothing more.
  void fail() {
    const auto received = receive();
    ranks_.settle();
    ranks_.kill(1);
    ranks_.executor(0).abort(1, {FailureKind::kAborted, "aborted", {0}});
    ranks_.settle();
    ASSERT_TRUE(received->is_done() && received->failure());
    ASSERT_TRUE(is_kept());
  }

  pid_t process_ = 0;
};

TEST_F(LentToAProcessTest, IsLetGoWhenTheProcessIsDead) {
  fail();
  kill_process();
  ranks_.settle();
  EXPECT_TRUE(is_kept()) << "nobody has said so";
  ranks_.tell(PeerLost{1, "killed by SIGKILL"});
  EXPECT_FALSE(is_kept());
}

TEST_F(LentToAProcessTest, IsLetGoWhereTheDeathFailsTheOperation) {
  const auto received = receive();
  ranks_.settle();
  ranks_.kill(1);
  kill_process();
  ranks_.tell(PeerLost{1, "killed by SIGKILL"});
  EXPECT_TRUE(is_kept());
  ranks_.pass(std::chrono::seconds(1));
  ASSERT_TRUE(received->is_done() && received->failure());
  EXPECT_FALSE(is_kept());
}

TEST_F(LentToAProcessTest, IsKeptWhileTheProcessLivesWhateverTheNews) {
  fail();
  ranks_.tell(PeerLost{1, "its host was lost"});
  ranks_.pass(std::chrono::seconds(1));
  EXPECT_TRUE(is_kept());
  // It ends after all: seen within kGrace, while anybody makes rounds.
  kill_process();
  ranks_.pass(2 * PeerLiveness::kGrace);
  EXPECT_FALSE(is_kept());
}

TEST_F(LentToAProcessTest, IsKeptForEverWhereTheProcessOutlivesTheTransport) {
  fail();
  ranks_.tell(PeerLeft{1});
  ranks_.executor(0).close("end");
  ranks_.executor(0).take();
  EXPECT_TRUE(is_kept());
}

class KeptTest : public ::testing::Test {
 protected:
  // It has failed; what it held of its caller's is watched.
  OperationPtr failed(int outstanding) {
    const OperationPtr operation = add_receive(*group_, 1, OperationState::kFailed);
    auto memory = std::make_shared<int>(1);
    watched_ = memory;
    operation->point_to_point.keep_alive = std::move(memory);
    operation->outstanding = outstanding;
    group_->remove(operation);
    return operation;
  }

  const std::unique_ptr<MemberGroup> group_ = group_of_three();
  Actions actions_;
  ScratchPool scratch_{nullptr, actions_};
  Zombies zombies_{scratch_, actions_};
  std::weak_ptr<int> watched_;
};

TEST_F(KeptTest, MemoryOfAnOperationWithoutRequestsIsFreedAtOnce) {
  zombies_.add(failed(0));
  EXPECT_FALSE(watched_.expired()) << "not under the lock";
  actions_ = {};
  EXPECT_TRUE(watched_.expired());
}

TEST_F(KeptTest, MemoryIsKeptUntilTheLastRequestIsDone) {
  OperationPtr operation = failed(2);
  RunningOperation& running = *operation;
  zombies_.add(std::exchange(operation, nullptr));
  running.outstanding = 1;
  zombies_.request_done(running);
  EXPECT_TRUE(actions_.empty());
  running.outstanding = 0;
  zombies_.request_done(running);
  EXPECT_FALSE(watched_.expired());
  actions_ = {};
  EXPECT_TRUE(watched_.expired());
}

TEST_F(KeptTest, WhatIsLeftIsFreedWhenTheTransportIsClosed) {
  zombies_.add(failed(1));
  zombies_.look_for_the_dead(SteadyNanos(0));
  EXPECT_EQ(zombies_.next_look(), SteadyNanos::max()) << "nothing is lent";
  EXPECT_TRUE(actions_.empty());
  zombies_.close();
  actions_ = {};
  EXPECT_TRUE(watched_.expired());
}

// Its connection broke, so no request is open; the other end may be about to write, or be reading,
// all the same.
TEST_F(KeptTest, LentMemoryIsKeptThoughNoRequestIsOpen) {
  for (const bool is_source : {false, true}) {
    ScheduleBuilder builder(3);
    if (is_source) {
      builder.send(1, {Space::kInput, 0, 0, 8});
    } else {
      builder.receive(1, {Space::kOutput, 0, 0, 8});
    }
    auto memory = std::make_shared<int>(1);
    watched_ = memory;
    OperationPtr operation = add_collective(*group_, {}, OperationState::kFailed);
    operation->schedule = std::make_shared<const Schedule>(std::move(builder).finish());
    operation->spec.keep_alive = std::move(memory);
    operation->steps.resize(1);
    operation->steps[0].phase = StepState::kBroken;
    operation->offers.resize(1);
    if (is_source) {
      operation->offers[0].is_source = true;
    } else {
      operation->offers[0].message.offset = 4096;
    }
    ASSERT_TRUE(operation->has_lent());
    zombies_.add(operation);
    EXPECT_TRUE(actions_.empty());
    zombies_.give_back(group_->number, 2);
    zombies_.give_back(group_->number + 1, 1);
    EXPECT_TRUE(actions_.empty()) << "others say that they are through";
    zombies_.give_back(group_->number, 1);
    group_->remove(std::exchange(operation, nullptr));
    actions_ = {};
    EXPECT_TRUE(watched_.expired());
  }
}

}  // namespace
}  // namespace meshrun::ucx
