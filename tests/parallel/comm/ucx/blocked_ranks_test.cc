// What an engine tells its watch of a rank that is blocked, and what comes of it: engines of one
// process over the in-memory network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/comm/ucx/engine/execution/engine.h"
#include "parallel/comm/ucx/engine/liveness/hub_watch.h"
#include "tests/parallel/comm/ucx/memory_transport.h"

namespace meshrun::ucx {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kWaitLimit(60);

// Runs, and can be put forward.
class JumpingClock final : public Clock {
 public:
  SteadyNanos SteadyNow() const override {
    ++reads_;
    return Clock::Real().SteadyNow() + std::chrono::seconds(ahead_);
  }
  WallNanos WallNow() const override { return Clock::Real().WallNow(); }
  void jump(int seconds) { ahead_ += seconds; }
  // Until whoever sleeps has looked at it several times.
  void wait_until_read() const {
    for (const int64_t before = reads_; reads_ < before + 10;) std::this_thread::yield();
  }

 private:
  std::atomic<int> ahead_{0};
  mutable std::atomic<int64_t> reads_{0};
};

// Records of ranks that have joined, which all do before any looks one up.
class Book final : public AddressBook {
 public:
  using Records = std::map<int, AddressRecord>;
  explicit Book(Records& records) : records_(records) {}

  std::optional<std::string> publish(int rank, const AddressRecord& record) override {
    records_[rank] = record;
    return std::nullopt;
  }
  void look_up(const std::vector<int>& ranks, Found found) override {
    for (const int rank : ranks) found(rank, records_.at(rank), "");
  }
  void stop() override {}

 private:
  Records& records_;
};

// Keeps what it is told.
struct Told {
  std::mutex mu;
  std::condition_variable changed;
  std::vector<WaitReport> reports;
  int withdrawals = 0;

  // Until there are so many.
  bool wait_for(size_t so_many, int withdrawn) {
    std::unique_lock lock(mu);
    return changed.wait_for(lock, kWaitLimit,
                            [&] { return reports.size() >= so_many && withdrawals >= withdrawn; });
  }
  size_t count() {
    const std::lock_guard lock(mu);
    return reports.size();
  }
};

class TellingWatch final : public PeerWatch {
 public:
  explicit TellingWatch(Told& told) : told_(told) {}
  void start(Listener) override {}
  void report(const WaitReport& report) override {
    const std::lock_guard lock(told_.mu);
    told_.reports.push_back(report);
    told_.changed.notify_all();
  }
  void withdraw(int) override {
    const std::lock_guard lock(told_.mu);
    ++told_.withdrawals;
    told_.changed.notify_all();
  }
  void stop() override {}

 private:
  Told& told_;
};

OperationSpec barrier(std::chrono::nanoseconds timeout = kWaitLimit) {
  OperationSpec spec;
  spec.signature.kind = OperationKind::kBarrier;
  spec.timeout = timeout;
  spec.drive = Drive::kCaller;
  return spec;
}

class BlockedRanksTest : public testing::Test {
 protected:
  std::shared_ptr<Engine> engine(std::unique_ptr<PeerWatch> watch) {
    Engine::Options options{.clock = clock_};
    options.watch = std::move(watch);
    options.dump = [](const std::string&) {};
    options.cores = 1;
    return Engine::start(network_.create_transport(), std::move(options));
  }
  std::shared_ptr<Group> join(const std::shared_ptr<Engine>& engine, const std::string& name,
                              int rank, int size = 2) {
    GroupConfig config;
    config.name = name;
    config.rank = rank;
    config.size = size;
    std::shared_ptr<Group> group;
    EXPECT_EQ(engine->join(config, std::make_unique<Book>(books_[name]), &group), std::nullopt);
    return group;
  }

