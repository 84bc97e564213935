// State that ends with the process: for `meshrun run` and for tests.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "coordinator/state_store/state_store.h"

namespace meshrun::coordinator {

class MemoryStateStore : public StateStore {
 public:
  absl::StatusOr<std::vector<v1::StateRow>> Load() override;
  absl::Status Commit(const std::vector<v1::StateRow>& rows) override;

 private:
  std::map<std::pair<int, std::string>, std::string> rows_;
};

}  // namespace meshrun::coordinator
