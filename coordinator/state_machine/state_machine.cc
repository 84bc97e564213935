#include "coordinator/state_machine/state_machine.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/state_machine/callers.h"
#include "coordinator/state_store/meta_keys.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// The shell sends an event at least once a second: a longer pause means that the coordinator itself
// stood still, and received nothing meanwhile.
constexpr std::chrono::seconds kStandstill(2);

}  // namespace

Actions StateMachine::Step(const v1::StateEvent& event) {
  if (event.event_case() == v1::StateEvent::kRestore) {
    if (event.restore().part() == 0) {
      parts_ = std::make_unique<Parts>();
      roll_call_.reset();
      outdated_.clear();
      if (event.restore().restored()) roll_call_.emplace(event.restore());
    }
    if (roll_call_.has_value()) {
      roll_call_->Restore(event.restore(), SteadyNanos(event.now_nanos()));
      // Whose node is whose.
      for (const v1::StateRow& row : event.restore().rows()) {
        v1::NodeRecord record;
        if (row.table() == v1::STATE_TABLE_NODES && record.ParseFromString(row.value()))
          parts_->nodes.Restore(std::move(record));
      }
    }
  }
  if (roll_call_.has_value()) {
    absl::Status allowed = CheckCaller(event, parts_->nodes, parts_->jobs);
    return roll_call_->Step(event, std::move(allowed));
  }
  if (!outdated_.empty()) return Refuse(event);
  Context& context = parts_->context;
  const SteadyNanos previous = std::exchange(context.now, SteadyNanos(event.now_nanos()));
  context.wall = FromProto(event.wall());
  context.random = event.random();
  context.user = event.caller().user();
  context.own_private_only = event.caller().own_private_only();
  if (event.event_case() == v1::StateEvent::kRestore) {
    Restore(event.restore());
    if (event.restore().more()) return context.Take(/*end_of_batch=*/false);
  } else {
    ExpireDue(previous);
    context.Await(event.call_id(), event.session_message().session_id());
    context.actor = context.user;
    Dispatch(event);
    context.actor.clear();
    Record(event);
  }
  if (event.end_of_batch()) {
    parts_->generations.ProceedAll();
    ForgetNodes();
    parts_->certificates.Tell();
    parts_->dependencies.Resolve();
    bool looked = parts_->queue.PlaceJobs();
    // Jobs that made room without having run have given their nodes back at once.
    if (context.placement_due) looked |= parts_->queue.PlaceJobs();
    looked |= parts_->growth.PopDue();
    if (looked && !parts_->queue.WaitsForNodes()) parts_->growth.GrowAll();
    AnswerSubmitted();
    parts_->peers.TellAll();
    parts_->nodes.WriteChanged();
    parts_->jobs.WriteChanged();
    outdated_ = parts_->outdated;
  }
  return context.Take(event.end_of_batch());
}

void StateMachine::Record(const v1::StateEvent& event) {
  const auto outcome = parts_->context.TakeOutcome();
  std::string made;
  if (event.has_submit_job() && !outcome.has_value()) {
    const Job& job = *parts_->jobs.Find(parts_->submitted.back().second);
    made = job.view.array_id().empty() ? job.id() : job.view.array_id();
  }
  parts_->audit.OnStepped(event, outcome, made);
}

std::optional<SteadyNanos> StateMachine::NextDeadline() const {
  if (roll_call_.has_value()) return roll_call_->deadline();
  if (!outdated_.empty()) return std::nullopt;
  std::optional<SteadyNanos> next;
  for (const auto& deadline :
       {parts_->nodes.NextDeadline(), parts_->jobs.NextDeadline(), parts_->store.NextDeadline(),
        parts_->blocked.NextDeadline(), parts_->peers.NextDeadline(), parts_->hangs.NextDeadline(),
        parts_->departures.NextDeadline(), parts_->inquiries.NextDeadline(),
        parts_->queue.NextDeadline(), parts_->jobs.NextTelling(), parts_->growth.NextDeadline()}) {
    if (deadline.has_value() && (!next.has_value() || *deadline < *next)) next = deadline;
  }
  return next;
}

void StateMachine::Restore(const v1::RestoreEvent& restore) {
  Context& context = parts_->context;
  if (restore.part() == 0) RestoreOptions(restore);
  for (const v1::StateRow& row : restore.rows()) RestoreRow(row);
  if (restore.more()) return;
  parts_->audit.ContinueAfter(restore.audit_file_has());
  parts_->jobs.OnRestored();
  context.Record("CoordinatorStarted", "", "", fmt::format("term {}", context.term));
  // Reading may have taken longer than a lease.
  parts_->nodes.PostponeLeases();
  parts_->jobs.PostponeDeadlines();
  parts_->generations.OnRestored();
  parts_->queue.OnRestored();
  parts_->dependencies.OnRestored();
}

