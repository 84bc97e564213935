#include "coordinator/state_store/memory_state_store.h"

namespace meshrun::coordinator {

absl::StatusOr<std::vector<v1::StateRow>> MemoryStateStore::Load() {
  std::vector<v1::StateRow> out;
  for (const auto& [key, value] : rows_) {
    v1::StateRow& row = out.emplace_back();
    row.set_table(static_cast<v1::StateTable>(key.first));
    row.set_key(key.second);
    row.set_value(value);
  }
  return out;
}

absl::Status MemoryStateStore::Commit(const std::vector<v1::StateRow>& rows) {
  for (const v1::StateRow& row : rows) {
    if (row.erased()) {
      rows_.erase({row.table(), row.key()});
    } else {
      rows_[{row.table(), row.key()}] = row.value();
    }
  }
  return absl::OkStatus();
}

}  // namespace meshrun::coordinator
