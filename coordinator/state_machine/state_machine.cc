#include "coordinator/state_machine/state_machine.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/state_machine/callers.h"
#include "core/job_spec.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// The shell sends an event at least once a second: a longer pause means that the coordinator itself
// stood still, and received nothing meanwhile.
constexpr std::chrono::seconds kStandstill(2);

absl::Status TakenOver(uint64_t own_term, const std::string& worker, uint64_t its_term) {
  return absl::FailedPreconditionError(
      fmt::format("this coordinator is in term {}, and {} knows term {}: another one has taken "
                  "over",
                  own_term, worker, its_term));
}

}  // namespace

Actions StateMachine::Step(const v1::StateEvent& event) {
  if (event.event_case() == v1::StateEvent::kRestore) parts_ = std::make_unique<Parts>();
  Context& context = parts_->context;
  const SteadyNanos previous = std::exchange(context.now, SteadyNanos(event.now_nanos()));
  context.wall = FromProto(event.wall());
  context.random = event.random();
  context.user = event.caller().user();
  if (event.event_case() == v1::StateEvent::kRestore) {
    Restore(event.restore());
  } else {
    ExpireDue(previous);
    Dispatch(event);
  }
  if (event.end_of_batch()) {
    parts_->generations.ProceedAll();
    if (context.placement_due) {
      PlaceJobs();
      parts_->generations.GrowAll();
    }
    parts_->blocked.TellAll();
    parts_->nodes.WriteChanged();
    parts_->jobs.WriteChanged();
  }
  return context.Take(event.end_of_batch());
}

std::optional<SteadyNanos> StateMachine::NextDeadline() const {
  std::optional<SteadyNanos> next;
  for (const auto& deadline :
       {parts_->nodes.NextDeadline(), parts_->jobs.NextDeadline(), parts_->store.NextDeadline(),
        parts_->blocked.NextDeadline(), parts_->hangs.NextDeadline(),
        parts_->flight_records.NextDeadline()}) {
    if (deadline.has_value() && (!next.has_value() || *deadline < *next)) next = deadline;
  }
  return next;
}

void StateMachine::Restore(const v1::RestoreEvent& restore) {
  Context& context = parts_->context;
  context.term = restore.term();
  context.cluster_id = restore.cluster_id();
  context.lease = FromProto(restore.lease());
  context.heartbeat = FromProto(restore.heartbeat_interval());
  context.started_at = context.wall;
  const std::vector<v1::StateRow> rows(restore.rows().begin(), restore.rows().end());
  for (const v1::StateRow& row : rows) {
    if (row.table() == v1::STATE_TABLE_NODES) {
      v1::NodeRecord record;
      if (!record.ParseFromString(row.value()) || record.node().node_id() != row.key()) {
        context.Damaged(row);
        continue;
      }
      parts_->nodes.Restore(std::move(record));
    } else if (row.table() == v1::STATE_TABLE_EVENTS) {
      v1::ClusterEvent event;
      if (!event.ParseFromString(row.value()) || KeyNumber(event.sequence()) != row.key()) {
        context.Damaged(row);
        continue;
      }
      context.RestoreEvent(std::move(event));
    }
  }
  parts_->jobs.Restore(rows);
  parts_->store.Restore(rows);
  context.Record("CoordinatorStarted", "", "", fmt::format("term {}", context.term));
  parts_->generations.OnRestored();
}

