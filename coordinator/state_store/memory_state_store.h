// State that ends with the process: for `meshrun run` and for tests.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "coordinator/state_store/state_store.h"
#include "core/mutex.h"

namespace meshrun::coordinator {

class MemoryStateStore : public StateStore {
 public:
  MemoryStateStore() : limits_{} {}
  explicit MemoryStateStore(Limits limits) : limits_(limits) {}

  Limits limits() const override { return limits_; }
  absl::StatusOr<uint64_t> BeginTerm() override;
  absl::Status ForEachRow(const TakeRow& take) override;
  absl::Status Commit(uint64_t term, const std::vector<v1::StateRow>& rows) override;

 private:
  using Key = std::pair<int, std::string>;

  absl::StatusOr<uint64_t> Term() const MESHRUN_REQUIRES(mu_);

  const Limits limits_;
  mutable Mutex mu_;
  std::map<Key, std::string> rows_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator
