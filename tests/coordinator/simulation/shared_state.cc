// Coordinators that share a state, whose commits may fail.
#include <fmt/format.h>

#include <utility>

#include "tests/coordinator/simulation/coordinator_process.h"

namespace meshrun::coordinator::simulation {
namespace {

constexpr char kBatch[] = "simulated_batch";
// More than one transaction.
constexpr int kStaleRows = 20;

v1::StateRow Row(std::string key, std::string value) {
  v1::StateRow row;
  row.set_table(v1::STATE_TABLE_META);
  row.set_key(std::move(key));
  row.set_value(std::move(value));
  return row;
}

bool Names(const std::vector<v1::StateRow>& rows, uint64_t batch) {
  for (const v1::StateRow& row : rows) {
    if (row.table() == v1::STATE_TABLE_META && row.key() == kBatch) {
      return row.value() == std::to_string(batch);
    }
  }
  return false;
}

}  // namespace

absl::Status CoordinatorProcess::Write(const std::vector<v1::StateRow>& rows) {
  if (!open_store) {
    (void)store_.Commit(term_, rows);
    return absl::OkStatus();
  }
  if (rows.empty()) return absl::OkStatus();
  std::vector<v1::StateRow> named = rows;
  named.push_back(Row(kBatch, std::to_string(++batch_)));
  return store().Commit(term_, named);
}

bool CoordinatorProcess::IsLastBatchDurable() {
  const uint64_t chance = std::exchange(store_fault_chance, 0);
  const auto rows = open_store()->Load();
  store_fault_chance = chance;
  return rows.ok() && Names(*rows, batch_);
}

void CoordinatorProcess::OnCommitFailed(const absl::Status& why,
                                        const std::vector<v1::StateRow>& rows) {
  if (timeline_.notes_wanted()) {
    timeline_.Note(fmt::format("coordinator: commit of batch {} failed: {}", batch_,
                               std::string(why.message())));
  }
  ++failed_commits_;
  if (IsLastBatchDurable()) {
    ++done_nevertheless_;
    observer_.OnCommitted(*machine_, rows);
  } else {
    unknown_.emplace(Unknown{std::move(machine_), rows});
  }
  EndProcess();
  const nanoseconds pause = random_.Between(milliseconds(50), seconds(4));
  const bool goes_on = !absl::IsFailedPrecondition(why) && random_.OneIn(2);
  After(pause, goes_on ? &CoordinatorProcess::Probe : &CoordinatorProcess::Start);
}

void CoordinatorProcess::Probe() {
  const absl::Status status = store().Commit(term_, {TermRow(term_)});
  if (status.ok()) {
    Restore();
  } else {
    After(seconds(1), absl::IsFailedPrecondition(status) ? &CoordinatorProcess::Start
                                                         : &CoordinatorProcess::Probe);
  }
}

void CoordinatorProcess::ResolveUnknown(const std::vector<v1::StateRow>& rows) {
  if (!unknown_) return;
  if (Names(rows, batch_)) {
    ++done_nevertheless_;
    observer_.OnCommitted(*unknown_->machine, unknown_->rows);
  }
  unknown_.reset();
}

void CoordinatorProcess::LetReplacedOnesWrite() {
  for (Replaced& old : std::exchange(replaced_, {})) {
    timeline_.After(random_.Between(nanoseconds(0), seconds(2)), [this, old = std::move(old)] {
      std::vector<v1::StateRow> rows = {Row(kBatch, "stale")};
      for (int i = 1; i < kStaleRows; ++i) rows.push_back(Row(fmt::format("stale{}", i), "stale"));
      ++stale_commits_;
      if (old.store->Commit(old.term, rows).ok()) observer_.OnStaleCommit(old.term, term_);
    });
  }
}

}  // namespace meshrun::coordinator::simulation