void StateMachine::ExpireDue(SteadyNanos previous) {
  Context& context = parts_->context;
  if (context.now > previous + kStandstill) {
    context.Warn(fmt::format("the coordinator stood still for {}: leases are prolonged",
                             FormatDuration(context.now - previous)));
    parts_->nodes.PostponeLeases();
    parts_->hangs.Postpone();
  }
  const auto due = NextDeadline();
  if (!due.has_value() || *due > context.now) return;
  while (Node* node = parts_->nodes.ExpireNext()) {
    parts_->generations.OnNodeLost(*node,
                                   fmt::format("{} is lost: silent for its lease of {}",
                                               node->record.name(), FormatDuration(context.lease)),
                                   /*stopped=*/false);
  }
  while (Node* node = parts_->nodes.NextFenced()) parts_->generations.OnNodeFenced(*node);
  while (Job* job = parts_->jobs.PopDue()) parts_->generations.OnDeadline(*job);
  parts_->store.ExpireDue();
  parts_->blocked.ExpireDue();
  while (const auto hung = parts_->hangs.NextHung()) {
    parts_->generations.OnHung(*hung->job, hung->rank, hung->message);
  }
  parts_->flight_records.ExpireDue();
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
  switch (event.event_case()) {
    case v1::StateEvent::kSessionMessage:
      OnSessionMessage(event.session_message());
      break;
    case v1::StateEvent::kSessionClosed:
      parts_->nodes.Disconnect(event.session_closed().session_id());
      break;
    case v1::StateEvent::kCallCancelled:
      parts_->store.CancelCall(event.call_cancelled().call_id());
      parts_->jobs.RemoveWatcher(event.call_cancelled().call_id());
      parts_->flight_records.CancelCall(event.call_cancelled().call_id());
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
    case v1::StateEvent::kListNodes:
      ListNodes(call);
      break;
    case v1::StateEvent::kDescribeCluster:
      DescribeCluster(call, event.describe_cluster());
      break;
    case v1::StateEvent::kReadLogs:
      ReadLogs(call, event.read_logs());
      break;
    case v1::StateEvent::kGetFlightRecords:
      parts_->flight_records.Collect(call, event.get_flight_records());
      break;
    case v1::StateEvent::kUploadFlightRecord:
      parts_->flight_records.Upload(call, event.upload_flight_record());
      break;
    case v1::StateEvent::kCommitCheckpoint:
      parts_->checkpoints.Commit(call, event.commit_checkpoint());
      break;
    case v1::StateEvent::kGetCheckpoint:
      parts_->checkpoints.Get(call, event.get_checkpoint());
      break;
    case v1::StateEvent::kNotice:
      parts_->context.Record(event.notice().kind(), "", "", event.notice().message());
      break;
    case v1::StateEvent::kTick:
    case v1::StateEvent::kRestore:
    case v1::StateEvent::EVENT_NOT_SET:
      break;
    default:
      parts_->store.Step(event);
      break;
  }
}

void StateMachine::OnHello(uint64_t session_id, const v1::OpenSessionRequest& message) {
  Context& context = parts_->context;
  if (message.fence().term() > context.term) {
    context.Close(session_id,
                  TakenOver(context.term, message.hello().name(), message.fence().term()));
    return;
  }
  if (absl::Status status = CheckCluster(context.cluster_id, message.hello()); !status.ok()) {
    context.Close(session_id, std::move(status));
    return;
  }
  auto node = parts_->nodes.Register(session_id, message.fence().incarnation(), message.hello());
  if (!node.ok()) {
    context.Close(session_id, node.status());
    return;
  }
  v1::OpenSessionResponse response;
  response.mutable_fence()->set_incarnation(message.fence().incarnation());
  *response.mutable_welcome()->mutable_lease() = ToProtoDuration(context.lease);
  *response.mutable_welcome()->mutable_heartbeat_interval() = ToProtoDuration(context.heartbeat);
  response.mutable_welcome()->set_cluster_id(context.cluster_id);
  context.Send(session_id, std::move(response));
  parts_->generations.OnNodeReturned(**node, message.hello());
}

