// A StateStore whose disk can be made to fail and to hang.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "coordinator/state_store/state_store.h"

namespace meshrun::coordinator::testing {

class FaultyStateStore : public StateStore {
 public:
  // Switches, which outlive the store. While `hung` is true commits wait; turn it with
  // notify_all(). Null: the disk never hangs.
  FaultyStateStore(std::unique_ptr<StateStore> store, const std::atomic<bool>& broken,
                   const std::atomic<bool>* hung = nullptr)
      : store_(std::move(store)), broken_(broken), hung_(hung) {}

  Limits limits() const override { return store_->limits(); }
  absl::StatusOr<uint64_t> BeginTerm() override { return store_->BeginTerm(); }
  absl::Status ForEachRow(const TakeRow& take) override { return store_->ForEachRow(take); }
  absl::Status Commit(uint64_t term, const std::vector<v1::StateRow>& rows) override {
    if (hung_ != nullptr && !rows.empty()) hung_->wait(true);
    if (broken_.load() && !rows.empty()) return absl::ResourceExhaustedError("disk full");
    return store_->Commit(term, rows);
  }

 private:
  const std::unique_ptr<StateStore> store_;
  const std::atomic<bool>& broken_;
  const std::atomic<bool>* const hung_;
};

}  // namespace meshrun::coordinator::testing