  JumpingClock clock_;
  MemoryNetwork network_{{.seed = 1, .deliveries_per_progress = 4}};
  std::map<std::string, Book::Records> books_;
};

TEST_F(BlockedRanksTest, ARankThatIsBlockedForTwoSecondsSaysSo) {
  Told told;
  const auto first = engine(std::make_unique<TellingWatch>(told));
  const auto second = engine(nullptr);
  const auto group = join(first, "a", 0), other = join(second, "a", 1);
  const auto unused = join(first, "b", 0);
  std::thread blocked([&] {
    const auto operation = group->submit(barrier());
    EXPECT_TRUE(group->wait(*operation));
    EXPECT_FALSE(operation->failure());
  });
  clock_.wait_until_read();
  EXPECT_EQ(told.count(), 0u);
  clock_.jump(2);
  ASSERT_TRUE(told.wait_for(1, 0));
  const WaitReport report = told.reports[0];
  EXPECT_EQ(report.rank, 0);
  const WaitCall expected{"a", {0, 1}, 1, {}, "barrier number 1 of group \"a\"", false};
  EXPECT_EQ(report.calls, std::vector{expected});
  EXPECT_EQ(report.called, (std::map<std::string, uint64_t>{{"a", 1}, {"b", 0}}));
  EXPECT_EQ(report.other_threads, 0);
  EXPECT_EQ(report.deadlock_after, WaitReport::kDeadlockAfter);
  // Once is enough.
  clock_.jump(2);
  clock_.wait_until_read();
  EXPECT_EQ(told.count(), 1u);
  EXPECT_TRUE(other->wait(*other->submit(barrier())));
  blocked.join();
  EXPECT_TRUE(told.wait_for(1, 1));
}

TEST_F(BlockedRanksTest, ARankWhoseWaitHasATimeoutIsNotBlocked) {
  Told told;
  const auto first = engine(std::make_unique<TellingWatch>(told));
  const auto second = engine(nullptr);
  const auto group = join(first, "a", 0), other = join(second, "a", 1);
  std::thread waits([&] {
    const auto operation = group->submit(barrier());
    EXPECT_FALSE(group->wait(*operation, std::chrono::seconds(4)));
  });
  clock_.wait_until_read();
  clock_.jump(3);
  clock_.wait_until_read();
  clock_.jump(3);
  waits.join();
  EXPECT_EQ(told.count(), 0u);
}

TEST_F(BlockedRanksTest, AThreadThatHasCalledAndIsNotBlockedIsCounted) {
  Told told;
  const auto first = engine(std::make_unique<TellingWatch>(told));
  const auto second = engine(nullptr);
  const auto group = join(first, "a", 0), other = join(second, "a", 1);
  // This thread may call more.
  const auto operation = group->submit(barrier());
  std::thread waits([&] { EXPECT_TRUE(group->wait(*operation)); });
  clock_.wait_until_read();
  clock_.jump(3);
  ASSERT_TRUE(told.wait_for(1, 0));
  EXPECT_EQ(told.reports[0].calls.size(), 1u);
  EXPECT_EQ(told.reports[0].other_threads, 1);
  EXPECT_TRUE(other->wait(*other->submit(barrier())));
  waits.join();
}

TEST_F(BlockedRanksTest, AllOperationsThatThreadsAreBlockedInAreReported) {
  Told told;
  const auto first = engine(std::make_unique<TellingWatch>(told));
  const auto second = engine(nullptr);
  const auto a = join(first, "a", 0), other_a = join(second, "a", 1);
  const auto b = join(first, "b", 0), other_b = join(second, "b", 1);
  // It has called, and has ended.
  std::thread([&] {
    const auto early = a->submit(barrier());
    EXPECT_TRUE(other_a->wait(*other_a->submit(barrier())));
    EXPECT_TRUE(a->wait(*early));
  }).join();
  std::latch submitted(2);
  std::vector<std::thread> threads;
  for (const auto& group : {a, b}) {
    threads.emplace_back([&, group] {
      const auto operation = group->submit(barrier());
      submitted.count_down();
      EXPECT_TRUE(group->wait(*operation));
    });
  }
  submitted.wait();
  // One may begin to wait later than the other: until it counts it is another thread.
  size_t count = 0;
  WaitReport report;
  do {
    clock_.jump(2);
    ASSERT_TRUE(told.wait_for(++count, 0));
    const std::lock_guard lock(told.mu);
    count = told.reports.size();
    report = told.reports.back();
  } while (report.other_threads > 0);
  ASSERT_EQ(report.calls.size(), 2u);
  EXPECT_NE(report.calls[0].group, report.calls[1].group);
  EXPECT_TRUE(other_a->wait(*other_a->submit(barrier())));
  EXPECT_TRUE(other_b->wait(*other_b->submit(barrier())));
  for (std::thread& thread : threads) thread.join();
}

TEST_F(BlockedRanksTest, ACallOnAnotherThreadTakesTheReportBack) {
  Told told;
  const auto first = engine(std::make_unique<TellingWatch>(told));
  const auto second = engine(nullptr);
  const auto group = join(first, "a", 0), other = join(second, "a", 1);
  std::thread waits([&] { EXPECT_TRUE(group->wait(*group->submit(barrier()))); });
  clock_.wait_until_read();
  clock_.jump(2);
  ASSERT_TRUE(told.wait_for(1, 0));
  const auto late = group->submit(barrier());
  EXPECT_TRUE(told.wait_for(1, 1));
  EXPECT_TRUE(other->wait(*other->submit(barrier())));
  waits.join();
  EXPECT_TRUE(other->wait(*other->submit(barrier())));
  EXPECT_TRUE(group->wait(*late));
}

// Asks once.
class AskingWatch final : public PeerWatch {
 public:
  explicit AskingWatch(Listener& listener) : listener_(listener) {}
  void start(Listener listener) override { listener_ = std::move(listener); }
  void report(const WaitReport&) override {}
  void withdraw(int) override {}
  void stop() override {}

