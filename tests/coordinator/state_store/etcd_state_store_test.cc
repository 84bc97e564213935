// What the state in etcd alone promises: answers that are lost, coordinators that are replaced,
// members that die, a database that fills.
#include "coordinator/state_store/etcd_state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "coordinator/state_store/batched_state_store.h"
#include "core/mutex.h"
#include "core/os/files.h"
#include "tests/etcd/lossy_member.h"
#include "tests/etcd/shared_members.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::EtcdMembers;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::LossyMember;
using ::testing::Not;
using testing::SharedEtcdMembers;
using Fate = testing::LossyMember::Fate;

v1::StateRow Row(const std::string& key, const std::string& value) {
  v1::StateRow row;
  row.set_table(v1::STATE_TABLE_JOBS);
  row.set_key(key);
  row.set_value(value);
  return row;
}

std::string Prefix() { return ::testing::UnitTest::GetInstance()->current_test_info()->name(); }

std::unique_ptr<EtcdStateStore> Open(etcd::Client::Options client) {
  auto store = EtcdStateStore::Open({.client = std::move(client), .prefix = Prefix()});
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}
std::unique_ptr<EtcdStateStore> Open() { return Open(SharedEtcdMembers().client()); }

std::vector<std::string> Loaded(StateStore& store) {
  std::vector<std::string> out;
  const auto rows = store.Load();
  EXPECT_TRUE(rows.ok()) << rows.status();
  if (!rows.ok()) return out;
  for (const v1::StateRow& row : *rows) {
    if (row.table() == v1::STATE_TABLE_JOBS) out.push_back(row.key() + "=" + row.value());
  }
  return out;
}

// A prefix that was mistyped looks like a new cluster.
TEST(EtcdStateStoreTest, AnEmptyPrefixIsToldWhenItsFirstTermBegins) {
  const auto log_of = [](StateStore& store) {
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(store.BeginTerm().ok());
    return ::testing::internal::GetCapturedStderr();
  };
  const auto store = Open();
  EXPECT_THAT(log_of(*store), AllOf(HasSubstr("a new cluster ID begins"), HasSubstr(Prefix())));
  EXPECT_THAT(log_of(*Open()), Not(HasSubstr("a new cluster ID begins")));
  // With --import there is a state without a term.
  const auto other =
      *EtcdStateStore::Open({.client = SharedEtcdMembers().client(), .prefix = Prefix() + "2"});
  ASSERT_TRUE(other->Commit(0, {Row("a", "1")}).ok());
  EXPECT_THAT(log_of(*other), Not(HasSubstr("a new cluster ID begins")));
}

// A person may grant it again: nothing is lost meanwhile.
TEST(EtcdStateStoreTest, WhatEtcdRefusesIsUnavailableUntilItIsGranted) {
  EtcdMembers members({"--bcrypt-cost", "4"});
  members.WantUsers("meshrun", "secret", Prefix());
  const testing::TemporaryDirectory directory;
  ASSERT_TRUE(os::WriteFileAtomically(directory / "password", "secret").ok());
  etcd::Client::Options client = members.client();
  client.user = "meshrun";
  client.password_file = directory / "password";
  const auto store = Open(client);
  ASSERT_EQ(*store->BeginTerm(), 1u);
  members.Revoke("meshrun", Prefix());
  const absl::Status refused = store->Commit(1, {Row("a", "1")});
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("permission denied"));
  const absl::Status opened = EtcdStateStore::Open({.client = client, .prefix = Prefix()}).status();
  EXPECT_TRUE(absl::IsUnavailable(opened)) << opened;
  members.Grant("meshrun", Prefix());
  EXPECT_TRUE(store->Commit(1, {Row("a", "1")}).ok());
  EXPECT_THAT(Loaded(*store), ElementsAre("a=1"));
}

