#include "coordinator/state_store/state_copy.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/state_store/batched_state_store.h"
#include "coordinator/state_store/memory_state_store.h"
#include "coordinator/state_store/meta_keys.h"

namespace meshrun::coordinator {
namespace {

v1::StateRow Erased(v1::StateRow row) {
  row.set_erased(true);
  return row;
}

// What the end of a roll call writes.
std::vector<v1::StateRow> EndOfRollCall(uint64_t term, const std::string& name) {
  std::vector<v1::StateRow> rows = {Erased(MetaRow(kOutdatedKey, "")),
                                    Erased(MetaRow(kCopyKey, ""))};
  if (!name.empty()) rows.push_back(MetaRow(std::string(kConfirmedPrefix) + name, ""));
  rows.push_back(TermRow(term));
  return rows;
}

class StateCopyTest : public ::testing::Test {
 protected:
  StateCopyTest() { (void)Begin(); }

  // A coordinator takes the state over.
  bool Begin() {
    term_ = *store_.BeginTerm();
    return *IsCopy(store_);
  }
  // ... with --restored, or --restored NAME.
  bool BeginRestored(const std::string& name = "", bool is_in_use = false) {
    const absl::Status declared =
        DeclareCopy(store_, {.name = name, .is_in_use = [=] { return is_in_use; }});
    EXPECT_TRUE(declared.ok()) << declared;
    return Begin();
  }
  void EndRollCall(const std::string& name = "") {
    ASSERT_TRUE(store_.Commit(term_, EndOfRollCall(term_ + 10, name)).ok());
  }