void StateMachine::OnSessionMessage(const v1::SessionMessage& event) {
  Context& context = parts_->context;
  Generations& generations = parts_->generations;
  const v1::OpenSessionRequest& message = event.message();
  const v1::Fence& fence = message.fence();
  if (message.has_hello()) {
    OnHello(event.session_id(), message);
    return;
  }
  Node* node = parts_->nodes.Renew(event.session_id());
  if (node == nullptr) {
    context.Close(event.session_id(),
                  absl::InvalidArgumentError("the first message of a session is Hello"));
    return;
  }
  if (fence.term() > context.term) {
    context.Close(event.session_id(), TakenOver(context.term, node->record.name(), fence.term()));
    return;
  }
  if (fence.term() < context.term || fence.incarnation() != node->record.incarnation()) {
    context.Warn(
        fmt::format("message {} of {} ignored: it has term {} incarnation {}, and the current ones "
                    "are {} and {}",
                    static_cast<int>(message.message_case()), node->record.name(), fence.term(),
                    fence.incarnation(), context.term, node->record.incarnation()));
    return;
  }
  switch (message.message_case()) {
    case v1::OpenSessionRequest::kHeartbeat: {
      v1::OpenSessionResponse reply;
      reply.mutable_fence()->set_incarnation(fence.incarnation());
      reply.mutable_heartbeat_reply()->set_sequence(message.heartbeat().sequence());
      context.Send(event.session_id(), std::move(reply));
      if (message.heartbeat().draining()) parts_->nodes.Drain(*node);
      break;
    }
    case v1::OpenSessionRequest::kPrepareResult:
      generations.OnPrepareResult(*node, fence, message.prepare_result());
      break;
    case v1::OpenSessionRequest::kRanksStarted:
      generations.OnRanksStarted(*node, fence, message.ranks_started());
      break;
    case v1::OpenSessionRequest::kRanksJoined:
      generations.OnRanksJoined(*node, fence, message.ranks_joined());
      break;
    case v1::OpenSessionRequest::kRanksQuiesced:
      generations.OnRanksQuiesced(*node, fence, message.ranks_quiesced());
      break;
    case v1::OpenSessionRequest::kRankExit:
      generations.OnRankExit(*node, fence, message.rank_exit());
      break;
    case v1::OpenSessionRequest::kGenerationEnded:
      generations.OnEnded(*node, fence);
      break;
    case v1::OpenSessionRequest::kProgressReport:
      if (const Job* job = generations.OnProgress(*node, fence, message.progress_report())) {
        parts_->hangs.OnProgress(*job);
      }
      break;
    case v1::OpenSessionRequest::kWaitReport:
      generations.OnWaitReport(*node, fence, message.wait_report());
      break;
    case v1::OpenSessionRequest::kWaitWithdrawn:
      generations.OnWaitWithdrawn(*node, fence, message.wait_withdrawn());
      break;
    case v1::OpenSessionRequest::kGoodbye:
      context.Record("NodeLeft", "", node->id(), node->record.name() + " said goodbye");
      node->draining = true;
      parts_->nodes.Lose(*node, absl::OkStatus());
      generations.OnNodeLost(*node, node->record.name() + " left: its worker was stopped",
                             /*stopped=*/true);
      break;
    case v1::OpenSessionRequest::kHello:
    case v1::OpenSessionRequest::MESSAGE_NOT_SET:
      break;
  }
}