 private:
  Listener& listener_;
};

TEST_F(BlockedRanksTest, WhoAsksGetsTheRecordsOfAllGroups) {
  PeerWatch::Listener listener;
  const auto first = engine(std::make_unique<AskingWatch>(listener));
  const auto group = join(first, "a", 0, 1), other = join(first, "b", 0, 1);
  EXPECT_TRUE(other->wait(*other->submit(barrier())));
  std::string json;
  listener(RecordWanted{.tell = [&](const std::string& records) { json = records; }});
  EXPECT_THAT(json, testing::StartsWith("{\"now_ms\":"));
  EXPECT_THAT(json, HasSubstr(",\"groups\":[{\"group\":\"a\",\"operations\":[]},{\"group\":\"b\""));
  EXPECT_THAT(json, HasSubstr("\"operation\":\"barrier\",\"state\":\"done\""));
}

// Each rank a thread, with a watch of its own.
class WatchedRanksTest : public BlockedRanksTest {
 protected:
  std::shared_ptr<Engine> watched(int rank, int size,
                                  std::function<void(const std::string&)> suspect = nullptr) {
    HubWatchOptions options;
    options.world_rank = rank;
    options.world_size = size;
    options.set_endpoint = [this](const std::string& value) { endpoint_ = value; };
    options.get_endpoint = [this] { return endpoint_; };
    options.timeout = kWaitLimit;
    if (suspect) options.suspect = std::move(suspect);
    absl::StatusOr<std::unique_ptr<PeerWatch>> watch = create_hub_watch(options);
    EXPECT_TRUE(watch.ok()) << watch.status();
    return watch.ok() ? engine(*std::move(watch)) : nullptr;
  }