TEST(EtcdStateStoreTest, AnotherCoordinatorsTermEndsOurs) {
  const auto first = Open(), second = Open();
  EXPECT_EQ(*first->BeginTerm(), 1u);
  ASSERT_TRUE(first->Commit(1, {Row("a", "1")}).ok());
  EXPECT_EQ(*second->BeginTerm(), 2u);
  const absl::Status stale = first->Commit(1, {Row("a", "stale")});
  EXPECT_TRUE(absl::IsFailedPrecondition(stale)) << stale;
  EXPECT_THAT(std::string(stale.message()), HasSubstr("has begun term 2"));
  ASSERT_TRUE(second->Commit(2, {Row("b", "2")}).ok());
  EXPECT_THAT(Loaded(*first), ElementsAre("a=1", "b=2"));
}

TEST(EtcdStateStoreTest, ATermBeginsOnlyForTheOneThatLeads) {
  const auto client = *etcd::Client::Make(SharedEtcdMembers().client());
  etcdserverpb::TxnRequest make;
  auto& put = *make.add_success()->mutable_request_put();
  put.set_key("leads");
  put.set_value("we");
  ASSERT_TRUE(client->Txn(make).ok());
  std::optional<etcd::OwnKey> held;
  const auto store = *EtcdStateStore::Open({.client = SharedEtcdMembers().client(),
                                            .prefix = Prefix(),
                                            .held = [&held] { return held; }});
  EXPECT_TRUE(absl::IsFailedPrecondition(store->BeginTerm().status()));
  held = etcd::OwnKey{"leads", "others"};
  EXPECT_TRUE(absl::IsFailedPrecondition(store->BeginTerm().status()));
  held = etcd::OwnKey{"leads", "we"};
  EXPECT_EQ(*store->BeginTerm(), 1u);
}

TEST(EtcdStateStoreTest, ACommitWhoseAnswerIsLostIsDoneOnce) {
  LossyMember member(SharedEtcdMembers());
  const auto store = Open(member.client());
  ASSERT_EQ(*store->BeginTerm(), 1u);
  member.Next({Fate::kLoseAnswer});
  EXPECT_TRUE(store->Commit(1, {Row("a", "1")}).ok());
  member.Next({Fate::kLoseRequest, Fate::kLoseAnswer});
  EXPECT_TRUE(store->Commit(1, {Row("b", "1")}).ok());
  EXPECT_TRUE(store->Commit(1, {Row("c", "1")}).ok());
  EXPECT_THAT(Loaded(*store), ElementsAre("a=1", "b=1", "c=1"));
}

TEST(EtcdStateStoreTest, ATermWhoseAnswerIsLostIsBegunOnce) {
  LossyMember member(SharedEtcdMembers());
  const auto store = Open(member.client());
  member.Next({Fate::kPass, Fate::kLoseAnswer});
  EXPECT_EQ(*store->BeginTerm(), 1u);
  EXPECT_TRUE(store->Commit(1, {Row("a", "1")}).ok());
}

// Without PREFIX/commit it would put the old value back.
TEST(EtcdStateStoreTest, ATransactionThatArrivesLateChangesNothing) {
  LossyMember member(SharedEtcdMembers());
  const auto store = Open(member.client());
  ASSERT_EQ(*store->BeginTerm(), 1u);
  member.Next({Fate::kLate});
  ASSERT_TRUE(store->Commit(1, {Row("a", "old")}).ok());
  ASSERT_TRUE(store->Commit(1, {Row("a", "new")}).ok());
  EXPECT_FALSE(member.DeliverLate());
  EXPECT_THAT(Loaded(*store), ElementsAre("a=new"));
}

