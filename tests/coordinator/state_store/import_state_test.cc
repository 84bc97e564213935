#include "coordinator/state_store/import_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_store/batched_state_store.h"
#include "coordinator/state_store/memory_state_store.h"
#include "coordinator/state_store/sqlite_state_store.h"
#include "coordinator/state_store/state_copy.h"
#include "core/hash.h"
#include "core/os/files.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::StateRow Row(v1::StateTable table, const std::string& key, const std::string& value) {
  v1::StateRow row;
  row.set_table(table);
  row.set_key(key);
  row.set_value(value);
  return row;
}

std::vector<std::string> Texts(StateStore& store) {
  std::vector<std::string> texts;
  const auto rows = store.Load();
  EXPECT_TRUE(rows.ok()) << rows.status();
  for (const v1::StateRow& row : *rows) texts.push_back(row.SerializeAsString());
  return texts;
}

class ImportStateTest : public ::testing::Test {
 protected:
  // A state in its third term.
  ImportStateTest() {
    auto old = *SqliteStateStore::Open(directory_ / "old");
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(old->BeginTerm().ok());
    EXPECT_TRUE(old->Commit(3, rows_).ok());
  }

  const meshrun::testing::TemporaryDirectory directory_;
  const std::string file_ = directory_ / "old/state.sqlite";
  // More than one transaction takes, and a value larger than that.
  const std::vector<v1::StateRow> rows_ = [] {
    std::vector<v1::StateRow> rows = {Row(v1::STATE_TABLE_META, "cluster_id", "abc")};
    for (int i = 0; i < 300; ++i) {
      rows.push_back(Row(v1::STATE_TABLE_JOBS, "job" + std::to_string(1000 + i), "x"));
    }
    rows.push_back(Row(v1::STATE_TABLE_NODES, "large", std::string(3 << 20, 'y')));
    return rows;
  }();
  BatchedStateStore store_{std::make_unique<MemoryStateStore>(StateStore::kLeast)};
};

TEST_F(ImportStateTest, EachRowIsThereAndTheTermsBeginAnew) {
  const std::string before = HexEncode(Sha256(*os::ReadFile(file_)));
  ASSERT_TRUE(ImportState(file_, store_).ok());
  EXPECT_EQ(HexEncode(Sha256(*os::ReadFile(file_))), before);
  EXPECT_EQ(*store_.BeginTerm(), 1u);
  auto expected = std::make_unique<MemoryStateStore>();
  ASSERT_EQ(*expected->BeginTerm(), 1u);
  ASSERT_TRUE(expected->Commit(1, rows_).ok());
  ASSERT_TRUE(expected->Commit(1, {CopyRow("")}).ok());
  EXPECT_EQ(Texts(store_), Texts(*expected));
}

// Each file that is imported is a copy, whatever became of the state that it was copied from.
TEST_F(ImportStateTest, TheRollCallOfTheCopyIsToCome) {
  for (const std::vector<v1::StateRow>& marks :
       {std::vector<v1::StateRow>{},
        {CopyRow("monday")},
        {Row(v1::STATE_TABLE_META, "confirmed/monday", "")}}) {
    (void)os::RemoveTree(directory_ / "marked");
    {
      auto old = *SqliteStateStore::Open(directory_ / "marked");
      ASSERT_TRUE(old->Commit(0, rows_).ok());
      ASSERT_TRUE(old->Commit(0, marks).ok());
    }
    BatchedStateStore store(std::make_unique<MemoryStateStore>(StateStore::kLeast));
    ASSERT_TRUE(ImportState(directory_ / "marked/state.sqlite", store).ok());
    std::vector<std::string> meta;
    ASSERT_TRUE(store
                    .ForEachRowOf(v1::STATE_TABLE_META,
                                  [&meta](const v1::StateRow& row) {
                                    meta.push_back(row.key() + "=" + row.value());
                                    return true;
                                  })
                    .ok());
    EXPECT_THAT(meta, ElementsAre("cluster_id=abc", "copy="));
    ASSERT_TRUE(store.BeginTerm().ok());
    EXPECT_TRUE(*IsCopy(store));
  }
}

TEST_F(ImportStateTest, AStateThatIsThereIsNotTouched) {
  ASSERT_EQ(*store_.BeginTerm(), 1u);
  const auto before = Texts(store_);
  const absl::Status status = ImportState(file_, store_);
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("leave --import out"));
  EXPECT_EQ(Texts(store_), before);
}

TEST_F(ImportStateTest, WhatIsNoStateIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(ImportState(directory_ / "none", store_)));
  std::ofstream(directory_ / "empty");
  EXPECT_TRUE(absl::IsNotFound(ImportState(directory_ / "empty", store_)));
  std::ofstream(directory_ / "text") << std::string(8192, 't');
  const absl::Status status = ImportState(directory_ / "text", store_);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(directory_ / "text" + " is not a backup of meshrun's state"));
  EXPECT_TRUE(Texts(store_).empty());
}

TEST_F(ImportStateTest, AFileIsCheckedBeforeItIsWanted) {
  EXPECT_TRUE(CheckImport(file_).ok()) << CheckImport(file_);
  EXPECT_TRUE(absl::IsNotFound(CheckImport(directory_ / "none")));
  std::ofstream(directory_ / "text") << std::string(8192, 't');
  // Damaged behind its first page, and one that holds nothing yet.
  const std::string good = *os::ReadFile(file_);
  std::ofstream(directory_ / "damaged") << good.substr(0, 100) << std::string(8192, 'x');
  ASSERT_TRUE((*SqliteStateStore::Open(directory_ / "new"))->BeginTerm().ok());
  for (const char* name : {"text", "damaged", "new/state.sqlite"}) {
    const absl::Status status = CheckImport(directory_ / name);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(name), HasSubstr("is not a backup of meshrun's state"),
                      Not(HasSubstr("meshrun-import-"))));
  }
}

}  // namespace
}  // namespace meshrun::coordinator