  MemoryStateStore store_;
  uint64_t term_ = 0;
};

TEST_F(StateCopyTest, AStateThatNobodyDeclaredIsNoCopy) { EXPECT_FALSE(Begin()); }

TEST_F(StateCopyTest, ALeaderThatDiesBeforeItsTermLeavesTheRollCallToTheNextOne) {
  ASSERT_TRUE(DeclareCopy(store_, {.name = ""}).ok());
  EXPECT_TRUE(Begin());
}

// Also by one without the flag, however many have died in it, and however often each has tried.
TEST_F(StateCopyTest, ARollCallThatIsNotOverIsHeldByWhoeverIsNext) {
  ASSERT_TRUE(BeginRestored());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Begin());
  EXPECT_TRUE(BeginRestored("", /*is_in_use=*/true));
  EndRollCall();
  EXPECT_FALSE(Begin());
}

TEST_F(StateCopyTest, AStandbyHoldsNoSecondOne) {
  ASSERT_TRUE(BeginRestored());
  EndRollCall();
  EXPECT_FALSE(BeginRestored("", /*is_in_use=*/true));
}

// Nothing tells a state that goes on from a copy of it that was brought back a second time.
TEST_F(StateCopyTest, WithoutANameEachStartIsARestore) {
  ASSERT_TRUE(BeginRestored());
  EndRollCall();
  EXPECT_TRUE(BeginRestored());
}

TEST_F(StateCopyTest, WithANameARestoreIsOne) {
  ASSERT_TRUE(BeginRestored("monday"));
  EXPECT_TRUE(BeginRestored("monday")) << "its first leader has died in the roll call";
  EndRollCall("monday");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(BeginRestored("monday"));
  EXPECT_TRUE(BeginRestored("tuesday"));
  EndRollCall("tuesday");
  for (const std::string name : {"tuesday", "monday"}) EXPECT_FALSE(BeginRestored(name)) << name;
}

// A mistyped prefix of etcd: the store says that a new cluster begins there.
TEST_F(StateCopyTest, WhereNobodyHasBegunATermThereIsNothingToDeclare) {
  MemoryStateStore empty;
  ASSERT_TRUE(DeclareCopy(empty, {.name = "monday"}).ok());
  EXPECT_TRUE(empty.Load()->empty());
}

// The flags of coordinators differ, and the state is in use: the name has had no roll call yet.
TEST_F(StateCopyTest, ANameCountsInAStateThatIsInUse) {
  EXPECT_TRUE(BeginRestored("monday", /*is_in_use=*/true));
  EndRollCall("monday");
  EXPECT_FALSE(BeginRestored("monday", /*is_in_use=*/true));
}

TEST_F(StateCopyTest, ARollCallWithoutANameBecomesThatOfTheName) {
  ASSERT_TRUE(BeginRestored());
  EXPECT_TRUE(BeginRestored("monday"));
  std::string name;
  ASSERT_TRUE(store_
                  .ForEachRowOf(v1::STATE_TABLE_META,
                                [&name](const v1::StateRow& row) {
                                  if (row.key() == kCopyKey) name = row.value();
                                  return true;
                                })
                  .ok());
  EXPECT_EQ(name, "monday");
  EXPECT_TRUE(BeginRestored());
}

// Most workers know a higher term: no name and no other coordinator can deny that it is a copy.
TEST_F(StateCopyTest, AnOutdatedStateIsACopy) {
  ASSERT_TRUE(BeginRestored("monday"));
  EndRollCall("monday");
  ASSERT_FALSE(Begin());
  ASSERT_TRUE(store_.Commit(term_, {MetaRow(kOutdatedKey, "3 of 4 workers ...")}).ok());
  EXPECT_FALSE(Begin()) << "without the flag it decides nothing";
  EXPECT_TRUE(BeginRestored("monday", /*is_in_use=*/true));
  EndRollCall("monday");
  EXPECT_FALSE(BeginRestored("monday", /*is_in_use=*/true));
  ASSERT_TRUE(store_.Commit(term_, {MetaRow(kOutdatedKey, "3 of 4 workers ...")}).ok());
  EXPECT_TRUE(BeginRestored("", /*is_in_use=*/true));
}

// One that was elected, and slept until another one had held the roll call.
TEST_F(StateCopyTest, OneThatComesLateDeclaresNothing) {
  const absl::Status late = DeclareCopy(store_, {.name = "", .is_in_use = [this] {
                                                   EXPECT_TRUE(BeginRestored());
                                                   EndRollCall();
                                                   return false;
                                                 }});
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_FALSE(Begin());
}

TEST_F(StateCopyTest, WhetherItIsInUseMayBeUnknown) {
  const absl::Status status = DeclareCopy(
      store_, {.name = "", .is_in_use = [] { return absl::UnavailableError("no answer"); }});
  EXPECT_EQ(status, absl::UnavailableError("no answer"));
  EXPECT_FALSE(Begin());
}

// The last transaction of a roll call is staged where it is large. Its leader dies before the rows
// are in their places.
TEST(StagedStateCopyTest, ADeclarationIsNotUndoneByRowsThatAreMovedLater) {
  constexpr StateStore::Limits kSmall{.rows = 4, .bytes = 4096};
  class Shared : public StateStore {
   public:
    Shared(MemoryStateStore& disk, int transactions) : disk_(disk), left_(transactions) {}
    Limits limits() const override { return disk_.limits(); }
    absl::StatusOr<uint64_t> BeginTerm() override { return disk_.BeginTerm(); }
    absl::Status ForEachRow(const TakeRow& take) override { return disk_.ForEachRow(take); }
    absl::Status Commit(uint64_t term, const std::vector<v1::StateRow>& rows) override {
      if (left_-- <= 0) return absl::InternalError("crashed");
      return disk_.Commit(term, rows);
    }

   private:
    MemoryStateStore& disk_;
    int left_;
  };
  int over = 0;
  int again = 0;
  for (const std::string name : {"monday", "tuesday"}) {
    for (int transactions = 1; transactions < 12; ++transactions) {
      MemoryStateStore disk(kSmall);
      ASSERT_TRUE(disk.BeginTerm().ok());
      {
        // A declaration before a term is written twice.
        BatchedStateStore store(std::make_unique<Shared>(disk, 2 + transactions));
        ASSERT_TRUE(DeclareCopy(store, {.name = "monday"}).ok());
        const auto term = store.BeginTerm();
        ASSERT_TRUE(term.ok() && *IsCopy(store));
        std::vector<v1::StateRow> rows = EndOfRollCall(*term + 10, "monday");
        for (int i = 0; i < 8; ++i) {
          rows.push_back(MetaRow("job" + std::to_string(i), std::string(1000, 'x')));
          rows.back().set_table(v1::STATE_TABLE_JOBS);
        }
        (void)store.Commit(*term, rows);
      }
      BatchedStateStore store(std::make_unique<Shared>(disk, 1000));
      const absl::Status declared = DeclareCopy(store, {.name = name});
      ASSERT_TRUE(declared.ok()) << declared;
      ASSERT_TRUE(store.BeginTerm().ok());
      if (name == "tuesday") {
        EXPECT_TRUE(*IsCopy(store)) << "after " << transactions << " transactions";
      } else {
        ++(*IsCopy(store) ? again : over);
      }
    }
  }
  EXPECT_GT(over, 1);
  EXPECT_GT(again, 1);
}

}  // namespace
}  // namespace meshrun::coordinator
