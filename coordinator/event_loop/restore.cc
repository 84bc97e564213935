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
// What a row takes beside its key and value, about.
constexpr size_t kRowBytes = 128;

}  // namespace

v1::StateEvent EventLoop::RestoreEvent() const {
  v1::StateEvent event;
  v1::RestoreEvent& restore = *event.mutable_restore();
  restore.set_term(term_);
  restore.set_cluster_id(cluster_id_);
  *restore.mutable_lease() = ToProtoDuration(options_.lease);
  *restore.mutable_heartbeat_interval() = ToProtoDuration(options_.heartbeat);
  *restore.mutable_retention() = options_.retention;
  *restore.mutable_quarantine() = options_.quarantine;
  MutexLock lock(policy_mu_);
  *restore.mutable_policy() = policy_;
  return event;
}

absl::StatusOr<EventLoop::RestoredState> EventLoop::ReadState(bool is_copy,
                                                              const OnPart& on_part) const {
  RestoredState out;
  out.machine = std::make_unique<StateMachine>();
  v1::StateEvent event = RestoreEvent();
  v1::RestoreEvent& restore = *event.mutable_restore();
  restore.set_restored(is_copy);
  if (options_.audit_file != nullptr) restore.set_audit_file_has(audit_file_had_);
  const auto step = [&](bool more) {
    restore.set_more(more);
    event.set_end_of_batch(!more);
    event = Stamped(std::move(event));
    if (on_part != nullptr) on_part(event);
    Actions actions = out.machine->Step(event);
    out.now_nanos = event.now_nanos();
    out.actions.damage.Update(actions.damage);
    out.actions.rows = std::move(actions.rows);
    out.actions.list.insert(out.actions.list.end(), std::make_move_iterator(actions.list.begin()),
                            std::make_move_iterator(actions.list.end()));
    restore.clear_rows();
    restore.set_part(restore.part() + 1);
  };
  size_t bytes = 0;
  MESHRUN_RETURN_IF_ERROR(options_.store.ForEachRow([&](v1::StateRow row) {
    bytes += kRowBytes + row.key().size() + row.value().size();
    *restore.add_rows() = std::move(row);
    if (bytes >= options_.part_bytes) {
      step(/*more=*/true);
      bytes = 0;
    }
    return out.actions.damage.ok();
  }));
  if (out.actions.damage.ok()) step(/*more=*/false);
  MESHRUN_RETURN_IF_ERROR(out.actions.damage);
  return out;
}

absl::Status EventLoop::FindClusterId() {
  v1::StateRow row;
  row.set_table(v1::STATE_TABLE_META);
  row.set_key("cluster_id");
  MESHRUN_RETURN_IF_ERROR(options_.store.ForEachRowOf(row.table(), [&](const v1::StateRow& known) {
    if (known.key() == row.key()) cluster_id_ = known.value();
    return true;
  }));
  if (!cluster_id_.empty()) return absl::OkStatus();
  RandomIdSource ids;
  cluster_id_ = ids.Suffix(kClusterIdLength);
  row.set_value(cluster_id_);
  return options_.store.Commit(term_, {row});
}

absl::Status EventLoop::Restore() {
  // A row that cannot be read is told before the roll call writes beside it.
  if (restored_) MESHRUN_RETURN_IF_ERROR(ReadState(/*is_copy=*/false, nullptr).status());
  const bool catches_up =
      options_.audit_file != nullptr && !std::exchange(audit_file_is_read_, true);
  MESHRUN_ASSIGN_OR_RETURN(RestoredState state, ReadState(restored_, [&](v1::StateEvent& part) {
                             if (catches_up) {
                               options_.audit_file->CatchUp(part.restore().rows());
                               audit_file_had_ = options_.audit_file->last();
                               part.mutable_restore()->set_audit_file_has(audit_file_had_);
                             }
                             AddTo(&unrecorded_, part);
                           }));
  machine_ = std::move(state.machine);
  MESHRUN_RETURN_IF_ERROR(options_.store.Commit(term_, state.actions.rows));
  if (!machine_->outdated().empty()) log::Error(machine_->outdated());
  record_ << std::exchange(unrecorded_, {}) << std::flush;
  return absl::OkStatus();
}

bool EventLoop::Begin(const BeginAnew& anew) {
  ending_.reset();
  // It was written with the rows.
  term_ = anew.term;
  restored_ = false;
  if (const absl::Status status = Restore(); !status.ok()) {
    EnterReadOnly(Mode::kFailed, std::string(status.message()));
    return false;
  }
  log::Info(anew.message, {{"term", term_.load()}});
  options_.recipients.EndSessions(absl::UnavailableError(
      "the roll call is over: say Hello again to the coordinator's next term"));
  v1::StateEvent event;
  event.mutable_notice()->set_kind(anew.kind);
  event.mutable_notice()->set_message(anew.message);
  PostEnd(std::move(event));
  return true;
}

}  // namespace meshrun::coordinator
