// The engine's threads, over the in-memory network and, in forked ranks, over UCX. Nothing here
// depends on how long anything takes, except a deadline after which a test has hung.
#include "parallel/comm/ucx/engine/execution/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/base/process.h"
#include "parallel/comm/ucx/engine/transport/ucx_transport.h"
#include "tests/parallel/comm/ucx/collective_calls.h"
#include "tests/parallel/comm/ucx/forked_ranks.h"
#include "tests/parallel/comm/ucx/large_sums.h"
#include "tests/parallel/comm/ucx/memory_transport.h"

namespace meshrun::ucx {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kDeadline(60);

// The store of a job.
class Store {
 public:
  void set(const std::string& key, std::string value) {
    const std::lock_guard lock(mu_);
    records_[key] = std::move(value);
    changed_.notify_all();
  }
  // Waits; absent: stopped.
  std::optional<std::string> get(const std::string& key, const std::atomic<bool>& stopped) {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return stopped || records_.count(key) != 0; });
    if (stopped) return std::nullopt;
    return records_[key];
  }
  void wake() {
    const std::lock_guard lock(mu_);
    changed_.notify_all();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, std::string> records_;
};

// Looks up on a thread of its own, which waits for ranks that come later.
class StoreBook final : public AddressBook {
 public:
  StoreBook(Store& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  ~StoreBook() override { stop(); }

  std::optional<std::string> publish(int rank, const AddressRecord& record) override {
    store_.set(key(rank), serialize(record));
    return std::nullopt;
  }
  void look_up(const std::vector<int>& ranks, Found found) override {
    const std::lock_guard lock(mu_);
    threads_.emplace_back([this, ranks, found] {
      for (const int rank : ranks) {
        const std::optional<std::string> bytes = store_.get(key(rank), stopped_);
        if (!bytes) return;
        found(rank, parse_address_record(*bytes), "");
      }
    });
  }
  void stop() override {
    stopped_ = true;
    store_.wake();
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(mu_);
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::string key(int rank) const { return prefix_ + "/" + std::to_string(rank); }

  Store& store_;
  const std::string prefix_;
  std::atomic<bool> stopped_{false};
  std::mutex mu_;
  std::vector<std::thread> threads_;
};

// Counts, and can tell which thread polls.
class CountingTransport final : public Transport {
 public:
  struct Counts {
    std::atomic<int64_t> polls{0}, moves{0}, arms{0};
    // Called in each poll and before each arm(), with the engine's lock.
    std::function<void()> on_poll, on_arm;
  };

  CountingTransport(std::unique_ptr<Transport> transport, Counts& counts)
      : transport_(std::move(transport)), counts_(counts) {}

  const std::string& address() const override { return transport_->address(); }
  PeerId connect(std::string_view address) override { return transport_->connect(address); }
  bool send(PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request) override {
    return transport_->send(to, tag, bytes, request);
  }
  void receive(PeerId from, Tag tag, Tag mask, std::span<std::byte> bytes,
               Request& request) override {
    transport_->receive(from, tag, mask, bytes, request);
  }
  void cancel(Request& receive) override { transport_->cancel(receive); }
  bool progress(Completions& completions) override {
    if (counts_.on_poll) counts_.on_poll();
    const bool moved = transport_->progress(completions);
    ++counts_.polls;
    if (moved) ++counts_.moves;
    return moved;
  }
  bool arm() override {
    if (counts_.on_arm) counts_.on_arm();
    ++counts_.arms;
    return transport_->arm();
  }
  int event_fd() const override { return transport_->event_fd(); }
  void wake() override { transport_->wake(); }
  void close() override { transport_->close(); }

 private:
  const std::unique_ptr<Transport> transport_;
  Counts& counts_;
};

OperationSpec barrier(Drive drive, std::shared_ptr<void> keep_alive = nullptr) {
  OperationSpec spec;
  spec.signature.kind = OperationKind::kBarrier;
  spec.timeout = kDeadline;
  spec.drive = drive;
  spec.keep_alive = std::move(keep_alive);
  return spec;
}

PointToPointSpec message(bool is_send, int peer, std::vector<std::byte>& memory) {
  PointToPointSpec spec;
  spec.is_send = is_send;
  spec.peer = peer;
  spec.memory = contiguous(memory.data(), static_cast<int64_t>(memory.size()));
  spec.timeout = kDeadline;
  spec.drive = Drive::kThread;
  return spec;
}

GroupConfig config_of(const std::string& name, int rank, int size) {
  GroupConfig config;
  config.name = name;
  config.rank = rank;
  config.size = size;
  return config;
}

// Kept by whoever sets it: std::promise::set_value() goes on after the future is ready.
class Event {
 public:
  void set() const { std::shared_ptr(promise_)->set_value(); }
  bool comes() const {
    return promise_->get_future().wait_for(kDeadline) == std::future_status::ready;
  }

 private:
  std::shared_ptr<std::promise<void>> promise_ = std::make_shared<std::promise<void>>();
};

Event end_of(const std::shared_ptr<Group>& group, const std::shared_ptr<Operation>& operation) {
  Event end;
  group->on_done(operation, [end] { end.set(); });
  return end;
}

// Calls `run` when its last owner lets go.
std::shared_ptr<void> at_end(std::function<void()> run) {
  return {new char, [run = std::move(run)](char* memory) {
            delete memory;
            run();
          }};
}

// Engines in one process, each with one group of all.
class EngineTest : public testing::Test {
 protected:
  struct Rank {
    CountingTransport::Counts counts;
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Group> group;
  };

  void start(int ranks, int cores = 2, const Clock& clock = Clock::Real()) {
    ranks_ = std::vector<Rank>(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      Engine::Options options{.clock = clock};
      options.dump = [](const std::string&) {};
      options.cores = cores;
      ranks_[rank].engine = Engine::start(
          std::make_unique<CountingTransport>(network_.create_transport(), ranks_[rank].counts),
          std::move(options));
      ranks_[rank].group = join(rank, "world");
    }
  }
  std::shared_ptr<Group> join(int rank, const std::string& name) {
    std::shared_ptr<Group> group;
    const auto error =
        ranks_[rank].engine->join(config_of(name, rank, static_cast<int>(ranks_.size())),
                                  std::make_unique<StoreBook>(store_, name), &group);
    EXPECT_EQ(error, std::nullopt);
    return group;
  }
  std::shared_ptr<Group>& group(int rank) { return ranks_[rank].group; }

  Store store_;
  MemoryNetwork network_{{.seed = 1, .deliveries_per_progress = 4}};
  std::vector<Rank> ranks_;
};

TEST_F(EngineTest, AnOperationEndsThoughNobodyWaitsForIt) {
  start(2);
  std::vector<Event> ended;
  for (int rank = 0; rank < 2; ++rank) {
    ended.push_back(end_of(group(rank), group(rank)->submit(barrier(Drive::kThread))));
  }
  for (const Event& end : ended) EXPECT_TRUE(end.comes());
}

TEST_F(EngineTest, AnOperationThatIsDroppedEnds) {
  start(2);
  std::vector<Event> freed(2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto memory = at_end([free = freed[rank]] { free.set(); });
    const auto operation = group(rank)->submit(barrier(Drive::kCaller, memory));
    group(rank)->hand_over(*operation);
  }
  for (const Event& free : freed) EXPECT_TRUE(free.comes());
}

TEST_F(EngineTest, ACallerMovesItsOperationItself) {
  start(2);
  // Rank 1 is driven by its thread.
  const auto other = end_of(group(1), group(1)->submit(barrier(Drive::kThread)));
  std::vector<std::thread::id> users;
  ranks_[0].counts.on_poll = [&] { users.push_back(std::this_thread::get_id()); };
  const auto operation = group(0)->submit(barrier(Drive::kCaller));
  EXPECT_TRUE(group(0)->wait(*operation));
  EXPECT_FALSE(operation->failure());
  ranks_[0].counts.on_poll = nullptr;
  EXPECT_THAT(users, testing::Each(std::this_thread::get_id()));
}

TEST_F(EngineTest, TheProgressThreadSleepsWhileACallerWaits) {
  start(2);
  const std::vector<std::shared_ptr<Group>> second = {join(0, "second"), join(1, "second")};
  const auto caller = std::this_thread::get_id();
  // By the thread, between two of the caller's.
  std::atomic<int64_t> polls_meanwhile{0};
  int64_t polls_of_thread = 0;
  int sleeps_of_caller = 0;
  bool caller_waits = false;
  ranks_[0].counts.on_poll = [&] {
    if (std::this_thread::get_id() != caller) {
      ++polls_of_thread;
    } else if (std::exchange(caller_waits, true)) {
      polls_meanwhile += polls_of_thread;
      polls_of_thread = 0;
    } else {
      polls_of_thread = 0;
    }
  };
  ranks_[0].counts.on_arm = [&] {
    if (!caller_waits || std::this_thread::get_id() != caller) return;
    // Rank 1 comes when the caller has polled, yielded and slept.
    if (++sleeps_of_caller == 3) second[1]->submit(barrier(Drive::kThread));
  };
  // For the progress thread: rank 1 does not call it yet.
  const auto pending = group(0)->submit(barrier(Drive::kThread));
  const auto operation = second[0]->submit(barrier(Drive::kCaller));
  EXPECT_TRUE(second[0]->wait(*operation));
  EXPECT_EQ(polls_meanwhile, 0);
  EXPECT_FALSE(pending->is_done());
  // Nobody waits any more: it is the thread's again.
  group(1)->submit(barrier(Drive::kThread));
  EXPECT_TRUE(end_of(group(0), pending).comes());
  ranks_[0].group = nullptr;
  ranks_[0].engine = nullptr;
}

TEST_F(EngineTest, OperationsThatAreWaitedForAtOnceDoNotWakeTheProgressThread) {
  constexpr int kRounds = 1000;
  // By this clock the progress thread naps for ever after its first call.
  static const FakeClock clock{};
  start(2, 2, clock);
  const auto run = [this](int rounds, Drive drive) {
    std::vector<std::thread> callers;
    for (int rank = 0; rank < 2; ++rank) {
      callers.emplace_back([group = group(rank), rounds, drive] {
        for (int round = 0; round < rounds; ++round) {
          const auto operation = group->submit(barrier(drive));
          EXPECT_TRUE(group->wait(*operation));
          EXPECT_FALSE(operation->failure());
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  };
  // Addresses are found.
  run(1, Drive::kCaller);
  std::vector<int64_t> before;
  for (const Rank& rank : ranks_) before.push_back(rank.engine->counters().wake_ups);
  run(kRounds, Drive::kThread);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_LE(ranks_[rank].engine->counters().wake_ups - before[rank], 1) << rank;
  }
  ranks_.clear();
}

TEST_F(EngineTest, AnOperationThatWakesNobodyEndsThoughNobodyWaitsForIt) {
  static const FakeClock clock{};
  start(2, 2, clock);
  // Addresses are found, so nothing but the first submission below calls the sleeping thread.
  std::thread other([group = group(1)] { group->wait(*group->submit(barrier(Drive::kCaller))); });
  group(0)->wait(*group(0)->submit(barrier(Drive::kCaller)));
  other.join();
  for (int round = 0; round < 100; ++round) {
    const std::vector<std::shared_ptr<Operation>> operations = {
        group(0)->submit(barrier(Drive::kThread)), group(1)->submit(barrier(Drive::kThread))};
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (!operations[0]->is_done() || !operations[1]->is_done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
  }
  for (const Rank& rank : ranks_) EXPECT_LE(rank.engine->counters().wake_ups, 1);
  ranks_.clear();
}

TEST_F(EngineTest, CallbacksRunWithoutTheLock) {
  start(2);
  for (const Drive drive : {Drive::kThread, Drive::kCaller}) {
    const Event ended, freed;
    const auto other = end_of(group(1), group(1)->submit(barrier(Drive::kThread)));
    // Both would wait for ever, were the lock or progress held.
    const auto operation =
        group(0)->submit(barrier(drive, at_end([&, freed] {
                                   EXPECT_GT(ranks_[0].engine->counters().operations, 0);
                                   freed.set();
                                 })));
    group(0)->on_done(operation, [&, ended] {
      group(1)->submit(barrier(Drive::kThread));
      const auto inner = group(0)->submit(barrier(Drive::kCaller));
      EXPECT_TRUE(group(0)->wait(*inner));
      EXPECT_FALSE(inner->failure());
      ended.set();
    });
    if (drive == Drive::kCaller) group(0)->wait(*operation);
    EXPECT_TRUE(ended.comes());
    EXPECT_TRUE(freed.comes());
  }
}

TEST_F(EngineTest, ACallbackOfADoneOperationRunsAtOnce) {
  start(1);
  const auto operation = group(0)->submit(barrier(Drive::kCaller));
  ASSERT_TRUE(group(0)->wait(*operation));
  bool called = false;
  group(0)->on_done(operation, [&] { called = true; });
  EXPECT_TRUE(called);
}

TEST_F(EngineTest, SeveralCallersWaitAtOnce) {
  constexpr int kCallers = 4;
  constexpr int kRounds = 50;
  start(2);
  std::vector<std::vector<std::shared_ptr<Group>>> groups(kCallers);
  for (int caller = 0; caller < kCallers; ++caller) {
    for (int rank = 0; rank < 2; ++rank) {
      groups[caller].push_back(join(rank, "of caller " + std::to_string(caller)));
    }
  }
  std::vector<std::thread> callers;
  for (int rank = 0; rank < 2; ++rank) {
    for (int caller = 0; caller < kCallers; ++caller) {
      callers.emplace_back([group = groups[caller][rank], rank, caller] {
        for (int round = 0; round < kRounds; ++round) {
          const auto drive = (rank + caller + round) % 3 == 0 ? Drive::kThread : Drive::kCaller;
          const auto operation = group->submit(barrier(drive));
          EXPECT_TRUE(group->wait(*operation));
          EXPECT_FALSE(operation->failure());
        }
      });
    }
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(EngineTest, AWaitThatRunsOutLeavesTheOperationToTheThread) {
  start(2);
  const Event freed;
  const auto operation =
      group(0)->submit(barrier(Drive::kCaller, at_end([freed] { freed.set(); })));
  EXPECT_FALSE(group(0)->wait(*operation, std::chrono::milliseconds(1)));
  EXPECT_FALSE(operation->is_done());
  group(1)->submit(barrier(Drive::kThread));
  EXPECT_TRUE(freed.comes());
  EXPECT_TRUE(operation->is_done());
  EXPECT_FALSE(operation->failure());
}

TEST_F(EngineTest, PollingIsEnough) {
  start(2);
  const std::vector<std::shared_ptr<Operation>> operations = {
      group(0)->submit(barrier(Drive::kCaller)), group(1)->submit(barrier(Drive::kCaller))};
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (!operations[0]->is_done() || !operations[1]->is_done()) {
    group(0)->poll();
    group(1)->poll();
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
}

TEST_F(EngineTest, AMessageThatWasThereEndsItsReceiveWhileACallerSleeps) {
  start(2);
  std::vector<std::byte> sent(16, std::byte{7}), received(16);
  EXPECT_TRUE(end_of(group(1), group(1)->submit(message(true, 0, sent))).comes());
  std::thread caller([&] {
    const auto operation = group(0)->submit(barrier(Drive::kCaller));
    EXPECT_TRUE(group(0)->wait(*operation));
  });
  EXPECT_TRUE(end_of(group(0), group(0)->submit(message(false, 1, received))).comes());
  EXPECT_EQ(received, sent);
  group(1)->submit(barrier(Drive::kThread));
  caller.join();
}

// ---- More operations than a group takes

constexpr int kFull = MemberGroup::kMaxActive + MemberGroup::kMaxQueued;

// Once `group` has so many collectives; by then whoever submits is about to wait for room.
void expect_sequence(const Group& group, uint64_t sequence) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (group.sequence() < sequence) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
}

TEST_F(EngineTest, ACallerWaitsForRoomWhileTheOtherRankHasNotBegun) {
  constexpr int kOperations = 2 * kFull;
  start(2);
  std::vector<std::shared_ptr<Operation>> ahead;
  std::thread caller([&] {
    for (int i = 0; i < kOperations; ++i)
      ahead.push_back(group(0)->submit(barrier(Drive::kThread)));
    for (const auto& operation : ahead) EXPECT_TRUE(group(0)->wait(*operation));
  });
  expect_sequence(*group(0), kFull);
  EXPECT_EQ(group(0)->unfinished().size(), kFull);
  for (int i = 0; i < kOperations; ++i) {
    const auto operation = group(1)->submit(barrier(Drive::kCaller));
    ASSERT_TRUE(group(1)->wait(*operation));
    ASSERT_FALSE(operation->failure()) << operation->failure()->message;
    if (i % 1000 == 0) {
      ASSERT_LE(group(0)->unfinished().size(), kFull);
    }
  }
  caller.join();
  for (const auto& operation : ahead) EXPECT_FALSE(operation->failure());
}

TEST_F(EngineTest, CallersWaitForRoomThoughNobodyElseMovesAnything) {
  constexpr int kOperations = 2 * kFull;
  start(2);
  std::vector<std::thread> callers;
  for (int rank = 0; rank < 2; ++rank) {
    callers.emplace_back([group = group(rank)] {
      std::vector<std::shared_ptr<Operation>> operations;
      for (int i = 0; i < kOperations; ++i) {
        operations.push_back(group->submit(barrier(Drive::kCaller)));
      }
      for (const auto& operation : operations) {
        ASSERT_TRUE(group->wait(*operation));
        ASSERT_FALSE(operation->failure());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(EngineTest, SeveralCallersWaitForRoom) {
  constexpr int kCallers = 3;
  constexpr int kOperations = kFull;
  start(2);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([group = group(0)] {
      for (int i = 0; i < kOperations; ++i) group->submit(barrier(Drive::kThread));
    });
  }
  expect_sequence(*group(0), kFull);
  std::shared_ptr<Operation> last;
  for (int i = 0; i < kCallers * kOperations; ++i) last = group(1)->submit(barrier(Drive::kThread));
  EXPECT_TRUE(group(1)->wait(*last));
  for (std::thread& caller : callers) caller.join();
  EXPECT_FALSE(last->failure());
}

// Any send or receive that ends makes room.
TEST_F(EngineTest, ACallerWaitsForRoomAmongItsReceives) {
  start(2);
  std::vector<std::byte> sent(4, std::byte{7}), received(4), last(4);
  for (int i = 0; i < MemberGroup::kMaxPointToPoint; ++i) {
    group(0)->submit(message(false, 1, received));
  }
  std::shared_ptr<Operation> refused;
  std::thread caller([&] { refused = group(0)->submit(message(false, 1, last)); });
  group(1)->submit(message(true, 0, sent));
  caller.join();
  EXPECT_FALSE(refused->is_done()) << "it has its room before its time is up";
  EXPECT_EQ(group(0)->unfinished().size(), size_t{MemberGroup::kMaxPointToPoint});
}

TEST_F(EngineTest, WithoutRoomAnOperationFailsAtItsTimeout) {
  start(2);
  for (int i = 0; i < kFull; ++i) group(0)->submit(barrier(Drive::kThread));
  OperationSpec spec = barrier(Drive::kCaller);
  spec.timeout = std::chrono::milliseconds(20);
  const auto operation = group(0)->submit(std::move(spec));
  ASSERT_TRUE(group(0)->wait(*operation));
  ASSERT_TRUE(operation->failure());
  EXPECT_EQ(operation->failure()->kind, FailureKind::kTimeout);
  EXPECT_THAT(operation->failure()->message,
              HasSubstr("barrier number " + std::to_string(kFull + 1)));
}

TEST_F(EngineTest, AnAbortEndsTheWaitForRoom) {
  start(2);
  std::shared_ptr<Operation> refused;
  std::thread caller([&] {
    for (int i = 0; i <= kFull; ++i) refused = group(0)->submit(barrier(Drive::kThread));
  });
  expect_sequence(*group(0), kFull);
  group(0)->abort("no more");
  caller.join();
  ASSERT_TRUE(refused->is_done() && refused->failure());
  EXPECT_THAT(refused->failure()->message, HasSubstr("no more"));
}

TEST_F(EngineTest, ACallbackThatSubmitsToAFullGroupDoesNotWait) {
  constexpr int kMore = 10;
  start(2);
  const auto first = group(0)->submit(barrier(Drive::kThread));
  const Event submitted;
  std::vector<std::shared_ptr<Operation>> more;
  group(0)->on_done(first, [&, submitted] {
    for (int i = 0; i < kMore; ++i) more.push_back(group(0)->submit(barrier(Drive::kThread)));
    submitted.set();
  });
  for (int i = 1; i < kFull; ++i) group(0)->submit(barrier(Drive::kThread));
  group(1)->submit(barrier(Drive::kThread));
  ASSERT_TRUE(submitted.comes());
  EXPECT_EQ(group(0)->sequence(), kFull + kMore);
  for (int i = 1; i < kFull + kMore; ++i) group(1)->submit(barrier(Drive::kThread));
  EXPECT_TRUE(group(0)->wait(*more.back()));
  EXPECT_FALSE(more.back()->failure());
}

TEST_F(EngineTest, AGroupThatIsDestroyedEndsItsOperations) {
  start(2);
  bool freed = false;
  const auto operation = group(0)->submit(barrier(Drive::kThread, at_end([&] { freed = true; })));
  const Event ended = end_of(group(0), operation);
  group(0) = nullptr;
  EXPECT_TRUE(ended.comes());
  ASSERT_TRUE(operation->failure());
  EXPECT_EQ(operation->failure()->kind, FailureKind::kAborted);
  ranks_[0].engine = nullptr;
  EXPECT_TRUE(freed);
}

TEST_F(EngineTest, AnAbortOnOneRankEndsTheOperationsOfAll) {
  start(2);
  // They have met.
  const auto first = end_of(group(1), group(1)->submit(barrier(Drive::kThread)));
  group(0)->wait(*group(0)->submit(barrier(Drive::kCaller)));
  const auto operation = group(1)->submit(barrier(Drive::kThread));
  group(0)->abort("the user said so");
  EXPECT_TRUE(end_of(group(1), operation).comes());
  ASSERT_TRUE(operation->failure());
  EXPECT_THAT(operation->failure()->message, HasSubstr("the user said so"));
  EXPECT_TRUE(group(0)->failure());
}

TEST_F(EngineTest, ARankThatLeavesAGroupKeepsNobodyWaiting) {
  start(2);
  // They have met.
  const auto first = end_of(group(1), group(1)->submit(barrier(Drive::kThread)));
  group(0)->wait(*group(0)->submit(barrier(Drive::kCaller)));
  EXPECT_TRUE(first.comes());
  const auto operation = group(1)->submit(barrier(Drive::kThread));
  group(0)->leave("The program is done with it.");
  EXPECT_TRUE(end_of(group(1), operation).comes());
  ASSERT_TRUE(operation->failure());
  EXPECT_EQ(operation->failure()->kind, FailureKind::kPeerLeft);
  EXPECT_THAT(operation->failure()->message,
              HasSubstr("rank 0 left without taking its part in barrier number 2"));
  const auto late = group(0)->submit(barrier(Drive::kCaller));
  ASSERT_TRUE(late->is_done() && late->failure());
  EXPECT_EQ(late->failure()->kind, FailureKind::kAborted);
  EXPECT_THAT(late->failure()->message, HasSubstr("The program is done with it."));
}

TEST_F(EngineTest, MemoryOfAFailedOperationIsFreedThoughNobodyWaits) {
  start(2);
  const auto first = end_of(group(1), group(1)->submit(barrier(Drive::kThread)));
  group(0)->wait(*group(0)->submit(barrier(Drive::kCaller)));
  const Event freed;
  group(0)->submit(barrier(Drive::kCaller, at_end([freed] { freed.set(); })));
  group(0)->abort("no more");
  EXPECT_TRUE(freed.comes());
}

TEST_F(EngineTest, TheEngineMayEndOnItsOwnThread) {
  start(2);
  const Event ended;
  const auto operation = group(0)->submit(barrier(Drive::kThread));
  const auto last = std::make_shared<std::shared_ptr<Group>>();
  group(0)->on_done(operation, [ended, last] {
    *last = nullptr;
    ended.set();
  });
  *last = std::move(group(0));
  ranks_[0].engine = nullptr;
  group(1)->submit(barrier(Drive::kThread));
  EXPECT_TRUE(ended.comes());
}

TEST_F(EngineTest, ARankThatIsNeverFoundFailsTheGroup) {
  class EmptyBook final : public AddressBook {
   public:
    std::optional<std::string> publish(int, const AddressRecord&) override { return std::nullopt; }
    // Before it returns.
    void look_up(const std::vector<int>& ranks, Found found) override {
      for (const int rank : ranks) found(rank, std::nullopt, "there is nobody");
    }
    void stop() override {}
  };
  start(1);
  std::shared_ptr<Group> alone;
  ASSERT_EQ(ranks_[0].engine->join(config_of("alone", 0, 2), std::make_unique<EmptyBook>(), &alone),
            std::nullopt);
  const auto operation = alone->submit(barrier(Drive::kCaller));
  EXPECT_TRUE(alone->wait(*operation));
  ASSERT_TRUE(operation->failure());
  EXPECT_THAT(operation->failure()->message, HasSubstr("there is nobody"));
}

TEST_F(EngineTest, ABookThatRefusesIsTheErrorOfJoining) {
  class FullBook final : public AddressBook {
   public:
    std::optional<std::string> publish(int, const AddressRecord&) override { return "taken"; }
    void look_up(const std::vector<int>&, Found) override {}
    void stop() override {}
  };
  start(1);
  std::shared_ptr<Group> none;
  EXPECT_EQ(ranks_[0].engine->join(config_of("none", 0, 2), std::make_unique<FullBook>(), &none),
            "taken");
  EXPECT_EQ(none, nullptr);
}

TEST_F(EngineTest, AGroupOfMoreRanksThanTagsNumberIsRefused) {
  start(1);
  std::shared_ptr<Group> none;
  const auto error = ranks_[0].engine->join(config_of("crowd", 7, kMaxRanks + 1),
                                            std::make_unique<StoreBook>(store_, "crowd"), &none);
  EXPECT_EQ(error, "group \"crowd\" has 16385 ranks, and messages can name 16384");
  EXPECT_EQ(none, nullptr);
}

TEST_F(EngineTest, MoreGroupsThanTagsNumberAreRefusedOnAllRanks) {
  class LastBook final : public AddressBook {
   public:
    explicit LastBook(AddressRecord& last) : last_(last) {}
    std::optional<std::string> publish(int, const AddressRecord& record) override {
      last_ = record;
      return std::nullopt;
    }
    void look_up(const std::vector<int>&, Found) override {}
    void stop() override {}

   private:
    AddressRecord& last_;
  };
  start(1);  // its world is the first group
  AddressRecord last;
  std::optional<std::string> error;
  for (int64_t groups = 1; groups < kMaxGroups; ++groups) {
    std::shared_ptr<Group> group;
    ASSERT_EQ(error, std::nullopt) << groups;
    error =
        ranks_[0].engine->join(config_of("again", 0, 1), std::make_unique<LastBook>(last), &group);
  }
  EXPECT_EQ(error, too_many_groups("again", 0));
  EXPECT_THAT(*error, HasSubstr("its process has made 262143 groups"));
  EXPECT_EQ(last.group, 0u) << "and so says its record";
}

// News from outside reach a caller that sleeps.
class TestWatch final : public PeerWatch {
 public:
  struct Seen {
    Listener listener;
    bool stopped = false;
    // Whether operations are under way, and since when, in the order of the calls.
    std::vector<std::pair<bool, SteadyNanos>> under_way;
  };
  explicit TestWatch(Seen& seen) : seen_(seen) {}
  void start(Listener listener) override { seen_.listener = std::move(listener); }
  void report(const WaitReport&) override {}
  void withdraw(int) override {}
  void under_way(bool any, SteadyNanos at, int64_t) override {
    if (seen_.under_way.empty() || seen_.under_way.back().first != any)
      seen_.under_way.emplace_back(any, at);
  }
  void stop() override { seen_.stopped = true; }

 private:
  Seen& seen_;
};

// The rank that comes last has waited least: that tells a slow rank from those that wait for it.
TEST_F(EngineTest, TheWatchHearsWhenTheFirstOperationBeginsAndTheLastHasEnded) {
  start(2);
  TestWatch::Seen seen;
  Engine::Options options;
  options.dump = [](const std::string&) {};
  options.watch = std::make_unique<TestWatch>(seen);
  const auto engine = Engine::start(network_.create_transport(), std::move(options));
  std::shared_ptr<Group> group, other;
  const auto book = [&] { return std::make_unique<StoreBook>(store_, "w"); };
  ASSERT_EQ(engine->join(config_of("watched", 0, 2), book(), &group), std::nullopt);
  ASSERT_EQ(ranks_[1].engine->join(config_of("watched", 1, 2), book(), &other), std::nullopt);
  const auto look = [&] {
    engine->counters();  // behind the call that ended them
    return seen.under_way;
  };
  EXPECT_TRUE(look().empty());
  const SteadyNanos begin = Clock::Real().SteadyNow();
  // Two at once are no more than one.
  const auto first = group->submit(barrier(Drive::kCaller));
  const auto second = group->submit(barrier(Drive::kThread));
  ASSERT_EQ(look().size(), 1u);
  EXPECT_TRUE(look()[0].first);
  EXPECT_GE(look()[0].second, begin);
  const SteadyNanos come = Clock::Real().SteadyNow();
  std::thread late([&] {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(other->wait(*other->submit(barrier(Drive::kCaller))));
  });
  EXPECT_TRUE(group->wait(*first));
  EXPECT_TRUE(group->wait(*second));
  late.join();
  ASSERT_EQ(look().size(), 2u);
  EXPECT_FALSE(look()[1].first);
  EXPECT_GE(look()[1].second, come);
  // One that fails has ended, too.
  const auto lost = group->submit(barrier(Drive::kCaller));
  EXPECT_EQ(look().size(), 3u);
  seen.listener(PeerLost{1, "killed by SIGKILL"});
  EXPECT_TRUE(group->wait(*lost));
  EXPECT_TRUE(lost->failure());
  ASSERT_EQ(look().size(), 4u);
  EXPECT_FALSE(look()[3].first);
}

TEST_F(EngineTest, TheDeathOfARankEndsAWait) {
  start(2);
  TestWatch::Seen seen;
  {
    Engine::Options options;
    options.dump = [](const std::string&) {};
    options.watch = std::make_unique<TestWatch>(seen);
    const auto engine = Engine::start(network_.create_transport(), std::move(options));
    std::shared_ptr<Group> group;
    ASSERT_EQ(
        engine->join(config_of("watched", 0, 2), std::make_unique<StoreBook>(store_, "w"), &group),
        std::nullopt);
    std::shared_ptr<Group> other;
    ASSERT_EQ(ranks_[1].engine->join(config_of("watched", 1, 2),
                                     std::make_unique<StoreBook>(store_, "w"), &other),
              std::nullopt);
    std::thread news([&] { seen.listener(PeerLost{1, "killed by SIGKILL"}); });
    const auto operation = group->submit(barrier(Drive::kCaller));
    EXPECT_TRUE(group->wait(*operation));
    news.join();
    ASSERT_TRUE(operation->failure());
    EXPECT_EQ(operation->failure()->kind, FailureKind::kPeerLost);
    EXPECT_THAT(operation->failure()->message, HasSubstr("killed by SIGKILL"));
  }
  EXPECT_TRUE(seen.stopped);
}

TEST_F(EngineTest, AForkedChildGetsAnErrorAndTouchesNothing) {
  start(1);
  const pid_t child = fork();
  if (child == 0) {
    const auto operation = group(0)->submit(barrier(Drive::kCaller));
    const bool failed = operation->is_done() && operation->failure();
    group(0) = nullptr;
    ranks_[0].engine = nullptr;
    _exit(failed ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(group(0)->wait(*group(0)->submit(barrier(Drive::kCaller))));
}

// The watch asks how many threads might call; those that have ended cannot.
TEST_F(EngineTest, ThreadsThatHaveEndedAreForgotten) {
  start(1);
  for (int i = 0; i < 1000; ++i) {
    std::thread([&] { group(0)->wait(*group(0)->submit(barrier(Drive::kCaller))); }).join();
  }
  EXPECT_LE(ranks_[0].engine->counters().submitters, 65);
  std::vector<std::thread> alive;
  std::atomic<int> submitted{0};
  std::atomic<bool> ends{false};
  for (int i = 0; i < 70; ++i) {
    alive.emplace_back([&] {
      group(0)->wait(*group(0)->submit(barrier(Drive::kCaller)));
      ++submitted;
      while (!ends) sched_yield();
    });
  }
  while (submitted < 70) sched_yield();
  EXPECT_GE(ranks_[0].engine->counters().submitters, 70);
  ends = true;
  for (std::thread& thread : alive) thread.join();
}

// A fork during a call: the child's copy of the engine's lock is held for ever, so whatever touches
// it hangs.
TEST_F(EngineTest, AChildThatIsForkedDuringACallGetsErrorsAtOnceAndTheCallGoesOn) {
  start(2);
  std::atomic<bool> is_waiting{false};
  std::atomic<pid_t> child{-1};
  std::shared_ptr<Operation> operation;
  const auto problem_in_child = [&]() -> int {
    Group& rank_0 = *group(0);
    if (operation->is_done()) return 1;
    if (rank_0.wait(*operation) || rank_0.wait(*operation, kDeadline)) return 2;
    const std::optional<Failure> why = rank_0.cannot_end(*operation);
    if (!why || why->message.find("was forked from that of rank 0") == why->message.npos) return 3;
    const auto later = rank_0.submit(barrier(Drive::kThread));
    if (!later->is_done() || !later->failure() || !rank_0.wait(*later)) return 4;
    rank_0.poll();
    rank_0.hand_over(*operation);
    rank_0.on_done(operation, [] { _exit(5); });
    rank_0.abort("the child says so");
    rank_0.leave("the child says so");
    if (!rank_0.failure() || !rank_0.unfinished().empty() || !rank_0.is_forked()) return 6;
    if (rank_0.sequence() != 0 || rank_0.flight_record() != "{}") return 7;
    std::shared_ptr<Group> other;
    if (!ranks_[0].engine->join(config_of("other", 0, 2), nullptr, &other)) return 8;
    if (ranks_[0].engine->counters().operations != 0) return 9;
    if (ranks_[0].engine->flight_records().empty()) return 10;
    group(0) = nullptr;
    ranks_[0].engine = nullptr;
    return 0;
  };
  ranks_[0].counts.on_poll = [&] {
    if (!is_waiting || child != -1) return;
    const pid_t forked = fork();
    if (forked != 0) {
      child = forked;
      return;
    }
    alarm(static_cast<unsigned>(kDeadline.count()));
    _exit(problem_in_child());
  };
  operation = group(0)->submit(barrier(Drive::kCaller));
  is_waiting = true;
  std::thread waits([&] { EXPECT_TRUE(group(0)->wait(*operation)); });
  while (child == -1) sched_yield();
  EXPECT_TRUE(group(1)->wait(*group(1)->submit(barrier(Drive::kCaller))));
  waits.join();
  EXPECT_FALSE(operation->failure());
  EXPECT_FALSE(group(0)->cannot_end(*operation));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
  EXPECT_FALSE(group(0)->failure().has_value());
}

// How many polls a wait takes at most between two events, where ranks share cores: 50 between each
// of 10 yields. After a sleep it takes one more.
constexpr int64_t kPollsPerEvent = 600;

TEST_F(EngineTest, EightRanksDoAThousandBarriers) {
  constexpr int kRanks = 8;
  constexpr int kBarriers = 1000;
  start(kRanks, /*cores=*/2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([group = group(rank)] {
      for (int i = 0; i < kBarriers; ++i) {
        const auto operation = group->submit(barrier(Drive::kCaller));
        EXPECT_TRUE(group->wait(*operation));
        ASSERT_FALSE(operation->failure()) << operation->failure()->message;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Rank& rank : ranks_) {
    // ceil(log2 8) messages a barrier: a poll brings it, perhaps another one the receive of it.
    EXPECT_LE(rank.counts.moves, 2 * 3 * kBarriers);
    EXPECT_LE(rank.counts.polls,
              (rank.counts.moves + kBarriers) * kPollsPerEvent + rank.counts.arms);
  }
}

// ---- Hosts

TEST(HostTest, RanksOfAnotherKernelOrIpcNamespaceShareNoCores) {
  const NodeFacts facts{
      .host_name = "a", .boot_id = "1", .shm_device = 7, .ipc_namespace = "ipc:[2]"};
  const auto changed = [&](auto change) {
    NodeFacts other = facts;
    change(other);
    return host_of(other) != host_of(facts);
  };
  EXPECT_TRUE(changed([](NodeFacts& f) { f.boot_id = "3"; }));
  EXPECT_TRUE(changed([](NodeFacts& f) { f.ipc_namespace = "ipc:[3]"; }));
  EXPECT_FALSE(changed([](NodeFacts& f) { f.host_name = "b"; })) << "a container's name";
  EXPECT_EQ(this_host(), host_of(node_facts(), os::FindCpuQuota()));
}

TEST(HostTest, RanksWithAQuotaEachShareNoCores) {
  const NodeFacts facts{.host_name = "a", .boot_id = "1", .shm_device = 7, .ipc_namespace = "i"};
  const uint64_t alone = host_of(facts, {.cores = 0.5, .cgroup = 11});
  EXPECT_NE(alone, host_of(facts, {.cores = 0.5, .cgroup = 12}));
  EXPECT_EQ(alone, host_of(facts, {.cores = 0.5, .cgroup = 11})) << "one cgroup, one quota";
  EXPECT_EQ(host_of(facts), host_of(facts, {.cores = 1e6, .cgroup = 12})) << "limits nobody";
}

// ---- Over UCX: each rank a process, forked before any call of UCX.

// What a rank does; the text of what is wrong.
using RankMain = std::function<std::string(int rank, const std::shared_ptr<Group>& group,
                                           const CountingTransport::Counts& counts)>;

std::string run_rank(Board& board, int rank, int size, const RankMain& rank_main) {
  absl::StatusOr<std::unique_ptr<Transport>> transport = create_ucx_transport();
  if (!transport.ok()) return transport.status().ToString();
  CountingTransport::Counts counts;
  Engine::Options options;
  options.cores = 2;
  const auto engine = Engine::start(
      std::make_unique<CountingTransport>(*std::move(transport), counts), std::move(options));
  std::shared_ptr<Group> group;
  const auto error =
      engine->join(config_of("world", rank, size), std::make_unique<BoardBook>(board), &group);
  return error ? *error : rank_main(rank, group, counts);
}

std::string run_ranks(int size, const RankMain& rank_main) {
  return run_forked(size, kDeadline,
                    [&](Board& board, int rank) { return run_rank(board, rank, size, rank_main); });
}

// Peak resident memory of this process.
int64_t peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(EngineOverUcxTest, EightRanksDoAThousandBarriers) {
  constexpr int kBarriers = 1000;
  const auto rank_main = [](int, const std::shared_ptr<Group>& group,
                            const CountingTransport::Counts& counts) -> std::string {
    for (int i = 0; i < kBarriers; ++i) {
      const auto operation = group->submit(barrier(Drive::kCaller));
      group->wait(*operation);
      if (operation->failure()) return operation->failure()->message;
    }
    const int64_t most = (counts.moves + kBarriers) * kPollsPerEvent + counts.arms;
    return counts.polls <= most ? "" : std::to_string(counts.polls) + " polls";
  };
  EXPECT_EQ(run_ranks(8, rank_main), "");
}

// A container's /dev/shm, in a mount namespace of the child's own.
TEST(EngineOverUcxTest, ASmallSharedMemoryIsNamed) {
  int output[2];
  ASSERT_EQ(pipe(output), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(output[1], STDOUT_FILENO);
    close(output[0]);
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=8m") != 0) {
      _exit(77);
    }
    // Ranks enough, as far as /dev/shm knows.
    std::vector<std::unique_ptr<Transport>> ranks;
    while (ranks.size() < 4) {
      absl::StatusOr<std::unique_ptr<Transport>> rank = create_ucx_transport();
      if (!rank.ok()) {
        dprintf(STDOUT_FILENO, "after %zu: %s", ranks.size(), rank.status().ToString().c_str());
        _exit(0);
      }
      ranks.push_back(*std::move(rank));
    }
    _exit(1);
  }
  close(output[1]);
  // UCX's own words too.
  std::string said;
  std::array<char, 4096> part;
  for (ssize_t n; (n = read(output[0], part.data(), part.size())) > 0;) said.append(part.data(), n);
  close(output[0]);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no mount namespace may be made here";
  ASSERT_EQ(status, 0) << "four ranks were found to fit";
  EXPECT_THAT(said, HasSubstr("after 1: "));
  EXPECT_THAT(said, HasSubstr("/dev/shm is too small for the ranks of this host. /dev/shm has 8.0 "
                              "MiB, of which "));
  EXPECT_THAT(said, HasSubstr("room for 0 more ranks"));
  EXPECT_THAT(said, HasSubstr("--shm-size"));
}

// All that two ranks have outstanding at once costs memory, and no more than a full group's.
TEST(EngineOverUcxTest, TwentyThousandAllReducesAreOutstanding) {
  constexpr int kOperations = 20'000;
  constexpr int64_t kCount = 256;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int64_t kMostKiB = 256 << 10;  // with its shadow
#else
  constexpr int64_t kMostKiB = 64 << 10;
#endif
  const auto rank_main = [](int rank, const std::shared_ptr<Group>& group,
                            const CountingTransport::Counts&) -> std::string {
    const CollectiveCall call(OperationKind::kAllReduce, 2, DType::kFloat32, {kCount}, 0, 1);
    std::vector<CallMemory> memory(kOperations + 1, call.memory(rank));
    const OperationSpec one = call.spec(group->place(), memory[0]);
    const auto submit = [&](int i) {
      OperationSpec spec = one;
      spec.outputs[0].data = memory[i].outputs[0].data();
      spec.timeout = kDeadline;
      return group->submit(std::move(spec));
    };
    group->wait(*submit(kOperations));
    const int64_t before = peak_kib();
    std::vector<std::shared_ptr<Operation>> operations;
    for (int i = 0; i < kOperations; ++i) operations.push_back(submit(i));
    for (const auto& operation : operations) {
      group->wait(*operation);
      if (operation->failure()) return operation->failure()->message;
    }
    const int64_t grown = peak_kib() - before;
    const auto expected = call.expected(rank);
    for (const CallMemory& its : memory) {
      if (its.outputs != expected) return "a wrong sum";
    }
    std::printf("rank %d: %d outstanding all_reduces took %.1f MiB\n", rank, kOperations,
                static_cast<double>(grown) / 1024);
    std::fflush(stdout);
    return grown <= kMostKiB ? "" : std::to_string(grown) + " KiB";
  };
  EXPECT_EQ(run_ranks(2, rank_main), "");
}

TEST(EngineOverUcxTest, LargeMessagesArriveThoughNobodyWaits) {
  const auto rank_main = [](int rank, const std::shared_ptr<Group>& group,
                            const CountingTransport::Counts&) -> std::string {
    std::vector<std::byte> sent(4 << 20, std::byte(rank + 1)), received(4 << 20);
    const Event out = end_of(group, group->submit(message(true, 1 - rank, sent)));
    const Event in = end_of(group, group->submit(message(false, 1 - rank, received)));
    if (!in.comes() || !out.comes()) return "it does not end";
    if (received != std::vector<std::byte>(4 << 20, std::byte(2 - rank))) return "wrong bytes";
    group->wait(*group->submit(barrier(Drive::kCaller)));
    return "";
  };
  EXPECT_EQ(run_ranks(2, rank_main), "");
}

// 32,768 chunks of 64 bytes each way, were they not longer: more than tags number.
TEST(EngineOverUcxTest, AnAllReduceOfMoreChunksThanTagsNumberIsRight) {
  LargeSums sums;
  sums.count = 1 << 19;
  sums.tuning.reduce_chunk = 64;
  for (const int64_t heap : {0, 16 << 20}) {
    sums.heap_bytes = heap;
    EXPECT_EQ(run_forked(2, kDeadline, sums), "") << heap;
  }
}

TEST(EngineOverUcxTest, OperationsUnderWayEndInOrder) {
  const auto rank_main = [](int rank, const std::shared_ptr<Group>& group,
                            const CountingTransport::Counts&) -> std::string {
    group->wait(*group->submit(barrier(Drive::kCaller)));
    // Rank 1 leaves with a receive and a barrier open; rank 0 hears of it.
    const auto memory = std::make_shared<std::vector<std::byte>>(1 << 20);
    PointToPointSpec receive = message(false, 1 - rank, *memory);
    receive.keep_alive = memory;
    const auto open = group->submit(std::move(receive));
    if (rank == 1) {
      group->submit(barrier(Drive::kThread));
      return "";
    }
    group->wait(*open);
    return open->failure() ? "" : "it did not fail";
  };
  EXPECT_EQ(run_ranks(2, rank_main), "");
}

}  // namespace
}  // namespace meshrun::ucx