 private:
  std::string endpoint_;
};

TEST_F(WatchedRanksTest, TwoGroupsInOppositeOrderFailOnBothRanksAndGoOn) {
  std::vector<std::shared_ptr<Engine>> engines = {watched(0, 2), watched(1, 2)};
  struct Groups {
    std::shared_ptr<Group> a, b;
  };
  std::vector<Groups> groups;
  for (int rank = 0; rank < 2; ++rank) {
    groups.push_back({join(engines[rank], "a", rank), join(engines[rank], "b", rank)});
  }
  std::vector<std::string> said(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Group& first = rank == 0 ? *groups[rank].a : *groups[rank].b;
      const auto stuck = first.submit(barrier());
      EXPECT_TRUE(first.wait(*stuck));
      ASSERT_TRUE(stuck->failure());
      EXPECT_EQ(stuck->failure()->kind, FailureKind::kDeadlock);
      EXPECT_TRUE(stuck->failure()->group_survives);
      EXPECT_EQ(stuck->failure()->ranks, (std::vector{0, 1}));
      said[rank] = stuck->failure()->message;
      for (const auto& group : {groups[rank].a, groups[rank].b}) {
        const auto next = group->submit(barrier());
        EXPECT_TRUE(group->wait(*next));
        EXPECT_FALSE(next->failure()) << next->failure()->message;
        EXPECT_EQ(next->sequence(), 2u);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(said[0], said[1]);
  EXPECT_THAT(said[0], HasSubstr("ranks 0 and 1 wait for each other in vain: rank 0 is in barrier "
                                 "number 1 of group \"a\", which rank 1 has not called; rank 1 is "
                                 "in barrier number 1 of group \"b\""));
}

// Rank 0 has a second thread, which has used group "b" before and comes late to it.
TEST_F(WatchedRanksTest, AThreadThatComesLateToASecondGroupIsNoDeadlock) {
  std::promise<std::string> suspicion;
  const auto suspect = [&](const std::string& sentence) { suspicion.set_value(sentence); };
  std::vector<std::shared_ptr<Engine>> engines = {watched(0, 2, suspect), watched(1, 2)};
  std::vector<std::shared_ptr<Group>> a, b;
  for (int rank = 0; rank < 2; ++rank) {
    a.push_back(join(engines[rank], "a", rank));
    b.push_back(join(engines[rank], "b", rank));
  }
  const auto call = [](Group& group) {
    const auto operation = group.submit(barrier());
    EXPECT_TRUE(group.wait(*operation));
    EXPECT_FALSE(operation->failure()) << operation->failure()->message;
  };
  std::promise<void> has_called, may_call;
  std::thread late([&] {
    call(*b[0]);
    has_called.set_value();
    may_call.get_future().wait();
    call(*b[0]);
  });
  std::thread first([&] {
    has_called.get_future().wait();
    call(*a[0]);
  });
  std::thread other([&] {
    call(*b[1]);
    call(*b[1]);
    call(*a[1]);
  });
  auto said = suspicion.get_future();
  while (said.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) clock_.jump(1);
  EXPECT_THAT(said.get(), HasSubstr("No error follows, since rank 0 has another thread"));
  may_call.set_value();
  for (std::thread* thread : {&late, &first, &other}) thread->join();
}

// Rank 2 waits for rank 1, which is in the other group for good: there it is not waited for in a
// circle, but its partner has left.
TEST_F(WatchedRanksTest, ARankThatLeftEndsWhatWaitsForItAndNothingElse) {
  std::vector<std::shared_ptr<Engine>> engines = {watched(0, 3), watched(1, 3), watched(2, 3)};
  std::vector<std::shared_ptr<Group>> groups;
  for (int rank = 0; rank < 3; ++rank) groups.push_back(join(engines[rank], "a", rank, 3));
  std::vector<std::string> said(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto stuck = groups[rank]->submit(barrier());
      EXPECT_TRUE(groups[rank]->wait(*stuck));
      ASSERT_TRUE(stuck->failure());
      EXPECT_EQ(stuck->failure()->kind, FailureKind::kPeerLeft);
      said[rank] = stuck->failure()->message;
    });
  }
  groups[2] = nullptr;
  engines[2] = nullptr;
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(said[0], said[1]);
  EXPECT_THAT(said[0], HasSubstr("rank 2 left"));
}

TEST_F(WatchedRanksTest, ASlowRankIsNoError) {
  std::vector<std::shared_ptr<Engine>> engines = {watched(0, 2), watched(1, 2)};
  const auto group = join(engines[0], "a", 0), other = join(engines[1], "a", 1);
  std::thread waits([&] {
    const auto operation = group->submit(barrier(std::chrono::hours(2)));
    EXPECT_TRUE(group->wait(*operation));
    EXPECT_FALSE(operation->failure()) << operation->failure()->message;
  });
  // An hour passes, as far as the engines can see.
  clock_.wait_until_read();
  clock_.jump(3600);
  clock_.wait_until_read();
  const auto operation = other->submit(barrier());
  EXPECT_TRUE(other->wait(*operation));
  EXPECT_FALSE(operation->failure()) << operation->failure()->message;
  waits.join();
}

}  // namespace
}  // namespace meshrun::ucx
