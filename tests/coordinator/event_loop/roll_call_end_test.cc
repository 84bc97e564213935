// The transaction that ends a roll call, where its outcome is not known.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/event_loop/event_loop.h"
#include "coordinator/state_store/batched_state_store.h"
#include "coordinator/state_store/memory_state_store.h"
#include "coordinator/state_store/meta_keys.h"
#include "coordinator/state_store/state_copy.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator {
namespace {

using testing::Eventually;

// Loses the answer to the first transaction that ends a roll call, or the transaction.
class LosingStore : public StateStore {
 public:
  LosingStore(MemoryStateStore& disk, bool is_done, std::atomic<int>& lost)
      : disk_(disk), is_done_(is_done), lost_(lost) {}
  Limits limits() const override { return disk_.limits(); }
  absl::StatusOr<uint64_t> BeginTerm() override { return disk_.BeginTerm(); }
  absl::Status ForEachRow(const TakeRow& take) override { return disk_.ForEachRow(take); }
  absl::Status Commit(uint64_t term, const std::vector<v1::StateRow>& rows) override {
    for (const v1::StateRow& row : rows) {
      const bool ends = row.key() == kCopyKey && row.erased();
      if (!ends || lost_++ != 0) continue;
      if (is_done_) {
        EXPECT_TRUE(disk_.Commit(term, rows).ok());
      }
      return absl::UnavailableError("etcd does not answer");
    }
    return disk_.Commit(term, rows);
  }

 private:
  MemoryStateStore& disk_;
  const bool is_done_;
  std::atomic<int>& lost_;
};

// Whether the transaction is done.
class RollCallEndTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Answer, RollCallEndTest, ::testing::Bool(), [](const auto& tested) {
  return std::string(tested.param ? "AnswerIsLost" : "TransactionIsLost");
});

TEST_P(RollCallEndTest, TheCoordinatorGoesOnAndTheStateIsNoCopy) {
  MemoryStateStore disk;
  ASSERT_TRUE(disk.BeginTerm().ok());
  ASSERT_TRUE(DeclareCopy(disk, {.name = "monday"}).ok());
  std::atomic<int> lost{0};
  BatchedStateStore store(std::make_unique<LosingStore>(disk, GetParam(), lost));
  Recipients recipients;
  EventLoop loop({.clock = Clock::Real(),
                  .store = store,
                  .recipients = recipients,
                  .lease = std::chrono::milliseconds(100),
                  .heartbeat = std::chrono::milliseconds(20)});
  ASSERT_TRUE(loop.Start().ok());
  ASSERT_EQ(loop.term(), 2u);
  ASSERT_TRUE(Eventually([&] { return lost > 0; }));
  // The end of the roll call is term 3.
  EXPECT_TRUE(Eventually([&] { return loop.term() == 3 && loop.read_only_reason().empty(); }))
      << loop.term() << " " << loop.read_only_reason();
  EXPECT_EQ(lost > 1, !GetParam()) << "a roll call that is over is not held again";
  EXPECT_TRUE(Eventually([&] {
    bool is_told = false;
    EXPECT_TRUE(disk.ForEachRowOf(v1::STATE_TABLE_EVENTS,
                                  [&](const v1::StateRow& row) {
                                    v1::ClusterEvent event;
                                    is_told |= event.ParseFromString(row.value()) &&
                                               event.kind() == "StateRestored";
                                    return true;
                                  })
                    .ok());
    return is_told;
  }));
  loop.Stop();
  EXPECT_TRUE(*IsRollCallOver(disk, 3));
  EXPECT_TRUE(disk.BeginTerm().ok());
  EXPECT_FALSE(*IsCopy(disk));
}

}  // namespace
}  // namespace meshrun::coordinator
