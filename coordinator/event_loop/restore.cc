// How the loop comes to its state: at a start, and after a roll call.
#include <algorithm>
#include <utility>

#include "coordinator/event_loop/event_loop.h"
#include "core/ids.h"
#include "core/log.h"
#include "core/proto_time.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

constexpr int kClusterIdLength = 20;

}  // namespace

v1::StateEvent EventLoop::RestoreEvent(std::vector<v1::StateRow> rows) const {
  v1::StateEvent event;
  v1::RestoreEvent& restore = *event.mutable_restore();
  restore.set_term(term_);
  restore.set_cluster_id(cluster_id_);
  *restore.mutable_lease() = ToProtoDuration(options_.lease);
  *restore.mutable_heartbeat_interval() = ToProtoDuration(options_.heartbeat);
  *restore.mutable_retention() = options_.retention;
  *restore.mutable_quarantine() = options_.quarantine;
  {
    MutexLock lock(policy_mu_);
    *restore.mutable_policy() = policy_;
  }
  if (options_.audit_file != nullptr) restore.set_audit_file_has(audit_file_had_);
  // Moved: the rows can be most of what there is memory for.
  restore.mutable_rows()->Reserve(static_cast<int>(rows.size()));
  for (v1::StateRow& row : rows) *restore.add_rows() = std::move(row);
  rows = {};
  return Stamped(std::move(event));
}

absl::Status EventLoop::FindClusterId() {
  MESHRUN_ASSIGN_OR_RETURN(const std::vector<v1::StateRow> rows, options_.store.Load());
  v1::StateRow row;
  row.set_table(v1::STATE_TABLE_META);
  row.set_key("cluster_id");
  for (const v1::StateRow& known : rows) {
    if (known.table() == row.table() && known.key() == row.key()) cluster_id_ = known.value();
  }
  if (!cluster_id_.empty()) return absl::OkStatus();
  RandomIdSource ids;
  cluster_id_ = ids.Suffix(kClusterIdLength);
  row.set_value(cluster_id_);
  return options_.store.Commit(term_, {row});
}

absl::Status EventLoop::Restore() {
  MESHRUN_ASSIGN_OR_RETURN(std::vector<v1::StateRow> rows, options_.store.Load());
  if (restored_) {
    // A row that cannot be read is told before the roll call writes beside it.
    StateMachine unused;
    Batch whole;
    whole.push_back(RestoreEvent(rows));
    MESHRUN_RETURN_IF_ERROR(StepBatch(unused, whole).damage);
  }
  if (options_.audit_file != nullptr && !std::exchange(audit_file_is_read_, true)) {
    options_.audit_file->CatchUp(rows);
    audit_file_had_ = options_.audit_file->last();
  }
  Batch batch;
  batch.push_back(RestoreEvent(std::move(rows)));
  batch.back().mutable_restore()->set_restored(restored_);
  Actions actions = StepBatch(machine_, batch);
  MESHRUN_RETURN_IF_ERROR(actions.damage);
  MESHRUN_RETURN_IF_ERROR(options_.store.Commit(term_, actions.rows));
  if (!machine_.outdated().empty()) log::Error(machine_.outdated());
  record_ << std::exchange(unrecorded_, {}) << std::flush;
  return absl::OkStatus();
}

void EventLoop::Begin(const BeginAnew& anew) {
  // It was written with the rows.
  term_ = anew.term;
  restored_ = false;
  if (const absl::Status status = Restore(); !status.ok()) {
    EnterReadOnly(Mode::kFailed, std::string(status.message()));
    return;
  }
  log::Info(anew.message, {{"term", term_.load()}});
  options_.recipients.EndSessions(absl::UnavailableError(
      "the roll call is over: say Hello again to the coordinator's next term"));
  v1::StateEvent event;
  event.mutable_notice()->set_kind(anew.kind);
  event.mutable_notice()->set_message(anew.message);
  PostEnd(std::move(event));
}

}  // namespace meshrun::coordinator
