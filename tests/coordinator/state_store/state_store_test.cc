// One suite over all implementations, and what SQLite alone promises.
#include "coordinator/state_store/state_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>

#include "coordinator/state_store/batched_state_store.h"
#include "coordinator/state_store/etcd_state_store.h"
#include "coordinator/state_store/memory_state_store.h"
#include "coordinator/state_store/sqlite_state_store.h"
#include "core/os/files.h"
#include "tests/etcd/shared_members.h"

namespace meshrun::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::StateRow Row(v1::StateTable table, const std::string& key, const std::string& value) {
  v1::StateRow row;
  row.set_table(table);
  row.set_key(key);
  row.set_value(value);
  return row;
}

v1::StateRow Erased(v1::StateTable table, const std::string& key) {
  v1::StateRow row = Row(table, key, "");
  row.set_erased(true);
  return row;
}

std::string TestName() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(test->test_suite_name()) + test->name();
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  return name;
}

std::string Directory() {
  const std::string directory = ::testing::TempDir() + "/" + TestName();
  EXPECT_TRUE(os::RemoveTree(directory).ok());
  return directory;
}

std::unique_ptr<StateStore> MakeMemory() { return std::make_unique<MemoryStateStore>(); }
std::unique_ptr<StateStore> MakeLimited() {
  return std::make_unique<MemoryStateStore>(StateStore::kLeast);
}
std::unique_ptr<StateStore> MakeBatched() {
  return std::make_unique<BatchedStateStore>(MakeLimited());
}
std::unique_ptr<StateStore> MakeSqlite() { return *SqliteStateStore::Open(Directory()); }

// Each test has a prefix of its own.
std::unique_ptr<StateStore> MakeEtcd() {
  return *EtcdStateStore::Open(
      {.client = testing::SharedEtcdMembers().client(), .prefix = TestName()});
}
std::unique_ptr<StateStore> MakeBatchedEtcd() {
  return std::make_unique<BatchedStateStore>(MakeEtcd());
}

class StateStoreTest : public ::testing::TestWithParam<std::unique_ptr<StateStore> (*)()> {
 protected:
  std::vector<std::string> Loaded() {
    std::vector<std::string> out;
    const std::vector<v1::StateRow> rows = *store_->Load();
    for (const v1::StateRow& row : rows) {
      out.push_back(std::to_string(row.table()) + ":" + row.key() + "=" + row.value());
    }
    return out;
  }
  std::unique_ptr<StateStore> store_ = GetParam()();
};

TEST_P(StateStoreTest, BeginsEmpty) { EXPECT_THAT(Loaded(), ElementsAre()); }

TEST_P(StateStoreTest, LoadsInTheOrderOfTablesAndKeys) {
  ASSERT_TRUE(
      store_
          ->Commit(0, {Row(v1::STATE_TABLE_NODES, "a", "3"), Row(v1::STATE_TABLE_JOBS, "b", "2"),
                       Row(v1::STATE_TABLE_JOBS, "a", "1")})
          .ok());
  EXPECT_THAT(Loaded(), ElementsAre("2:a=1", "2:b=2", "3:a=3"));
}

TEST_P(StateStoreTest, ReplacesAndErases) {
  ASSERT_TRUE(
      store_->Commit(0, {Row(v1::STATE_TABLE_JOBS, "a", "1"), Row(v1::STATE_TABLE_JOBS, "b", "1")})
          .ok());
  ASSERT_TRUE(
      store_->Commit(0, {Row(v1::STATE_TABLE_JOBS, "a", "2"), Erased(v1::STATE_TABLE_JOBS, "b")})
          .ok());
  EXPECT_THAT(Loaded(), ElementsAre("2:a=2"));
}

TEST_P(StateStoreTest, TheLastRowOfAKeyWinsInABatch) {
  ASSERT_TRUE(
      store_
          ->Commit(0, {Row(v1::STATE_TABLE_JOBS, "a", "1"), Erased(v1::STATE_TABLE_JOBS, "a"),
                       Row(v1::STATE_TABLE_JOBS, "a", "2")})
          .ok());
  EXPECT_THAT(Loaded(), ElementsAre("2:a=2"));
}

TEST_P(StateStoreTest, ErasingWhatIsNotThereIsNoError) {
  EXPECT_TRUE(store_->Commit(0, {Erased(v1::STATE_TABLE_JOBS, "a")}).ok());
  EXPECT_TRUE(store_->Commit(0, {}).ok());
}

TEST_P(StateStoreTest, TermsRiseAndAnOlderOneWritesNothing) {
  EXPECT_EQ(*store_->BeginTerm(), 1u);
  ASSERT_TRUE(store_->Commit(1, {Row(v1::STATE_TABLE_JOBS, "a", "1")}).ok());
  EXPECT_EQ(*store_->BeginTerm(), 2u);
  const absl::Status stale = store_->Commit(1, {Row(v1::STATE_TABLE_JOBS, "a", "stale")});
  EXPECT_TRUE(absl::IsFailedPrecondition(stale)) << stale;
  EXPECT_THAT(std::string(stale.message()), HasSubstr("has begun term 2"));
  ASSERT_TRUE(store_->Commit(2, {Row(v1::STATE_TABLE_JOBS, "b", "2")}).ok());
  EXPECT_THAT(Loaded(), ElementsAre("1:term=2", "2:a=1", "2:b=2"));
}

TEST_P(StateStoreTest, TakesWhatEveryStoreTakes) {
  std::vector<v1::StateRow> rows;
  for (size_t i = 0; i < StateStore::kLeast.rows; ++i) {
    rows.push_back(Row(v1::STATE_TABLE_VALUES, std::to_string(1000 + i), std::string(8000, 'x')));
  }
  EXPECT_TRUE(store_->Commit(0, rows).ok());
  EXPECT_EQ(store_->Load()->size(), rows.size());
}

TEST_P(StateStoreTest, KeepsEveryByte) {
  const std::string bytes("\0\xff\n'\"", 5);
  ASSERT_TRUE(store_
                  ->Commit(0, {Row(v1::STATE_TABLE_VALUES, "k\xc3\xa9y'\"%/", bytes),
                               Row(v1::STATE_TABLE_VALUES, "empty", "")})
                  .ok());
  const auto rows = *store_->Load();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].value(), "");
  EXPECT_EQ(rows[1].value(), bytes);
  EXPECT_EQ(rows[1].key(), "k\xc3\xa9y'\"%/");
}

TEST_P(StateStoreTest, GivesRowsUntilNoMoreAreWanted) {
  ASSERT_TRUE(
      store_->Commit(0, {Row(v1::STATE_TABLE_JOBS, "a", "1"), Row(v1::STATE_TABLE_JOBS, "b", "2")})
          .ok());
  int rows = 0;
  ASSERT_TRUE(store_
                  ->ForEachRow([&rows](const v1::StateRow&) {
                    ++rows;
                    return false;
                  })
                  .ok());
  EXPECT_EQ(rows, 1);
}

TEST_P(StateStoreTest, GivesTheRowsOfOneTableAlone) {
  ASSERT_TRUE(store_->BeginTerm().ok());
  std::vector<v1::StateRow> rows = {
      Row(v1::STATE_TABLE_NODES, "n", "4"), Row(v1::STATE_TABLE_JOBS, "b", "2"),
      Row(v1::STATE_TABLE_JOBS, "a", "1"), Row(v1::STATE_TABLE_VALUES, "v", "5")};
  // Also where a value is in pieces.
  if (store_->limits().rows == StateStore::Limits().rows) {
    rows.push_back(Row(v1::STATE_TABLE_VALUES, "w", std::string(3 << 20, 'x')));
  }
  ASSERT_TRUE(store_->Commit(1, rows).ok());
  const auto of = [this](v1::StateTable table, size_t most) {
    std::vector<std::string> out;
    const absl::Status status = store_->ForEachRowOf(table, [&](const v1::StateRow& row) {
      EXPECT_EQ(row.table(), table);
      out.push_back(row.key() + std::to_string(row.value().size()));
      return out.size() < most;
    });
    EXPECT_TRUE(status.ok()) << status;
    return out;
  };
  EXPECT_THAT(of(v1::STATE_TABLE_META, 9), ElementsAre("term1"));
  EXPECT_THAT(of(v1::STATE_TABLE_JOBS, 9), ElementsAre("a1", "b1"));
  EXPECT_THAT(of(v1::STATE_TABLE_JOBS, 1), ElementsAre("a1"));
  EXPECT_EQ(of(v1::STATE_TABLE_VALUES, 9).size(), rows.size() - 3);
  EXPECT_THAT(of(v1::STATE_TABLE_AUDIT, 9), ElementsAre());
}

TEST_P(StateStoreTest, ShowsTenThousandRowsInOrder) {
  std::vector<v1::StateRow> batch;
  for (int i = 0; i < 10'000; ++i) {
    // Not in the order of keys.
    batch.push_back(Row(v1::STATE_TABLE_EVENTS, fmt::format("{:05}", i * 7919 % 10'000), "event"));
    if (batch.size() < StateStore::kLeast.rows && i + 1 < 10'000) continue;
    ASSERT_TRUE(store_->Commit(0, batch).ok());
    batch.clear();
  }
  int next = 0;
  ASSERT_TRUE(store_
                  ->ForEachRow([&next](const v1::StateRow& row) {
                    EXPECT_EQ(row.key(), fmt::format("{:05}", next));
                    ++next;
                    return true;
                  })
                  .ok());
  EXPECT_EQ(next, 10'000);
}

TEST_P(StateStoreTest, RefusesWhatIsBeyondItsLimits) {
  const StateStore::Limits limits = store_->limits();
  if (limits.rows == StateStore::Limits().rows) GTEST_SKIP() << "it has none";
  std::vector<v1::StateRow> rows;
  for (size_t i = 0; i <= limits.rows; ++i) {
    rows.push_back(Row(v1::STATE_TABLE_JOBS, std::to_string(i), ""));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(0, rows)));
  const v1::StateRow large = Row(v1::STATE_TABLE_JOBS, "a", std::string(limits.bytes, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(0, {large})));
  EXPECT_THAT(Loaded(), ElementsAre());
}

TEST_P(StateStoreTest, TakesBatchesOfAnySizeWithoutLimits) {
  if (store_->limits().rows != StateStore::Limits().rows) GTEST_SKIP() << "it has limits";
  ASSERT_TRUE(store_->BeginTerm().ok());
  std::vector<v1::StateRow> rows;
  for (int i = 0; i < 500; ++i) {
    rows.push_back(Row(v1::STATE_TABLE_JOBS, fmt::format("{:03}", i), "job"));
  }
  std::string large(3 << 20, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 31);
  rows.push_back(Row(v1::STATE_TABLE_VALUES, "large", large));
  ASSERT_TRUE(store_->Commit(1, rows).ok());
  auto loaded = *store_->Load();
  ASSERT_EQ(loaded.size(), rows.size() + 1);
  EXPECT_EQ(loaded[1].key(), "000");
  EXPECT_TRUE(loaded.back().value() == large);
  // A smaller one in its place.
  ASSERT_TRUE(store_->Commit(1, {Row(v1::STATE_TABLE_VALUES, "large", "small")}).ok());
  loaded = *store_->Load();
  ASSERT_EQ(loaded.size(), rows.size() + 1);
  EXPECT_EQ(loaded.back().value(), "small");
}

TEST_P(StateStoreTest, ABatchOfAnySizeMayChangeTheTerm) {
  if (store_->limits().rows != StateStore::Limits().rows) GTEST_SKIP() << "it has limits";
  ASSERT_EQ(*store_->BeginTerm(), 1u);
  std::vector<v1::StateRow> rows;
  for (int i = 0; i < 500; ++i) {
    rows.push_back(Row(v1::STATE_TABLE_JOBS, fmt::format("{:03}", i), "job"));
  }
  rows.push_back(TermRow(7));
  ASSERT_TRUE(store_->Commit(1, rows).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Commit(1, {Erased(v1::STATE_TABLE_JOBS, "000")})));
  const absl::Status next = store_->Commit(7, {Row(v1::STATE_TABLE_VALUES, "a", "1")});
  EXPECT_TRUE(next.ok()) << next;
  const auto loaded = *store_->Load();
  ASSERT_EQ(loaded.size(), 502u);
  EXPECT_EQ(loaded[0].value(), "7");
  EXPECT_EQ(*store_->BeginTerm(), 8u);
}

INSTANTIATE_TEST_SUITE_P(Memory, StateStoreTest, ::testing::Values(&MakeMemory));
INSTANTIATE_TEST_SUITE_P(Limited, StateStoreTest, ::testing::Values(&MakeLimited));
INSTANTIATE_TEST_SUITE_P(Batched, StateStoreTest, ::testing::Values(&MakeBatched));
INSTANTIATE_TEST_SUITE_P(Sqlite, StateStoreTest, ::testing::Values(&MakeSqlite));
INSTANTIATE_TEST_SUITE_P(Etcd, StateStoreTest, ::testing::Values(&MakeEtcd));
INSTANTIATE_TEST_SUITE_P(BatchedEtcd, StateStoreTest, ::testing::Values(&MakeBatchedEtcd));

TEST(SqliteStateStoreTest, KeepsItsRowsAcrossProcesses) {
  const std::string directory = Directory();
  {
    auto store = *SqliteStateStore::Open(directory);
    ASSERT_TRUE(store->Commit(0, {Row(v1::STATE_TABLE_JOBS, "a", "1")}).ok());
  }
  EXPECT_EQ((*(*SqliteStateStore::Open(directory))->Load()).size(), 1u);
}

TEST(SqliteStateStoreTest, OneCoordinatorPerDirectory) {
  const std::string directory = Directory();
  const auto first = SqliteStateStore::Open(directory);
  ASSERT_TRUE(first.ok());
  const auto second = SqliteStateStore::Open(directory);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use by another coordinator"));
}

TEST(SqliteStateStoreTest, ItsFilesAreReadableByItsUserAlone) {
  const std::string directory = Directory();
  const auto modes = [&] {
    std::set<int> modes;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      modes.insert(static_cast<int>(entry.status().permissions()) & 0777);
    }
    return modes;
  };
  const mode_t before = ::umask(0);
  for (const bool made_before : {false, true}) {
    auto store = SqliteStateStore::Open(directory);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Commit(0, {Row(v1::STATE_TABLE_JOBS, "a", "1")}).ok());
    EXPECT_THAT(modes(), ElementsAre(0600)) << made_before;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      std::filesystem::permissions(entry.path(), std::filesystem::perms(0666));
    }
  }
  ::umask(before);
}