void StateMachine::RestoreOptions(const v1::RestoreEvent& restore) {
  Context& context = parts_->context;
  context.term = restore.term();
  context.cluster_id = restore.cluster_id();
  context.lease = FromProto(restore.lease());
  context.heartbeat = FromProto(restore.heartbeat_interval());
  context.started_at = context.wall;
  context.quarantine = restore.quarantine();
  context.policy = restore.policy();
  context.retention = restore.retention();
  if (context.retention.ended_jobs() == 0) context.retention.set_ended_jobs(1000);
  if (context.retention.usage_records() == 0) context.retention.set_usage_records(100'000);
  if (context.retention.job_bytes() == 0) context.retention.set_job_bytes(KeptJobs::kMost);
  if (context.retention.audit_records() == 0) context.retention.set_audit_records(100'000);
  if (!context.retention.has_ended_job_least_age()) {
    *context.retention.mutable_ended_job_least_age() = ToProtoDuration(std::chrono::minutes(10));
  }
  if (!context.retention.has_lost_node_age()) {
    *context.retention.mutable_lost_node_age() = ToProtoDuration(std::chrono::hours(24));
  }
}

void StateMachine::RestoreRow(const v1::StateRow& row) {
  Context& context = parts_->context;
  switch (row.table()) {
    case v1::STATE_TABLE_META:
      if (row.key() == kOutdatedKey) parts_->outdated = row.value();
      break;
    case v1::STATE_TABLE_NODES: {
      v1::NodeRecord record;
      if (!record.ParseFromString(row.value()) || record.node().node_id() != row.key())
        return context.Damaged(row);
      parts_->nodes.Restore(std::move(record));
      break;
    }
    case v1::STATE_TABLE_JOBS:
    case v1::STATE_TABLE_WORLDS:
    case v1::STATE_TABLE_MEMBERS:
    case v1::STATE_TABLE_USAGE:
      parts_->jobs.Restore(row);
      break;
    case v1::STATE_TABLE_VALUES:
    case v1::STATE_TABLE_REQUESTS:
      parts_->store.Restore(row);
      break;
    case v1::STATE_TABLE_EVENTS: {
      v1::ClusterEvent event;
      if (!event.ParseFromString(row.value()) || KeyNumber(event.sequence()) != row.key())
        return context.Damaged(row);
      context.RestoreEvent(std::move(event));
      break;
    }
    case v1::STATE_TABLE_AUDIT:
      parts_->audit.Restore(row);
      break;
    default:
      // The store's own.
      break;
  }
}

void StateMachine::ExpireDue(SteadyNanos previous) {
  Context& context = parts_->context;
  if (context.now > previous + kStandstill) {
    context.Warn(fmt::format("the coordinator stood still for {}: leases are prolonged",
                             FormatDuration(context.now - previous)));
    parts_->nodes.PostponeLeases();
    parts_->jobs.PostponeDeadlines();
    parts_->departures.Postpone();
    parts_->hangs.Postpone();
  }
  const auto due = NextDeadline();
  if (!due.has_value() || *due > context.now) return;
  while (Node* node = parts_->nodes.ExpireNext()) {
    parts_->generations.OnNodeLost(
        *node, fmt::format("{} is lost: {}", node->record.name(), node->lost_because),
        /*stopped=*/false);
  }
  while (Node* node = parts_->nodes.NextFenced()) parts_->departures.OnNodeFenced(*node);
  while (Job* job = parts_->jobs.PopDue()) parts_->generations.OnDeadline(*job);
  parts_->departures.ExpireDue();
  parts_->queue.ExpireDue();
  parts_->store.ExpireDue();
  parts_->blocked.ExpireDue();
  while (const auto hung = parts_->hangs.NextHung()) {
    parts_->generations.OnHung(*hung->job, hung->rank, hung->message);
  }
  parts_->inquiries.ExpireDue();
}

void StateMachine::Dispatch(const v1::StateEvent& event) {
  const uint64_t call = event.call_id();
  if (absl::Status status = CheckCaller(event, parts_->nodes, parts_->jobs); !status.ok()) {
    if (event.has_session_message()) {
      parts_->context.Close(event.session_message().session_id(), std::move(status));
    } else {
      parts_->context.Reply(call, std::move(status));
    }
    return;
  }
  // Without a default: the compiler names an event that is not here.
  switch (event.event_case()) {
    case v1::StateEvent::kSessionMessage:
      OnSessionMessage(event.session_message(), event.caller());
      break;
    case v1::StateEvent::kSessionClosed:
      parts_->nodes.Disconnect(event.session_closed().session_id());
      break;
    case v1::StateEvent::kCallCancelled:
      parts_->store.CancelCall(event.call_cancelled().call_id());
      parts_->jobs.RemoveWatcher(event.call_cancelled().call_id());
      parts_->inquiries.CancelCall(event.call_cancelled().call_id());
      break;
    case v1::StateEvent::kSubmitJob:
      Submit(call, event.submit_job());
      break;
    case v1::StateEvent::kCancelJob:
      Cancel(call, event.cancel_job());
      break;
    case v1::StateEvent::kGetJob:
      GetJob(call, event.get_job());
      break;
    case v1::StateEvent::kListJobs:
      ListJobs(call, event.list_jobs());
      break;
    case v1::StateEvent::kWatchJob:
      WatchJob(call, event.watch_job());
      break;
    case v1::StateEvent::kUpdateJob:
      parts_->queue.UpdateJob(call, event.update_job());
      break;
    case v1::StateEvent::kSignalJob:
      parts_->queue.SignalJob(call, event.signal_job());
      break;
    case v1::StateEvent::kSetPolicy:
      SetPolicy(event.set_policy());
      break;
    case v1::StateEvent::kDescribeLimits:
      DescribeLimits(call, event.describe_limits());
      break;
    case v1::StateEvent::kListUsage:
      ListUsage(call, event.list_usage());
      break;
    case v1::StateEvent::kListAudit:
      ListAudit(call, event.list_audit());
      break;
    case v1::StateEvent::kDrainNode:
      parts_->queue.DrainNode(call, event.drain_node());
      break;
    case v1::StateEvent::kUndrainNode:
      parts_->queue.UndrainNode(call, event.undrain_node());
      break;
    case v1::StateEvent::kRemoveNode:
      parts_->queue.RemoveNode(call, event.remove_node());
      break;
    case v1::StateEvent::kListNodes:
      ListNodes(call, event.list_nodes());
      break;
    case v1::StateEvent::kDescribeCluster:
      DescribeCluster(call, event.describe_cluster());
      break;
    case v1::StateEvent::kListEvents:
      ListEvents(call, event.list_events());
      break;
    case v1::StateEvent::kReadLogs:
      ReadLogs(call, event.read_logs());
      break;
    case v1::StateEvent::kReadPictures:
      ReadPictures(call, event.read_pictures());
      break;
    case v1::StateEvent::kGetFlightRecords:
      parts_->inquiries.Collect(call, event.get_flight_records());
      break;
    case v1::StateEvent::kUploadFlightRecord:
      parts_->inquiries.Upload(call, event.upload_flight_record());
      break;
    case v1::StateEvent::kGetStacks:
      parts_->inquiries.Collect(call, event.get_stacks());
      break;
    case v1::StateEvent::kUploadStack:
      if (event.upload_stack().request() == Hangs::kRequest) {
        parts_->hangs.Upload(call, event.upload_stack());
      } else {
        parts_->inquiries.Upload(call, event.upload_stack());
      }
      break;
    case v1::StateEvent::kSetValues:
      parts_->store.Set(call, event.set_values());
      break;
    case v1::StateEvent::kGetValues:
      parts_->store.Get(call, event.get_values());
      break;
    case v1::StateEvent::kWaitKeys:
      parts_->store.WaitForKeys(call, event.wait_keys());
      break;
    case v1::StateEvent::kAddValue:
      parts_->store.AddTo(call, event.add_value());
      break;
    case v1::StateEvent::kCompareSetValue:
      parts_->store.CompareSet(call, event.compare_set_value());
      break;
    case v1::StateEvent::kAppendValue:
      parts_->store.Append(call, event.append_value());
      break;
    case v1::StateEvent::kDeleteKey:
      parts_->store.Delete(call, event.delete_key());
      break;
    case v1::StateEvent::kCountKeys:
      parts_->store.CountKeys(call, event.count_keys());
      break;
    case v1::StateEvent::kEnterBarrier:
      parts_->store.Enter(call, event.enter_barrier());
      break;
    case v1::StateEvent::kPublishUniqueId:
      parts_->store.Publish(call, event.publish_unique_id());
      break;
    case v1::StateEvent::kAwaitUniqueId:
      parts_->store.AwaitId(call, event.await_unique_id());
      break;
    case v1::StateEvent::kRegisterGroup:
      parts_->store.Register(call, event.register_group());
      break;
    case v1::StateEvent::kGetWorld:
      parts_->store.World(call, event.get_world());
      break;
    case v1::StateEvent::kCommitCheckpoint:
      parts_->checkpoints.Commit(call, event.commit_checkpoint());
      break;
    case v1::StateEvent::kGetCheckpoint:
      parts_->checkpoints.Get(call, event.get_checkpoint());
      break;
    case v1::StateEvent::kReportFinished:
      parts_->generations.OnReportFinished(call, event.report_finished());
      break;
    case v1::StateEvent::kGetFinished:
      parts_->generations.OnGetFinished(call, event.get_finished());
      break;
    case v1::StateEvent::kNotice:
      parts_->context.Record(event.notice().kind(), "", "", event.notice().message());
      break;
    case v1::StateEvent::kOutsideCall:  // Record() is all
    case v1::StateEvent::kTick:
    case v1::StateEvent::kRestore:
    case v1::StateEvent::EVENT_NOT_SET:
      break;
  }
}

void StateMachine::ForgetNodes() {
  while (Node* node = parts_->nodes.NextForgotten()) {
    const SteadyNanos age = FromProto(parts_->context.retention.lost_node_age());
    parts_->departures.OnNodeForgotten(*node);
    parts_->nodes.Remove(*node, "lost for " + FormatDuration(age));
  }
}

}  // namespace meshrun::coordinator