TEST(EtcdStateStoreTest, AnErrorLeavesItUnknownAndTheNextCommitTells) {
  LossyMember member(SharedEtcdMembers());
  const auto store = Open(member.client());
  ASSERT_EQ(*store->BeginTerm(), 1u);
  const std::deque<Fate> lost(100, Fate::kLoseRequest);
  // It is still on its way when the call gives up.
  std::deque<Fate> late = lost;
  late.front() = Fate::kLate;
  member.Next(late);
  const absl::Status unknown = store->Commit(1, {Row("a", "late")});
  EXPECT_TRUE(absl::IsUnavailable(unknown)) << unknown;
  EXPECT_THAT(std::string(unknown.message()), HasSubstr(member.client().endpoints[0]));
  // It arrives between the next commit's look and its transaction.
  member.Next({Fate::kPass, Fate::kAfterLate});
  const absl::Status refused = store->Commit(1, {Row("a", "next")});
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_THAT(Loaded(*store), ElementsAre("a=late"));
  EXPECT_TRUE(store->Commit(1, {Row("a", "next")}).ok());
  EXPECT_THAT(Loaded(*store), ElementsAre("a=next"));
}

TEST(EtcdStateStoreTest, AReadIsOfOneRevision) {
  const auto store = Open(), writer = Open();
  ASSERT_EQ(*writer->BeginTerm(), 1u);
  std::vector<v1::StateRow> rows;
  for (int i = 100; i < 200; ++i) rows.push_back(Row(std::to_string(i), "old"));
  ASSERT_TRUE(writer->Commit(1, rows).ok());
  for (v1::StateRow& row : rows) row.set_value("new");
  int seen = 0;
  ASSERT_TRUE(store
                  ->ForEachRow([&](const v1::StateRow& row) {
                    if (row.table() != v1::STATE_TABLE_JOBS) return true;
                    EXPECT_EQ(row.value(), "old") << row.key();
                    if (seen++ > 0) return true;
                    EXPECT_TRUE(writer->Commit(1, rows).ok());
                    return true;
                  })
                  .ok());
  EXPECT_EQ(seen, 100);
}

// Records what is read, and may answer a serializable read as a member that is behind.
class RecordingKv : public etcd::Kv {
 public:
  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) override {
    reads.push_back(request);
    if (request.serializable() && std::exchange(is_behind, false)) {
      return absl::OutOfRangeError("etcdserver: mvcc: required revision is a future revision");
    }
    return client_->Range(request);
  }
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request) override {
    return client_->Txn(request);
  }

  std::vector<etcdserverpb::RangeRequest> reads;
  bool is_behind = false;

 private:
  const std::unique_ptr<etcd::Client> client_ = *etcd::Client::Make(SharedEtcdMembers().client());
};

