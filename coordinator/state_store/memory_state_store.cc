#include "coordinator/state_store/memory_state_store.h"

#include "core/status.h"

namespace meshrun::coordinator {

absl::StatusOr<uint64_t> MemoryStateStore::Term() const {
  const auto term = rows_.find({v1::STATE_TABLE_META, "term"});
  return term == rows_.end() ? 0 : ParseTerm(term->second);
}

absl::StatusOr<uint64_t> MemoryStateStore::BeginTerm() {
  MutexLock lock(mu_);
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t last, Term());
  const v1::StateRow row = TermRow(last + 1);
  rows_[{row.table(), row.key()}] = row.value();
  return last + 1;
}

absl::Status MemoryStateStore::ForEachRow(const TakeRow& take) {
  MutexLock lock(mu_);
  for (const auto& [key, value] : rows_) {
    v1::StateRow row;
    row.set_table(static_cast<v1::StateTable>(key.first));
    row.set_key(key.second);
    row.set_value(value);
    if (!take(std::move(row))) break;
  }
  return absl::OkStatus();
}

absl::Status MemoryStateStore::Commit(uint64_t term, const std::vector<v1::StateRow>& rows) {
  if (rows.empty()) return absl::OkStatus();
  MESHRUN_RETURN_IF_ERROR(CheckLimits(rows, limits_));
  MutexLock lock(mu_);
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t stored, Term());
  MESHRUN_RETURN_IF_ERROR(CheckTerm(stored, term));
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
