#include "coordinator/state_machine/rendezvous_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/proto_time.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RendezvousStoreTest : public ::testing::Test {
 protected:
  RendezvousStoreTest() : worker_(h.AddWorker("node1")) { id_ = h.Submit(MakeSpec(1, 3)); }

  absl::Status Set(const std::string& key, const std::string& value,
                   const std::string& request = "") {
    v1::StateEvent event;
    *event.mutable_set_values()->mutable_fence() = h.fence(id_);
    (*event.mutable_set_values()->mutable_values())[key] = value;
    event.mutable_set_values()->set_request_id(request);
    return h.answer(h.Call(event)).status;
  }
  uint64_t Get(std::vector<std::string> keys, std::chrono::nanoseconds timeout = seconds(10)) {
    v1::StateEvent event;
    *event.mutable_get_values()->mutable_fence() = h.fence(id_);
    for (auto& key : keys) event.mutable_get_values()->add_keys(key);
    *event.mutable_get_values()->mutable_timeout() = ToProtoDuration(timeout);
    return h.Call(event);
  }
  int64_t Add(const std::string& key, int64_t amount, const std::string& request) {
    v1::StateEvent event;
    *event.mutable_add_value()->mutable_fence() = h.fence(id_);
    event.mutable_add_value()->set_key(key);
    event.mutable_add_value()->set_amount(amount);
    event.mutable_add_value()->set_request_id(request);
    return h.answer(h.Call(event)).As<v1::AddValueResponse>().value();
  }
  uint64_t Enter(int rank, std::vector<int> ranks = {}, const std::string& request = "",
                 const std::string& name = "world/start") {
    v1::StateEvent event;
    v1::EnterBarrierRequest& barrier = *event.mutable_enter_barrier();
    *barrier.mutable_fence() = h.fence(id_);
    barrier.set_name(name);
    barrier.set_rank(rank);
    for (const int r : ranks) barrier.add_ranks(r);
    barrier.set_request_id(request);
    *barrier.mutable_timeout() = ToProtoDuration(seconds(30));
    return h.Call(event);
  }
  // One call for several ranks, as a worker daemon makes it.
  uint64_t EnterTogether(const std::vector<std::pair<int, std::string>>& entries,
                         std::vector<int> ranks = {}) {
    v1::StateEvent event;
    v1::EnterBarrierRequest& barrier = *event.mutable_enter_barrier();
    *barrier.mutable_fence() = h.fence(id_);
    barrier.set_name("world/start");
    for (const int r : ranks) barrier.add_ranks(r);
    *barrier.mutable_timeout() = ToProtoDuration(seconds(30));
    barrier.set_rank(entries[0].first);
    barrier.set_request_id(entries[0].second);
    for (size_t i = 1; i < entries.size(); ++i) {
      v1::BarrierEntry& other = *barrier.add_others();
      other.set_rank(entries[i].first);
      other.set_request_id(entries[i].second);
    }
    return h.Call(event);
  }
  absl::Status Register(const std::string& name, std::vector<int> ranks,
                        const std::string& backend = "") {
    v1::StateEvent event;
    *event.mutable_register_group()->mutable_fence() = h.fence(id_);
    event.mutable_register_group()->set_name(name);
    for (const int r : ranks) event.mutable_register_group()->add_ranks(r);
    event.mutable_register_group()->set_backend(backend);
    return h.answer(h.Call(event)).status;
  }
  absl::Status Append(const std::string& key, const std::string& value) {
    v1::StateEvent event;
    *event.mutable_append_value()->mutable_fence() = h.fence(id_);
    event.mutable_append_value()->set_key(key);
    event.mutable_append_value()->set_value(value);
    return h.answer(h.Call(event)).status;
  }
  std::string Value(const std::string& key) {
    return h.answer(Get({key})).As<v1::GetValuesResponse>().values(0);
  }
  // Rows of values of all jobs, by the size of each.
  std::vector<size_t> ValueRows() {
    std::vector<size_t> sizes;
    for (const v1::StateRow& row : h.rows()) {
      if (row.table() == v1::STATE_TABLE_VALUES) sizes.push_back(row.value().size());
    }
    return sizes;
  }
  std::string Message(uint64_t call) { return std::string(h.answer(call).status.message()); }

  Harness h;
  FakeWorker& worker_;
  std::string id_;
};

