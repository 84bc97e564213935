// A StateStore whose disk can be made to fail.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "coordinator/state_store/state_store.h"

namespace meshrun::coordinator::testing {

class FaultyStateStore : public StateStore {
 public:
  // `broken` is the switch, and outlives the store.
  FaultyStateStore(std::unique_ptr<StateStore> store, const std::atomic<bool>& broken)
      : store_(std::move(store)), broken_(broken) {}

  absl::StatusOr<std::vector<v1::StateRow>> Load() override { return store_->Load(); }
  absl::Status Commit(const std::vector<v1::StateRow>& rows) override {
    if (broken_.load() && !rows.empty()) return absl::ResourceExhaustedError("disk full");
    return store_->Commit(rows);
  }

 private:
  const std::unique_ptr<StateStore> store_;
  const std::atomic<bool>& broken_;
};

}  // namespace meshrun::coordinator::testing
