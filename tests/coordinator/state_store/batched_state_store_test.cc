// Batches of any size on a store whose transactions are small, and a crash between any two of them.
#include "coordinator/state_store/batched_state_store.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>

#include "coordinator/state_store/etcd_state_store.h"
#include "coordinator/state_store/memory_state_store.h"
#include "tests/etcd/shared_members.h"

namespace meshrun::coordinator {
namespace {

using State = std::map<std::pair<int, std::string>, std::string>;
using Rows = std::vector<v1::StateRow>;

constexpr StateStore::Limits kSmall{.rows = 8, .bytes = 8192};

// The disk, and a process that ends after so many transactions, which are small.
class CrashingStore : public StateStore {
 public:
  CrashingStore(StateStore& disk, int transactions) : disk_(disk), left_(transactions) {}
  Limits limits() const override { return kSmall; }
  absl::StatusOr<uint64_t> BeginTerm() override { return disk_.BeginTerm(); }
  absl::Status ForEachRow(const TakeRow& take) override { return disk_.ForEachRow(take); }
  absl::Status Commit(uint64_t term, const Rows& rows) override {
    if (left_-- <= 0) return absl::InternalError("crashed");
    return disk_.Commit(term, rows);
  }

 private:
  StateStore& disk_;
  int left_;
};

State StateOf(const Rows& rows) {
  State out;
  for (const v1::StateRow& row : rows) {
    if (row.table() != v1::STATE_TABLE_META) out[{row.table(), row.key()}] = row.value();
  }
  return out;
}

void Apply(const Rows& rows, State* state) {
  for (const v1::StateRow& row : rows) {
    if (row.erased()) {
      state->erase({row.table(), row.key()});
    } else {
      (*state)[{row.table(), row.key()}] = row.value();
    }
  }
}

// Some rows small, some larger than a transaction, some erased, keys twice.
Rows RandomBatch(std::mt19937& random) {
  Rows out;
  const size_t count = 1 + random() % 24;
  for (size_t i = 0; i < count; ++i) {
    v1::StateRow& row = out.emplace_back();
    row.set_table(random() % 2 == 0 ? v1::STATE_TABLE_JOBS : v1::STATE_TABLE_VALUES);
    row.set_key("job/" + std::to_string(random() % 12));
    if (random() % 5 == 0) {
      row.set_erased(true);
    } else {
      row.set_value(std::string(random() % 3 == 0 ? random() % 20'000 : random() % 100,
                                static_cast<char>('a' + random() % 26)));
    }
  }
  return out;
}

// Takes so many seeds, each on a disk of its own.
void CrashAnywhere(uint32_t seeds,
                   const std::function<std::unique_ptr<StateStore>(uint32_t seed)>& make_disk) {
  uint32_t committed = 0, undone = 0;
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    std::mt19937 random(seed);
    const std::unique_ptr<StateStore> own_disk = make_disk(seed);
    StateStore& disk = *own_disk;
    State state;
    // Several processes, each of which ends somewhere.
    for (int process = 0; process < 4; ++process) {
      BatchedStateStore store(
          std::make_unique<CrashingStore>(disk, static_cast<int>(random() % 60)));
      const auto term = store.BeginTerm();
      if (!term.ok()) continue;
      while (true) {
        const Rows batch = RandomBatch(random);
        State next = state;
        Apply(batch, &next);
        const absl::Status status = store.Commit(*term, batch);
        if (status.ok()) {
          state = std::move(next);
          ++committed;
        }
        const State loaded = StateOf(*store.Load());
        if (!status.ok()) {
          ASSERT_TRUE(loaded == state || loaded == next) << "seed " << seed;
          state = loaded;
          ++undone;
          break;
        }
        ASSERT_TRUE(loaded == state) << "seed " << seed;
      }
    }
    BatchedStateStore store(std::make_unique<CrashingStore>(disk, 1'000'000));
    ASSERT_TRUE(store.BeginTerm().ok());
    ASSERT_TRUE(StateOf(*store.Load()) == state) << "seed " << seed;
    // Nothing is left beside the state.
    const Rows raw = *disk.Load();
    for (const v1::StateRow& row : raw) EXPECT_NE(row.table(), v1::STATE_TABLE_STAGED);
  }
  EXPECT_GT(committed, seeds);
  EXPECT_GT(undone, seeds);
}

TEST(BatchedStateStoreTest, ACrashBetweenAnyTwoTransactionsLeavesOneOfTwoBatches) {
  CrashAnywhere(150, [](uint32_t) { return std::make_unique<MemoryStateStore>(kSmall); });
}

TEST(BatchedStateStoreTest, ACrashBetweenAnyTwoTransactionsOfEtcdLeavesOneOfTwoBatches) {
  CrashAnywhere(6, [](uint32_t seed) {
    return *EtcdStateStore::Open({.client = testing::SharedEtcdMembers().client(),
                                  .prefix = "crash" + std::to_string(seed)});
  });
}

// As at the end of a roll call. Makes each disk empty.
void CrashAnywhereInABatchThatChangesTheTerm(
    const std::function<std::unique_ptr<StateStore>(int)>& make_disk) {
  Rows batch;
  State after;
  for (int i = 0; i < 20; ++i) {
    v1::StateRow& row = batch.emplace_back();
    row.set_table(v1::STATE_TABLE_JOBS);
    row.set_key("job/" + std::to_string(i));
    row.set_value(std::string(1000, 'x'));
  }
  Apply(batch, &after);
  batch.push_back(TermRow(7));
  bool crashed = true;
  int transactions = 0;
  for (; crashed; ++transactions) {
    const std::unique_ptr<StateStore> disk = make_disk(transactions);
    {
      BatchedStateStore store(std::make_unique<CrashingStore>(*disk, transactions));
      ASSERT_EQ(*store.BeginTerm(), 1u);
      const bool committed = store.Commit(1, batch).ok();
      crashed = !committed || !store.Commit(7, {TermRow(7)}).ok();
      ASSERT_TRUE(StateOf(*store.Load()) == (committed ? after : State())) << transactions;
    }
    // Another crash while the first one's rest is done.
    (void)BatchedStateStore(std::make_unique<CrashingStore>(*disk, 1)).BeginTerm();
    BatchedStateStore store(std::make_unique<CrashingStore>(*disk, 1'000'000));
    const State state = StateOf(*store.Load());
    ASSERT_TRUE(state == after || (crashed && state.empty())) << transactions;
    const auto term = store.BeginTerm();
    ASSERT_TRUE(term.ok()) << transactions << ": " << term.status();
    EXPECT_EQ(*term, state.empty() ? 3u : 9u) << transactions;
    EXPECT_TRUE(StateOf(*store.Load()) == state) << transactions;
    EXPECT_TRUE(store.Commit(*term, {TermRow(*term)}).ok()) << transactions;
    for (const v1::StateRow& row : *disk->Load()) {
      EXPECT_NE(row.table(), v1::STATE_TABLE_STAGED) << transactions;
    }
  }
  EXPECT_GT(transactions, 8);
}

TEST(BatchedStateStoreTest, ACrashInABatchThatChangesTheTermLeavesOneOfTwoTerms) {
  CrashAnywhereInABatchThatChangesTheTerm(
      [](int) { return std::make_unique<MemoryStateStore>(kSmall); });
}

TEST(BatchedStateStoreTest, ACrashInABatchThatChangesTheTermInEtcdLeavesOneOfTwoTerms) {
  CrashAnywhereInABatchThatChangesTheTerm([](int transactions) {
    return *EtcdStateStore::Open({.client = testing::SharedEtcdMembers().client(),
                                  .prefix = "term" + std::to_string(transactions)});
  });
}

TEST(BatchedStateStoreTest, AnErrorThatPassesLeavesTheStoreUsable) {
  for (int transactions = 0; transactions < 40; ++transactions) {
    MemoryStateStore disk(kSmall);
    std::mt19937 random(7);
    // The same process goes on: its disk fails once.
    class FailingOnce : public CrashingStore {
     public:
      FailingOnce(StateStore& disk, int after) : CrashingStore(disk, 1 << 30), after_(after) {}
      absl::Status Commit(uint64_t term, const Rows& rows) override {
        if (after_-- == 0) {
          // Written, and yet an error: what a lost answer looks like.
          (void)CrashingStore::Commit(term, rows);
          return absl::InternalError("no answer");
        }
        return CrashingStore::Commit(term, rows);
      }

     private:
      int after_;
    };
    BatchedStateStore store(std::make_unique<FailingOnce>(disk, transactions));
    const auto term = store.BeginTerm();
    ASSERT_TRUE(term.ok());
    State state;
    for (int i = 0; i < 12; ++i) {
      const Rows batch = RandomBatch(random);
      State next = state;
      Apply(batch, &next);
      const absl::Status status = store.Commit(*term, batch);
      const State loaded = StateOf(*store.Load());
      ASSERT_TRUE(loaded == next || (!status.ok() && loaded == state)) << transactions << " " << i;
      state = loaded;
    }
  }
}

TEST(BatchedStateStoreTest, AKeyOrANumberThatCannotBeReadIsDamage) {
  const std::pair<v1::StateTable, std::pair<std::string, std::string>> wrong[] = {
      {v1::STATE_TABLE_META, {"staged", "x"}},
      {v1::STATE_TABLE_META, {"staged", "99999999999999999999"}},
      {v1::STATE_TABLE_STAGED, {"x", ""}},
      {v1::STATE_TABLE_PIECES, {"1", ""}},
      {v1::STATE_TABLE_PIECES, {"x/job/000000", ""}},
      {v1::STATE_TABLE_PIECES, {"1/job/00000x", ""}},
      {v1::STATE_TABLE_PIECES, {"1/000000", ""}},
  };
  for (const auto& [table, entry] : wrong) {
    MemoryStateStore disk(kSmall);
    const auto term = disk.BeginTerm();
    ASSERT_TRUE(term.ok());
    v1::StateRow row;
    row.set_table(table);
    row.set_key(entry.first);
    row.set_value(entry.second);
    ASSERT_TRUE(disk.Commit(*term, {row}).ok());
    BatchedStateStore store(std::make_unique<CrashingStore>(disk, 1'000'000));
    const absl::Status status = store.Load().status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << entry.first << ": " << status;
    EXPECT_NE(std::string(status.message()).find("key '" + entry.first + "'"), std::string::npos)
        << status;
  }
}

}  // namespace
}  // namespace meshrun::coordinator