TEST_F(RendezvousStoreTest, AGetWaitsForAllItsKeys) {
  const uint64_t get = Get({"a", "b"});
  ASSERT_TRUE(Set("b", "2").ok());
  EXPECT_FALSE(h.answer(get).done);
  ASSERT_TRUE(Set("a", "1").ok());
  EXPECT_THAT(h.answer(get).As<v1::GetValuesResponse>().values(), ElementsAre("1", "2"));
}

TEST_F(RendezvousStoreTest, ADeadlineNamesTheMissingKeys) {
  ASSERT_TRUE(Set("a", "1").ok());
  const uint64_t get = Get({"a", "b", "c"}, seconds(2));
  h.Advance(seconds(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(h.answer(get).status));
  EXPECT_EQ(Message(get), "keys 'b', 'c': not there after 2s");
  EXPECT_TRUE(absl::IsNotFound(h.answer(Get({"c"}, seconds(0))).status));
}

TEST_F(RendezvousStoreTest, ACancelledGetIsForgotten) {
  const uint64_t get = Get({"a"});
  h.CancelCall(get);
  EXPECT_TRUE(absl::IsCancelled(h.answer(get).status));
  ASSERT_TRUE(Set("a", "1").ok());
  EXPECT_EQ(h.answer(get).response, nullptr);
}

TEST_F(RendezvousStoreTest, ARetriedAddCountsOnceAlsoAcrossARestart) {
  EXPECT_EQ(Add("n", 5, "r1"), 5);
  EXPECT_EQ(Add("n", 5, "r1"), 5);
  h.StartCoordinator();
  EXPECT_EQ(Add("n", 5, "r1"), 5);
  EXPECT_EQ(Add("n", -2, "r2"), 3);
}

TEST_F(RendezvousStoreTest, AddNeedsAnInteger) {
  ASSERT_TRUE(Set("n", "abc").ok());
  v1::StateEvent event;
  *event.mutable_add_value()->mutable_fence() = h.fence(id_);
  event.mutable_add_value()->set_key("n");
  EXPECT_TRUE(absl::IsInvalidArgument(h.answer(h.Call(event)).status));
}

TEST_F(RendezvousStoreTest, CompareSetSetsOnlyWhatItExpects) {
  const auto compare_set = [&](const std::string& expected, const std::string& desired) {
    v1::StateEvent event;
    v1::CompareSetValueRequest& request = *event.mutable_compare_set_value();
    *request.mutable_fence() = h.fence(id_);
    request.set_key("k");
    request.set_expected(expected);
    request.set_desired(desired);
    return h.answer(h.Call(event)).As<v1::CompareSetValueResponse>();
  };
  EXPECT_FALSE(compare_set("x", "1").has_value());
  EXPECT_EQ(compare_set("", "1").value(), "1");
  EXPECT_EQ(compare_set("", "2").value(), "1");
  EXPECT_EQ(compare_set("1", "2").value(), "2");
}

TEST_F(RendezvousStoreTest, AppendDeleteAndCount) {
  for (int i = 0; i < 2; ++i) {
    v1::StateEvent event;
    *event.mutable_append_value()->mutable_fence() = h.fence(id_);
    event.mutable_append_value()->set_key("k");
    event.mutable_append_value()->set_value("ab");
    event.mutable_append_value()->set_request_id("same");
    ASSERT_TRUE(h.answer(h.Call(event)).status.ok());
  }
  EXPECT_THAT(h.answer(Get({"k"})).As<v1::GetValuesResponse>().values(), ElementsAre("ab"));
  v1::StateEvent count;
  *count.mutable_count_keys()->mutable_fence() = h.fence(id_);
  count.mutable_count_keys()->add_keys("k");
  count.mutable_count_keys()->add_keys("absent");
  EXPECT_EQ(h.answer(h.Call(count)).As<v1::CountKeysResponse>().existing(), 1u);
  v1::StateEvent erase;
  *erase.mutable_delete_key()->mutable_fence() = h.fence(id_);
  erase.mutable_delete_key()->set_key("k");
  EXPECT_TRUE(h.answer(h.Call(erase)).As<v1::DeleteKeyResponse>().deleted());
  EXPECT_FALSE(h.answer(h.Call(erase)).As<v1::DeleteKeyResponse>().deleted());
  EXPECT_EQ(h.answer(h.Call(count)).As<v1::CountKeysResponse>().total(), 0u);
}

TEST_F(RendezvousStoreTest, ValuesHaveALimit) {
  const absl::Status status = Set("k", std::string(RendezvousStore::kMaxValueBytes + 1, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("16.0 MiB are allowed"));
}

TEST_F(RendezvousStoreTest, AppendsWriteAFewTimesTheirBytes) {
  std::string expected;
  std::set<size_t> whole;
  for (int i = 0; i < 400; ++i) {
    const std::string more = std::to_string(i) + std::string(1000, static_cast<char>('a' + i % 26));
    expected += more;
    ASSERT_TRUE(Append("k", more).ok());
    whole.insert(ValueRows()[0]);
  }
  EXPECT_LE(whole.size(), 20u) << "times that the whole value was written";
  EXPECT_GT(ValueRows().size(), 1u);
  EXPECT_EQ(Value("k"), expected);
  h.StartCoordinator();
  h.Connect(worker_);
  EXPECT_EQ(Value("k"), expected);
  ASSERT_TRUE(Append("k", "end").ok());
  h.StartCoordinator();
  h.Connect(worker_);
  EXPECT_EQ(Value("k"), expected + "end");
}

TEST_F(RendezvousStoreTest, WhatWasAppendedGoesWithItsValue) {
  const auto extend = [&] {
    for (const int size : {100, 20, 10}) ASSERT_TRUE(Append("k", std::string(size, 'x')).ok());
    ASSERT_EQ(ValueRows().size(), 3u);
  };
  extend();
  ASSERT_TRUE(Set("k", "new").ok());
  EXPECT_THAT(ValueRows(), ElementsAre(3u));
  v1::StateEvent erase;
  *erase.mutable_delete_key()->mutable_fence() = h.fence(id_);
  erase.mutable_delete_key()->set_key("k");
  ASSERT_TRUE(h.answer(h.Call(erase)).status.ok());
  extend();
  ASSERT_TRUE(h.answer(h.Call(erase)).status.ok());
  EXPECT_THAT(ValueRows(), ElementsAre());
  extend();
  h.StartCoordinator();
  h.Connect(worker_);
  EXPECT_EQ(Value("k"), std::string(130, 'x'));
  h.Say(worker_, worker_.ExitAll(id_, 0));
  EXPECT_THAT(ValueRows(), ElementsAre());
}

TEST_F(RendezvousStoreTest, JobsShareTheStore) {
  const std::string large(16u << 20, 'x');
  const auto fill = [&] {
    int values = 0;
    absl::Status status;
    while (status.ok() && values < 100) {
      status = Set("k" + std::to_string(values), large);
      values += status.ok();
    }
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    return values;
  };
  EXPECT_EQ(fill(), 15) << "256 MiB with their keys";
  h.AddWorker("node2");
  const std::string first = std::exchange(id_, h.Submit(MakeSpec(1, 3)));
  EXPECT_EQ(fill(), 8) << "half of what is left";
  const absl::Status status = Set("more", large);
  EXPECT_THAT(std::string(status.message()), HasSubstr("are allowed while other jobs store 240"));
  // Also after a restart, and a small value always fits.
  h.StartCoordinator();
  EXPECT_TRUE(absl::IsResourceExhausted(Set("more", large)));
  EXPECT_TRUE(Set("small", std::string(1000, 'x')).ok());
  h.Connect(worker_);
  h.Say(worker_, worker_.ExitAll(first, 0));
  EXPECT_TRUE(Set("more", large).ok()) << "what the other job had is free";
}

TEST_F(RendezvousStoreTest, ValuesSurviveARestartAndEndWithTheGeneration) {
  ASSERT_TRUE(Set("k", std::string("\0x", 2)).ok());
  h.StartCoordinator();
  EXPECT_THAT(h.answer(Get({"k"})).As<v1::GetValuesResponse>().values(),
              ElementsAre(std::string("\0x", 2)));
  h.Connect(worker_);
  const uint64_t waiting = Get({"never"});
  h.Say(worker_, worker_.ExitAll(id_, 0));
  EXPECT_TRUE(absl::IsFailedPrecondition(h.answer(waiting).status));
  EXPECT_TRUE(absl::IsFailedPrecondition(Set("k", "2")));
}

TEST_F(RendezvousStoreTest, AnOlderGenerationIsRefusedWithTheCurrentOne) {
  v1::StateEvent event;
  *event.mutable_set_values()->mutable_fence() = h.fence(id_);
  event.mutable_set_values()->mutable_fence()->set_generation(0);
  const uint64_t call = h.Call(event);
  EXPECT_TRUE(absl::IsFailedPrecondition(h.answer(call).status));
  EXPECT_THAT(Message(call), HasSubstr("not the current one, which is 1"));
}

TEST_F(RendezvousStoreTest, AFenceThatIsOverIsRefusedWithTheCurrentOne) {
  h.StartCoordinator();
  worker_.Reboot(/*ranks_survive=*/true);
  h.Connect(worker_);
  const auto enter = [&](uint64_t term, uint64_t incarnation) {
    v1::StateEvent event;
    v1::EnterBarrierRequest& barrier = *event.mutable_enter_barrier();
    *barrier.mutable_fence() = h.fence(id_);
    barrier.mutable_fence()->set_term(term);
    barrier.mutable_fence()->set_incarnation(incarnation);
    barrier.set_name("b");
    barrier.add_ranks(0);
    return h.answer(h.Call(event)).status;
  };
  EXPECT_TRUE(enter(0, 0).ok());
  EXPECT_TRUE(enter(2, 2).ok());
  // A daemon that has just restarted may be heard here before its Hello.
  EXPECT_TRUE(enter(0, 3).ok());
  for (const absl::Status& status : {enter(1, 2), enter(3, 2), enter(0, 1)}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  }
  EXPECT_THAT(std::string(enter(1, 2).message()),
              HasSubstr("term 1 is over: this coordinator is in term 2"));
  EXPECT_EQ(std::string(enter(0, 1).message()),
            "incarnation 1 of node node1 is over: 2 has registered since");
}

TEST_F(RendezvousStoreTest, TheNodeOfAFenceIsKnownByItsNameWhereNoRankIsSaid) {
  worker_.Reboot(/*ranks_survive=*/true);
  h.Connect(worker_);
  v1::StateEvent event;
  v1::Fence& fence = *event.mutable_count_keys()->mutable_fence();
  fence = h.fence(id_);
  fence.set_node_id(worker_.node_id());
  fence.set_incarnation(2);
  EXPECT_TRUE(h.answer(h.Call(event)).status.ok());
  fence.set_incarnation(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(h.answer(h.Call(event)).status));
}

TEST_F(RendezvousStoreTest, UniqueIdsHaveALimit) {
  const auto publish = [&](const std::string& group, size_t bytes) {
    v1::StateEvent event;
    v1::PublishUniqueIdRequest& request = *event.mutable_publish_unique_id();
    *request.mutable_fence() = h.fence(id_);
    request.set_group(group);
    request.set_unique_id(std::string(bytes, 'x'));
    return h.answer(h.Call(event)).status;
  };
  EXPECT_TRUE(publish("dp", RendezvousStore::kMaxUniqueIdBytes).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(publish("tp", RendezvousStore::kMaxUniqueIdBytes + 1)));
}

TEST_F(RendezvousStoreTest, TheOldestAnswersGoWhenAllTogetherAreTooLarge) {
  EXPECT_EQ(Add("n", 1, "first"), 1);
  const size_t calls = RendezvousStore::kMaxAnswerBytes / 2 / 4000;
  for (size_t i = 0; i < calls; ++i) Add("other", 1, fmt::format("{:0>4000}", i));
  EXPECT_EQ(Add("n", 1, "last"), 2);
  EXPECT_EQ(Add("n", 1, "last"), 2);
  // Its answer had to make room, which only a retry after so long can notice.
  EXPECT_EQ(Add("n", 1, "first"), 3);
}

// Each job keeps what a retry needs, however much others keep.
TEST_F(RendezvousStoreTest, EveryJobKeepsSomeAnswers) {
  const std::string first = id_;
  std::vector<std::string> jobs = {first};
  for (int i = 0; i < 4; ++i) jobs.push_back(id_ = h.Submit(MakeSpec(1, 1)));
  // What the first five leave is less than what each may have always.
  for (const std::string& job : jobs) {
    id_ = job;
    for (int i = 0; i < 9000; ++i) Add("n", 1, fmt::format("{:0>4000}", i));
  }
  h.AddWorker("node2");
  for (int i = 0; i < 7; ++i) {
    jobs.push_back(id_ = h.Submit(MakeSpec(1, 1)));
    for (int call = 0; call < 9000; call += call < 8500 ? 8500 : 1)
      Add("n", 1, fmt::format("{:0>4000}", call));
  }
  for (const std::string& job : jobs) {
    id_ = job;
    const int64_t now = Add("n", 0, "");
    EXPECT_EQ(Add("n", 1, fmt::format("{:0>4000}", 8990)), now - 9) << job;
  }
  size_t kept = 0;
  for (const v1::StateRow& row : h.rows()) {
    if (row.table() == v1::STATE_TABLE_REQUESTS) kept += row.key().size() + row.value().size();
  }
  EXPECT_LE(kept, RendezvousStore::kMaxAnswerBytes + (1u << 20));
}

TEST_F(RendezvousStoreTest, WhatChangedNothingIsNotKept) {
  ASSERT_TRUE(Set("big", std::string(8u << 20, 'x')).ok());
  const auto compare_set = [&](const std::string& expected, const std::string& desired,
                               const std::string& request_id) {
    v1::StateEvent event;
    v1::CompareSetValueRequest& request = *event.mutable_compare_set_value();
    *request.mutable_fence() = h.fence(id_);
    request.set_key("big");
    request.set_expected(expected);
    request.set_desired(desired);
    request.set_request_id(request_id);
    return h.answer(h.Call(event)).As<v1::CompareSetValueResponse>().value();
  };
  const auto kept = [&] {
    size_t bytes = 0;
    for (const v1::StateRow& row : h.rows()) {
      if (row.table() == v1::STATE_TABLE_REQUESTS) bytes += row.key().size() + row.value().size();
    }
    return bytes;
  };
  EXPECT_EQ(compare_set("other", "y", "a").size(), 8u << 20);
  EXPECT_EQ(kept(), 0u);
  const std::string next(1u << 20, 'y');
  EXPECT_EQ(compare_set(std::string(8u << 20, 'x'), next, "b"), next);
  EXPECT_LT(kept(), 1000u);
  // Also where another value is there since, and after a restart: it was done once.
  ASSERT_TRUE(Set("big", "z").ok());
  EXPECT_EQ(compare_set(std::string(8u << 20, 'x'), next, "b"), next);
  h.StartCoordinator();
  EXPECT_EQ(compare_set(std::string(8u << 20, 'x'), next, "b"), next);
  EXPECT_EQ(compare_set("z", "", "c"), "");
  ASSERT_TRUE(Set("big", "again").ok());
  EXPECT_EQ(compare_set("z", "", "c"), "");
}

// A coordinator of schema 3 kept every response, also that of a CompareSet that had written nothing
// since the key was absent: no bytes.
TEST_F(RendezvousStoreTest, ACompareSetThatAnOlderCoordinatorRefusedStaysRefused) {
  h.StartCoordinatorWith(v1::STATE_TABLE_REQUESTS,
                         GenerationKey(id_, h.job(id_).generation()) + "/compare_set/r", "");
  h.Connect(worker_);
  v1::StateEvent event;
  v1::CompareSetValueRequest& request = *event.mutable_compare_set_value();
  *request.mutable_fence() = h.fence(id_);
  request.set_key("lock");
  request.set_expected("free");
  request.set_desired("mine");
  request.set_request_id("r");
  EXPECT_EQ(h.answer(h.Call(event)).As<v1::CompareSetValueResponse>().value(), "");
}

TEST_F(RendezvousStoreTest, ABarrierOpensWhenAllHaveArrivedAndCanBeUsedAgain) {
  for (int round = 0; round < 2; ++round) {
    const uint64_t first = Enter(0);
    const uint64_t second = Enter(1);
    EXPECT_FALSE(h.answer(first).done);
    const uint64_t third = Enter(2);
    for (const uint64_t call : {first, second, third}) EXPECT_TRUE(h.answer(call).status.ok());
    EXPECT_TRUE(h.answer(first).done);
  }
}

TEST_F(RendezvousStoreTest, OneCallEntersForSeveralRanks) {
  for (int round = 0; round < 2; ++round) {
    const uint64_t two = EnterTogether({{0, ""}, {2, ""}});
    EXPECT_FALSE(h.answer(two).done);
    const uint64_t last = Enter(1);
    for (const uint64_t call : {two, last}) {
      EXPECT_TRUE(h.answer(call).done);
      EXPECT_TRUE(h.answer(call).status.ok()) << h.answer(call).status;
    }
  }
}

TEST_F(RendezvousStoreTest, ARetryOfASharedCallIsAnsweredAsTheFirstWasAlsoAcrossARestart) {
  const uint64_t all = EnterTogether({{0, "a"}, {1, "b"}, {2, "c"}});
  EXPECT_TRUE(h.answer(all).As<v1::EnterBarrierResponse>().SerializeAsString().empty());
  for (const bool restarted : {false, true}) {
    if (restarted) h.StartCoordinator();
    // Whichever of them ask, together or alone.
    EXPECT_TRUE(h.answer(EnterTogether({{2, "c"}, {1, "b"}})).done);
    EXPECT_TRUE(h.answer(Enter(1, {}, "b")).done);
    // One of them has passed, the other is there for the next time: together they would wait for
    // each other.
    const uint64_t mixed = EnterTogether({{0, "a"}, {1, "next"}});
    EXPECT_TRUE(h.answer(mixed).As<v1::EnterBarrierResponse>().one_by_one());
  }
  // Nothing was done by it.
  const uint64_t one = Enter(1, {}, "next");
  Enter(2, {}, "c2");
  EXPECT_FALSE(h.answer(one).done);
  Enter(0, {}, "a2");
  EXPECT_TRUE(h.answer(one).status.ok());
}

TEST_F(RendezvousStoreTest, AnswersOfASharedCallTakeOneRowWhichGoesWithTheGeneration) {
  const auto rows = [this] {
    size_t count = 0;
    for (const v1::StateRow& row : h.rows()) count += row.table() == v1::STATE_TABLE_REQUESTS;
    return count;
  };
  EnterTogether({{0, "a"}, {1, "b"}, {2, "c"}});
  EXPECT_EQ(rows(), 1u);
  h.Cancel(id_);
  EXPECT_EQ(rows(), 0u);
}

TEST_F(RendezvousStoreTest, ARankThatEntersAgainLeavesItsSharedCallToTheOthers) {
  const uint64_t two = EnterTogether({{0, "a"}, {1, "b"}});
  const uint64_t again = Enter(1, {}, "b2");
  EXPECT_FALSE(h.answer(two).done);
  h.CancelCall(again);
  EXPECT_TRUE(absl::IsCancelled(h.answer(again).status));
  EXPECT_FALSE(h.answer(Enter(2)).done) << "rank 1 has gone away";
  Enter(1, {}, "b3");
  EXPECT_TRUE(h.answer(two).status.ok());
  // The last of its ranks takes the call with it.
  const uint64_t old = EnterTogether({{0, "d"}, {1, "e"}});
  EnterTogether({{1, "f"}, {0, "g"}});
  EXPECT_TRUE(absl::IsCancelled(h.answer(old).status));
}

TEST_F(RendezvousStoreTest, ASharedCallThatIsCancelledOrLateWithdrawsAllItsRanks) {
  const uint64_t cancelled = EnterTogether({{0, "a"}, {1, "b"}});
  h.CancelCall(cancelled);
  const uint64_t late = EnterTogether({{1, "c"}, {2, "d"}});
  EXPECT_FALSE(h.answer(late).done);
  h.Advance(seconds(30));
  EXPECT_TRUE(absl::IsDeadlineExceeded(h.answer(late).status));
  EXPECT_THAT(Message(late), HasSubstr("ranks 1-2 have arrived, and ranks 0 are missing"));
  const uint64_t one = Enter(0);
  EXPECT_FALSE(h.answer(one).done);
  EnterTogether({{1, "e"}, {2, "f"}});
  EXPECT_TRUE(h.answer(one).status.ok());
}

TEST_F(RendezvousStoreTest, ASharedCallNamesTheRankThatIsNotOfTheBarrier) {
  const uint64_t call = EnterTogether({{0, "a"}, {2, "b"}}, {0, 1});
  EXPECT_TRUE(absl::IsInvalidArgument(h.answer(call).status));
  EXPECT_THAT(Message(call), HasSubstr("rank 2 is not among them"));
  // The same rank twice in one call is one arrival.
  const uint64_t twice = EnterTogether({{0, "c"}, {0, "c"}}, {0, 1});
  EXPECT_FALSE(h.answer(twice).done);
  EXPECT_TRUE(h.answer(Enter(1, {0, 1})).status.ok());
  EXPECT_TRUE(h.answer(twice).status.ok());
}

TEST_F(RendezvousStoreTest, ARankThatLeavesFailsASharedCallOnce) {
  const uint64_t two = EnterTogether({{0, "a"}, {1, "b"}});
  h.Say(worker_, worker_.Exit(id_, 2, 1));
  EXPECT_TRUE(absl::IsAborted(h.answer(two).status));
}

TEST_F(RendezvousStoreTest, ABarriersDeadlineNamesWhoIsMissing) {
  const uint64_t call = Enter(1);
  h.Advance(seconds(30));
  EXPECT_TRUE(absl::IsDeadlineExceeded(h.answer(call).status));
  EXPECT_EQ(Message(call),
            "barrier 'world/start': after 30s ranks 1 have arrived, and ranks 0,2 are missing");
}

TEST_F(RendezvousStoreTest, AnExitedMemberAbortsTheBarrierForAll) {
  const uint64_t call = Enter(0);
  h.Say(worker_, worker_.Exit(id_, 2, 0));
  EXPECT_TRUE(absl::IsAborted(h.answer(call).status));
  EXPECT_THAT(Message(call), HasSubstr("rank 2 on node1 ended with exit code 0"));
  EXPECT_TRUE(absl::IsAborted(h.answer(Enter(1)).status));
  EXPECT_FALSE(h.answer(Enter(1, {0, 1})).done);
}

TEST_F(RendezvousStoreTest, ABarrierHasOneSetOfRanks) {
  Enter(0);
  const uint64_t call = Enter(1, {1, 2});
  EXPECT_TRUE(absl::IsInvalidArgument(h.answer(call).status));
  EXPECT_THAT(Message(call), HasSubstr("by rank 0 for ranks 0-2, and by rank 1 for ranks 1-2"));
}

TEST_F(RendezvousStoreTest, ARankThatEntersAgainOverANewConnectionCountsOnce) {
  const uint64_t lost = Enter(0, {}, "r0");
  const uint64_t again = Enter(0, {}, "r0");
  EXPECT_TRUE(absl::IsCancelled(h.answer(lost).status));
  Enter(1, {}, "r1");
  EXPECT_FALSE(h.answer(again).done);
  Enter(2, {}, "r2");
  EXPECT_TRUE(h.answer(again).status.ok());
  // The answer was lost on the way: the retry gets it, and opens no new barrier.
  h.StartCoordinator();
  EXPECT_TRUE(h.answer(Enter(1, {}, "r1")).done);
}

TEST_F(RendezvousStoreTest, AUniqueIdIsPublishedOnceAndAwaited) {
  const auto publish = [&](const std::string& value) {
    v1::StateEvent event;
    *event.mutable_publish_unique_id()->mutable_fence() = h.fence(id_);
    event.mutable_publish_unique_id()->set_group("dp");
    event.mutable_publish_unique_id()->set_unique_id(value);
    return h.answer(h.Call(event)).status;
  };
  v1::StateEvent await;
  *await.mutable_await_unique_id()->mutable_fence() = h.fence(id_);
  await.mutable_await_unique_id()->set_group("dp");
  *await.mutable_await_unique_id()->mutable_timeout() = ToProtoDuration(seconds(5));
  const uint64_t call = h.Call(await);
  ASSERT_TRUE(publish("nccl").ok());
  EXPECT_EQ(h.answer(call).As<v1::AwaitUniqueIdResponse>().unique_id(), "nccl");
  EXPECT_TRUE(publish("nccl").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(publish("other")));
  await.mutable_await_unique_id()->set_group("tp");
  const uint64_t late = h.Call(await);
  h.Advance(seconds(5));
  EXPECT_EQ(Message(late), "unique id of group 'tp': not there after 5s");
}

TEST_F(RendezvousStoreTest, ALaterAnnouncementReplacesTheGroupsThatItSharesARankWith) {
  EXPECT_TRUE(Register("other", {0, 1, 2}).ok());
  EXPECT_TRUE(Register("pair", {0, 1}, "gloo").ok());
  EXPECT_TRUE(Register("pair", {2}).ok());
  ASSERT_EQ(h.job(id_).groups_size(), 3);
  // After a clean-up and a new initialisation: the same ranks, then others.
  EXPECT_TRUE(Register("pair", {0, 1}, "ucx").ok());
  ASSERT_EQ(h.job(id_).groups_size(), 3);
  EXPECT_EQ(h.job(id_).groups(1).backend(), "ucx");
  EXPECT_TRUE(Register("pair", {0, 2}, "ucx").ok());
  ASSERT_EQ(h.job(id_).groups_size(), 2);
  EXPECT_THAT(h.job(id_).groups(1).ranks(), ElementsAre(0, 2));
  EXPECT_TRUE(Register("pair", {1}, "ucx").ok());
  ASSERT_EQ(h.job(id_).groups_size(), 3);
  EXPECT_THAT(h.job(id_).groups(0).ranks(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(absl::IsInvalidArgument(Register("pair", {1, 3})));
  EXPECT_TRUE(absl::IsInvalidArgument(Register("pair", {})));
}

TEST_F(RendezvousStoreTest, TheWorldIsTheTableOfAllRanks) {
  v1::StateEvent event;
  *event.mutable_get_world()->mutable_fence() = h.fence(id_);
  const auto world = h.answer(h.Call(event)).As<v1::GetWorldResponse>().world();
  EXPECT_EQ(world.ranks_size(), 3);
  ASSERT_EQ(world.addresses_size(), 1);
  EXPECT_EQ(world.addresses(0).node_id(), "id-node1");
  EXPECT_THAT(world.addresses(0).addresses(), ElementsAre("127.0.0.1"));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