// Bytes that this process has read from files.
uint64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  io >> name >> bytes;
  return bytes;
}

// 500 small rows beside one of 8 MiB cost 4 GiB.
TEST(SqliteStateStoreTest, ALargeRowCostsThoseBesideItNothing) {
  auto store = *SqliteStateStore::Open(Directory());
  ASSERT_TRUE(
      store->Commit(0, {Row(v1::STATE_TABLE_VALUES, "j/1/k/a", std::string(8 << 20, 'x'))}).ok());
  const uint64_t before = BytesRead();
  for (int i = 0; i < 500; ++i) {
    const std::string key = fmt::format("j/1/k/b{:03}", i);
    ASSERT_TRUE(store->Commit(0, {Row(v1::STATE_TABLE_VALUES, key, "small")}).ok());
    ASSERT_TRUE(store->Commit(0, {Row(v1::STATE_TABLE_VALUES, key, "another")}).ok());
    ASSERT_TRUE(store->Commit(0, {Erased(v1::STATE_TABLE_VALUES, key)}).ok());
  }
  EXPECT_LT(BytesRead() - before, 64u << 20);
}

TEST(SqliteStateStoreTest, RowsOfAnOlderSchemaAreTakenOver) {
  const std::string directory = Directory();
  std::filesystem::create_directories(directory);
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((directory + "/state.sqlite").c_str(), &db), SQLITE_OK);
  // As coordinators of schema 3 have made it.
  ASSERT_EQ(
      sqlite3_exec(db,
                   "PRAGMA journal_mode=WAL;"
                   "CREATE TABLE rows (kind INTEGER NOT NULL, key TEXT NOT NULL, value BLOB "
                   "NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;"
                   "INSERT INTO rows VALUES (2, 'b', x'00ff'), (1, 'term', '7'), (2, 'a', '');"
                   "PRAGMA user_version=3",
                   nullptr, nullptr, nullptr),
      SQLITE_OK);
  sqlite3_close(db);
  for (int i = 0; i < 2; ++i) {
    const auto store = SqliteStateStore::Open(directory);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(*(*store)->BeginTerm(), 8u + static_cast<unsigned>(i));
    const auto rows = *(*store)->Load();
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(rows[1].key(), "a");
    EXPECT_EQ(rows[2].value(), std::string("\0\xff", 2));
  }
}

TEST(SqliteStateStoreTest, RefusesANewerSchema) {
  const std::string directory = Directory();
  ASSERT_TRUE(SqliteStateStore::Open(directory).ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((directory + "/state.sqlite").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version=99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const auto store = SqliteStateStore::Open(directory);
  EXPECT_TRUE(absl::IsFailedPrecondition(store.status()));
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("schema 99"));
}

TEST(SqliteStateStoreTest, AFailedBatchLeavesNothing) {
  const std::string directory = Directory();
  auto store = *SqliteStateStore::Open(directory);
  ASSERT_TRUE(store->Commit(0, {Row(v1::STATE_TABLE_JOBS, "a", "1")}).ok());
  // Another process's lock stands in for a disk that refuses.
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((directory + "/state.sqlite").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_FALSE(store->Commit(0, {Row(v1::STATE_TABLE_JOBS, "b", "1")}).ok());
  sqlite3_close(db);
  EXPECT_EQ(store->Load()->size(), 1u);
  EXPECT_TRUE(store->Commit(0, {Row(v1::STATE_TABLE_JOBS, "b", "1")}).ok());
}

}  // namespace
}  // namespace meshrun::coordinator