TEST(EtcdStateStoreTest, PagesHaveManySmallRowsAndOnlyTheFirstNeedsTheMajority) {
  auto made = std::make_unique<RecordingKv>();
  RecordingKv& kv = *made;
  const auto store = EtcdStateStore::Over(std::move(made), Prefix(), StateStore::kLeast);
  ASSERT_TRUE(store->BeginTerm().ok());
  for (int i = 0; i < 5000;) {
    std::vector<v1::StateRow> rows;
    for (; rows.size() < 100; ++i) rows.push_back(Row(std::to_string(10'000 + i), "small"));
    ASSERT_TRUE(store->Commit(1, rows).ok());
  }
  v1::StateRow large = Row("v", std::string(300'000, 'x'));
  large.set_table(v1::STATE_TABLE_VALUES);
  for (int i = 0; i < 40; ++i) {
    large.set_key(std::to_string(100 + i));
    ASSERT_TRUE(store->Commit(1, {large}).ok());
  }
  EXPECT_EQ(Loaded(*store).size(), 5000u);
  // 32, 128, 512, 2048, 2048 and the rest; 32 and the rest; what is staged.
  EXPECT_EQ(kv.reads.size(), 9u);
  for (size_t i = 0; i < kv.reads.size(); ++i) {
    EXPECT_EQ(kv.reads[i].serializable(), i > 0) << i;
    EXPECT_EQ(kv.reads[i].revision() != 0, i > 0) << i;
  }
  kv.reads.clear();
  kv.is_behind = true;
  EXPECT_EQ(Loaded(*store).size(), 5000u);
  EXPECT_EQ(kv.reads.size(), 10u);
  EXPECT_FALSE(kv.reads[2].serializable());
}

TEST(EtcdStateStoreTest, ATermBeginsWithoutAReadOfAllRows) {
  auto made = std::make_unique<RecordingKv>();
  RecordingKv& kv = *made;
  BatchedStateStore store(EtcdStateStore::Over(std::move(made), Prefix(), StateStore::kLeast));
  ASSERT_TRUE(store.BeginTerm().ok());
  int rows = 0;
  ASSERT_TRUE(
      store.ForEachRowOf(v1::STATE_TABLE_META, [&rows](const v1::StateRow&) { return ++rows > 0; })
          .ok());
  EXPECT_EQ(rows, 1);
  std::vector<std::string> read;
  for (const auto& request : kv.reads) read.push_back(request.key());
  const std::string meta = Prefix() + "/state/001/";
  EXPECT_THAT(read, ElementsAre(meta, Prefix() + "/state/080/", Prefix() + "/state/081/", meta));
}

TEST(EtcdStateStoreTest, RefusesANewerSchema) {
  const auto before = Open();
  ASSERT_TRUE(before->BeginTerm().ok());
  SharedEtcdMembers().Ctl({"put", Prefix() + "/schema", "99"});
  const auto store =
      EtcdStateStore::Open({.client = SharedEtcdMembers().client(), .prefix = Prefix()});
  EXPECT_TRUE(absl::IsUnimplemented(store.status()));
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("schema 99"));
  EXPECT_TRUE(absl::IsUnimplemented(before->BeginTerm().status()));
}

// Notices of an upkeep, from its thread.
struct Notices {
  void Add(const std::string& kind, const std::string& message) {
    MutexLock lock(mu);
    all.emplace_back(kind, message);
  }
  bool Has(const std::string& kind, const std::string& text) {
    MutexLock lock(mu);
    for (const auto& [of, message] : all) {
      if (of == kind && message.find(text) != std::string::npos) return true;
    }
    return false;
  }
  Mutex mu;
  std::vector<std::pair<std::string, std::string>> all;
};

TEST(EtcdStateStoreTest, OldRevisionsGoAndAFullDatabaseIsTold) {
  Notices notices;
  EtcdStateStore::Options options = {.client = SharedEtcdMembers().client(), .prefix = Prefix()};
  options.upkeep.interval = std::chrono::milliseconds(50);
  options.upkeep.quota_bytes = 20'000;
  options.upkeep.notice = [&notices](const std::string& kind, const std::string& message) {
    notices.Add(kind, message);
  };
  const auto store = *EtcdStateStore::Open(options);
  ASSERT_TRUE(store->BeginTerm().ok());
  ASSERT_TRUE(store->Commit(1, {Row("a", "1")}).ok());
  const auto client = *etcd::Client::Make(options.client);
  etcdserverpb::RangeRequest read;
  read.set_key(Prefix() + "/commit");
  read.set_revision(client->Range(read)->header().revision());
  ASSERT_TRUE(store->Commit(1, {Row("a", "2")}).ok());
  EXPECT_TRUE(Eventually([&] { return absl::IsOutOfRange(client->Range(read).status()); }));
  // So do those of a leadership that is renewed while nothing is committed.
  etcdserverpb::TxnRequest renewal;
  auto& put = *renewal.add_success()->mutable_request_put();
  put.set_key(Prefix() + "-beside");
  for (const char* value : {"1", "2"}) {
    put.set_value(value);
    const auto renewed = client->Txn(renewal);
    ASSERT_TRUE(renewed.ok()) << renewed.status();
    if (*value == '1') read.set_revision(renewed->header().revision());
  }
  EXPECT_TRUE(Eventually([&] { return absl::IsOutOfRange(client->Range(read).status()); }));
  EXPECT_TRUE(Eventually([&] { return notices.Has("EtcdNearlyFull", "of its quota of 19.5 KiB"); }))
      << notices.all.size();
  // For metrics.
  EXPECT_GT(store->size().bytes.value_or(0), 0u);
  EXPECT_EQ(store->size().most_bytes, options.upkeep.quota_bytes);
  EXPECT_THAT(Loaded(*store), ElementsAre("a=2"));
}

TEST(EtcdStateStoreTest, AFullDatabaseIsReadOnlyUntilItsAlarmIsDisarmed) {
  testing::EtcdMembers members({"--quota-backend-bytes", "2000000"});
  Notices notices;
  EtcdStateStore::Options options = {.client = members.client(), .prefix = Prefix()};
  options.upkeep.interval = std::chrono::milliseconds(100);
  options.upkeep.notice = [&notices](const std::string& kind, const std::string& message) {
    notices.Add(kind, message);
  };
  const auto store = *EtcdStateStore::Open(options);
  ASSERT_TRUE(store->BeginTerm().ok());
  absl::Status full;
  for (int i = 0; full.ok() && i < 20; ++i) {
    full = store->Commit(1, {Row("large", std::string(500'000, static_cast<char>('a' + i)))});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr("NOSPACE"), HasSubstr("etcdctl alarm disarm")));
  EXPECT_EQ(Loaded(*store).size(), 1u);
  EXPECT_TRUE(Eventually([&] { return notices.Has("EtcdAlarm", "NOSPACE"); }));
  EXPECT_TRUE(Eventually([&] {
    // Compaction goes on.
    members.Ctl({"defrag"});
    members.Ctl({"alarm", "disarm"});
    return store->Commit(1, {Row("large", "small")}).ok();
  }));
  EXPECT_TRUE(Eventually([&] { return notices.Has("EtcdAlarmOver", ""); }));
}

TEST(EtcdStateStoreTest, TheLossOfAMemberChangesNothingAndThatOfTheMajorityIsToldInTime) {
  testing::EtcdMembers members;
  etcd::Client::Options client = members.client();
  // It outlasts elections of etcd's, whose votes may be split.
  client.timeout = std::chrono::seconds(15);
  const auto store = Open(client);
  ASSERT_TRUE(store->BeginTerm().ok());
  const int first = members.Leader();
  members.Kill(first);
  for (int i = 0; i < 5; ++i) {
    const absl::Status status = store->Commit(1, {Row("a", std::to_string(i))});
    EXPECT_TRUE(status.ok()) << status;
  }
  client.timeout = std::chrono::seconds(3);
  const auto hasty = Open(client);
  EXPECT_TRUE(Eventually([&] { return hasty->Commit(1, {Row("b", "0")}).ok(); }));
  const int second = members.Leader();
  members.Pause(second);
  const auto began = std::chrono::steady_clock::now();
  const absl::Status lost = hasty->Commit(1, {Row("b", "1")});
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(9));
  EXPECT_TRUE(absl::IsUnavailable(hasty->Load().status()));
  members.GoOn(second);
  EXPECT_TRUE(Eventually([&] { return hasty->Commit(1, {Row("c", "1")}).ok(); }));
  EXPECT_THAT(Loaded(*hasty), AllOf(Contains("a=4"), Contains("c=1")));
}

TEST(EtcdStateStoreTest, ItsEndWaitsForNoMember) {
  testing::EtcdMembers members;
  EtcdStateStore::Options options = {.client = members.client(), .prefix = Prefix()};
  options.client.attempt = std::chrono::seconds(30);
  options.client.timeout = std::chrono::seconds(30);
  options.upkeep.interval = std::chrono::milliseconds(1);
  auto store = *EtcdStateStore::Open(options);
  ASSERT_TRUE(store->BeginTerm().ok());
  for (int member = 0; member < testing::EtcdMembers::kCount; ++member) members.Pause(member);
  // The upkeep waits for an answer by now.
  const auto began = std::chrono::steady_clock::now();
  store.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  for (int member = 0; member < testing::EtcdMembers::kCount; ++member) members.GoOn(member);
}

}  // namespace
}  // namespace meshrun::coordinator