void StateMachine::PlaceJobs() {
  Context& context = parts_->context;
  context.placement_due = false;
  // A job that waits for resources of running jobs is not overtaken, else a large job would never
  // start. A job that could not run here even alone holds up no other job.
  const Job* blocking = nullptr;
  for (Job* job : parts_->jobs.Queue()) {
    if (parts_->nodes.recovering() > 0) {
      parts_->jobs.SetState(
          *job, job->view.state(),
          fmt::format("the coordinator has restarted and waits up to {} for {} of {} "
                      "nodes to report",
                      FormatDuration(context.lease), parts_->nodes.recovering(),
                      parts_->nodes.all().size()));
      continue;
    }
    if (blocking != nullptr) {
      parts_->jobs.SetState(
          *job, job->view.state(),
          fmt::format("behind job {}, which {}", blocking->id(), blocking->view.reason()));
      continue;
    }
    std::string waits;
    const std::vector<const v1::Node*> candidates = parts_->generations.Candidates(*job, &waits);
    PlacementRequest request{job->view.spec(), {}, {}};
    for (const v1::Node* node : candidates) {
      if (!job->avoided_nodes.contains(node->node_id())) request.nodes.push_back(node);
    }
    for (const Member& member : job->members) request.previous.push_back(member.node_id);
    PlacementResult result = Place(request);
    if (!result.placement.has_value() && !job->avoided_nodes.empty()) {
      // No other node can take the job, and the reason why this one could not prepare may be gone.
      request.nodes = candidates;
      result = Place(request);
    }
    if (result.placement.has_value()) {
      parts_->generations.Begin(*job, *result.placement);
      continue;
    }
    if (!waits.empty()) {
      request.nodes = parts_->nodes.Present(/*healthy_only=*/true);
      PlacementResult later = Place(request);
      result.reason = later.placement.has_value() ? std::move(waits) : std::move(later.reason);
    }
    if (const size_t draining = parts_->nodes.draining(); draining > 0) {
      result.reason += draining == 1 ? "; 1 that is draining does not count"
                                     : fmt::format("; {} that are draining do not count", draining);
    }
    parts_->jobs.SetState(*job, job->view.state(), std::move(result.reason));
    request.ignore_usage = true;
    if (Place(request).placement.has_value()) blocking = job;
  }
  context.placement_due = false;
}

void StateMachine::Submit(uint64_t call_id, const v1::SubmitJobRequest& request) {
  Context& context = parts_->context;
  v1::SubmitJobResponse response;
  if (Job* known =
          request.request_id().empty() ? nullptr : parts_->jobs.FindRequest(request.request_id());
      known != nullptr) {
    *response.mutable_job() = known->view;
    context.Reply(call_id, std::move(response));
    return;
  }
  v1::JobSpec spec = request.spec();
  if (absl::Status status = NormalizeJobSpec(spec); !status.ok()) {
    context.Reply(call_id, status);
    return;
  }
  const std::vector<const v1::Node*> present = parts_->nodes.Present(/*healthy_only=*/false);
  if (!spec.shipped_job().empty() && !present.empty()) {
    std::set<std::string> offered;
    for (const v1::Node* node : present) {
      offered.insert(node->shipped_jobs().begin(), node->shipped_jobs().end());
    }
    if (!offered.contains(spec.shipped_job())) {
      std::string names;
      for (const std::string& name : offered) names += (names.empty() ? "" : ", ") + name;
      context.Reply(call_id, absl::NotFoundError(fmt::format(
                                 "no worker offers the shipped job '{}'; {}", spec.shipped_job(),
                                 names.empty() ? "none offers any" : "offered are: " + names)));
      return;
    }
  }
  if (request.must_fit()) {
    const PlacementResult ever = Place({spec, present, {}, /*ignore_usage=*/true});
    if (!ever.placement.has_value()) {
      context.Reply(call_id,
                    absl::FailedPreconditionError("the job could never run here: " + ever.reason));
      return;
    }
  }
  Job& job = parts_->jobs.Add(std::move(spec), request.request_id());
  // Placed now and not at the end of the batch: the answer says whether the job waits, and why.
  PlaceJobs();
  *response.mutable_job() = job.view;
  context.Reply(call_id, std::move(response));
}

void StateMachine::Cancel(uint64_t call_id, const v1::CancelJobRequest& request) {
  Context& context = parts_->context;
  auto job = parts_->jobs.Lookup(request.job_id());
  if (!job.ok()) {
    context.Reply(call_id, job.status());
    return;
  }
  parts_->generations.Cancel(**job, request.now(), request.reason());
  v1::CancelJobResponse response;
  *response.mutable_job() = (*job)->view;
  context.Reply(call_id, std::move(response));
}

}  // namespace meshrun::coordinator
