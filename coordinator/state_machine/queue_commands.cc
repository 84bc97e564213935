// What people ask of jobs and of nodes: hold, release, priorities, signals, drain, undrain, remove.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_machine/queue.h"
#include "core/job_spec.h"
#include "core/mesh_messages.h"
#include "core/proto_time.h"
#include "core/signal_name.h"
#include "core/text.h"

namespace meshrun::coordinator {
void Queue::UpdateJob(uint64_t call_id, const v1::UpdateJobRequest& request) {
  const auto named = jobs_.Named(request.job_id());
  if (!named.ok()) return context_.Reply(call_id, named.status());
  if (!request.has_hold() && !request.has_priority()) {
    return context_.Reply(
        call_id, absl::InvalidArgumentError("nothing to change: set hold, or priority, or both"));
  }
  const auto active =
      std::find_if(named->begin(), named->end(), [](const Job* job) { return !job->ended(); });
  if (active == named->end()) {
    const Job& job = *named->front();
    return context_.Reply(
        call_id, absl::FailedPreconditionError(fmt::format("job {} has ended: it is {}", job.id(),
                                                           StateName(job.view.state()))));
  }
  for (Job* const job : *named) {
    if (!job->ended()) Update(*job, request);
  }
  PlaceJobs();
  v1::UpdateJobResponse response;
  *response.mutable_job() = jobs_.View(**active, /*with_ranks=*/false);
  context_.Reply(call_id, std::move(response));
}

void Queue::Update(Job& job, const v1::UpdateJobRequest& request) {
  if (request.has_hold() && request.hold() != job.record.held()) {
    context_.Record(request.hold() ? "JobHeld" : "JobReleased", job.id(), "",
                    job.queued() ? "" : "counts when the job is in the queue again");
    job.record.clear_queue_note();
    jobs_.SetHeld(job, request.hold());
  }
  if (request.has_priority() && request.priority() != job.view.spec().priority()) {
    context_.Record("PriorityChanged", job.id(), "",
                    fmt::format("from {} to {}", job.view.spec().priority(), request.priority()));
    jobs_.SetPriority(job, request.priority());
    // The head may preempt it now.
    if (job.active()) context_.placement_due = true;
  }
}

void Queue::SignalJob(uint64_t call_id, const v1::SignalJobRequest& request) {
  const auto found = jobs_.Lookup(request.job_id());
  if (!found.ok()) return context_.Reply(call_id, found.status());
  Job& job = **found;
  if (request.signal() < 1 || request.signal() > kHighestSignal) {
    return context_.Reply(call_id, absl::InvalidArgumentError(fmt::format(
                                       "{} is not the number of a signal: write 1 to {}",
                                       request.signal(), kHighestSignal)));
  }
  if (job.view.state() != v1::JOB_STATE_RUNNING) {
    return context_.Reply(call_id, absl::FailedPreconditionError(fmt::format(
                                       "job {} is {}: only ranks that run take a signal", job.id(),
                                       StateName(job.view.state()))));
  }
  const int world_size = job.view.ranks_size();
  for (const int rank : request.ranks()) {
    if (rank >= 0 && rank < world_size) continue;
    return context_.Reply(call_id,
                          absl::NotFoundError(fmt::format("job {} has no rank {}: its ranks are 0 "
                                                          "to {}",
                                                          job.id(), rank, world_size - 1)));
  }
  std::vector<std::pair<const Node*, v1::SignalRanks>> messages;
  for (const Member& member : job.members) {
    const Node* const node = nodes_.Find(member.node_id);
    if (member.ended || node == nullptr) continue;
    v1::SignalRanks message;
    message.set_signal(request.signal());
    for (const int rank : request.ranks()) {
      if (member.Has(rank)) message.add_ranks(rank);
    }
    if (!request.ranks().empty() && message.ranks().empty()) continue;
    if (node->session_id == 0) {
      return context_.Reply(
          call_id, absl::UnavailableError(fmt::format(
                       "{} is not connected, and ranks of job {} run there: no signal was sent",
                       node->record.name(), job.id())));
    }
    messages.emplace_back(node, std::move(message));
  }
  context_.Record("JobSignaled", job.id(), "",
                  fmt::format("{} to {}{}", SignalName(static_cast<int>(request.signal())),
                              request.ranks().empty()       ? "all ranks"
                              : request.ranks().size() == 1 ? "rank "
                                                            : "ranks ",
                              FormatRanks({request.ranks().begin(), request.ranks().end()})));
  for (auto& [node, ranks] : messages) {
    v1::OpenSessionResponse message = MessageTo(*node, job.id(), job.view.generation());
    *message.mutable_signal_ranks() = std::move(ranks);
    context_.Send(node->session_id, std::move(message));
  }
  if (request.signal() == SIGSTOP || request.signal() == SIGCONT) {
    jobs_.SetPaused(job, {request.ranks().begin(), request.ranks().end()},
                    request.signal() == SIGSTOP);
  }
  v1::SignalJobResponse response;
  *response.mutable_job() = jobs_.View(job, /*with_ranks=*/false);
  context_.Reply(call_id, std::move(response));
}

void Queue::DrainNode(uint64_t call_id, const v1::DrainNodeRequest& request) {
  const auto found = nodes_.Lookup(request.node());
  if (!found.ok()) return context_.Reply(call_id, found.status());
  Node& node = **found;
  if (request.leaves()) {
    if (absl::Status status = CheckMayLeave(node); !status.ok()) {
      return context_.Reply(call_id, std::move(status));
    }
  }
  std::string reason = request.reason().empty() ? "drained by a client" : request.reason();
  v1::Node& record = node.record;
  record.set_drained(true);
  record.clear_quarantined();
  record.set_drained_because(std::move(reason));
  record.clear_drain_deadline();
  drains_.Clear(node.id());
  std::string when;
  if (request.has_deadline()) {
    const auto in = std::max(FromProto(request.deadline()), std::chrono::nanoseconds(0));
    *record.mutable_drain_deadline() = ToProtoTimestamp(context_.wall + in);
    drains_.Set(node.id(), context_.now + in);
    when = in.count() == 0 ? "; its jobs are moved now"
                           : fmt::format("; its jobs are moved in {}", FormatDuration(in));
  }
  context_.Record("NodeDrained", "", node.id(),
                  fmt::format("{}: {}{}", record.name(), record.drained_because(), when));
  nodes_.Recomposed(node);
  v1::DrainNodeResponse response;
  if (request.leaves()) {
    MoveJobs(node, Move::kAll, &response);
  } else {
    MoveJobs(node, Move::kNone, &response);
    if (!request.has_deadline()) response.clear_moving();
    ExpireDue();
  }
  *response.mutable_node() = record;
  context_.Reply(call_id, std::move(response));
}

void Queue::UndrainNode(uint64_t call_id, const v1::UndrainNodeRequest& request) {
  const auto found = nodes_.Lookup(request.node());
  if (!found.ok()) return context_.Reply(call_id, found.status());
  Node& node = **found;
  if (node.record.drained()) {
    drains_.Clear(node.id());
    nodes_.Undrain(node);
    jobs_.ForgiveNode(node.id());
  }
  v1::UndrainNodeResponse response;
  *response.mutable_node() = node.record;
  context_.Reply(call_id, std::move(response));
}

void Queue::RemoveNode(uint64_t call_id, const v1::RemoveNodeRequest& request) {
  const auto found = nodes_.Lookup(request.node());
  if (!found.ok()) return context_.Reply(call_id, found.status());
  Node& node = **found;
  if (!node.lost()) {
    return context_.Reply(
        call_id, absl::FailedPreconditionError(fmt::format(
                     "{} is not lost: stop its worker first, then remove it", node.record.name())));
  }
  if (!request.gone() && !node.quiet(context_.now)) {
    const std::string until =
        node.fence() == SteadyNanos::max()
            ? "and has promised no fence time"
            : fmt::format("for {} more at most", FormatDuration(node.fence() - context_.now));
    return context_.Reply(
        call_id,
        absl::FailedPreconditionError(fmt::format(
            "{} may still run ranks of {}, {}; if the host is switched off, or cut off for "
            "good, say so with --gone",
            node.record.name(), *node.jobs.begin(), until)));
  }
  departures_.OnNodeForgotten(node);
  v1::RemoveNodeResponse response;
  *response.mutable_node() = node.record;
  drains_.Clear(node.id());
  nodes_.Remove(node, "removed by a client");
  context_.Reply(call_id, std::move(response));
}

absl::Status Queue::CheckMayLeave(const Node& node) {
  // A trial placement takes the job from the node, and gives it back.
  const std::set<std::string> here(node.jobs.begin(), node.jobs.end());
  for (const std::string& job_id : here) {
    Job* const job = jobs_.Find(job_id);
    const Member* const member = job == nullptr ? nullptr : job->FindMember(node.id());
    if (member == nullptr || member->ended) continue;
    if (continuation_.GoesOnWithout(*job, node)) continue;
    const v1::JobSpec& spec = job->view.spec();
    const std::string mesh =
        spec.mesh().empty() ? "" : ", in the mesh " + FormatMesh(AxesOf(spec.mesh()));
    return absl::FailedPreconditionError(
        fmt::format("{} cannot leave: without it job {} cannot go on: it needs at least {}{}",
                    node.record.name(), job_id, Count(MinNodes(spec), "node"), mesh));
  }
  return absl::OkStatus();
}

void Queue::MoveJobs(Node& node, Move which, v1::DrainNodeResponse* response) {
  const std::set<std::string> here(node.jobs.begin(), node.jobs.end());
  for (const std::string& job_id : here) {
    Job* const job = jobs_.Find(job_id);
    const Member* const member = job == nullptr ? nullptr : job->FindMember(node.id());
    if (member == nullptr || member->ended) continue;
    if (which != Move::kAll && !job->MayRunAgain()) {
      response->add_staying(job_id);
      continue;
    }
    response->add_moving(job_id);
    if (which == Move::kNone) continue;
    const std::string reason =
        fmt::format("moved away from {}: {}", node.record.name(), node.record.drained_because());
    if (generations_.AskToQuiesce(*job, reason, /*save=*/true)) continue;
    generations_.Stop(*job, v1::STOP_INTENT_REQUEUE, "JobMoved", node.id(), reason);
  }
  if (which == Move::kNone) return;
  node.record.clear_drain_deadline();
  nodes_.Changed(node);
}

void Queue::OnWorkerStopping(const Node& node) {
  std::erase_if(leave_once_joined_, [this](const auto& entry) {
    const Job* const job = jobs_.Find(entry.first);
    return job == nullptr || !job->active();
  });
  const std::set<std::string> here(node.jobs.begin(), node.jobs.end());
  for (const std::string& job_id : here) {
    Job* const job = jobs_.Find(job_id);
    const Member* const member = job == nullptr ? nullptr : job->FindMember(node.id());
    if (member == nullptr || member->ended || !job->MayRunAgain() || job->asked_to_quiesce()) {
      continue;
    }
    const std::string reason =
        fmt::format("moved away from {}: the worker there is stopping", node.record.name());
    if (!generations_.AskToQuiesce(*job, reason, /*save=*/true) &&
        job->view.spec().recovery() != v1::RECOVERY_RESPAWN) {
      leave_once_joined_[job_id] = node.id();
    }
  }
}

void Queue::OnRanksJoined(const std::string& job_id) {
  const auto found = leave_once_joined_.find(job_id);
  const Job* const job = found == leave_once_joined_.end() ? nullptr : jobs_.Find(job_id);
  if (job == nullptr || job->view.state() != v1::JOB_STATE_RUNNING) return;
  const Node* const node = nodes_.Find(found->second);
  leave_once_joined_.erase(found);
  if (node != nullptr && node->draining) OnWorkerStopping(*node);
}

void Queue::OnRestored() {
  for (const auto& [node_id, node] : nodes_.all()) {
    if (!node.record.drained() || !node.record.has_drain_deadline()) continue;
    const auto left = FromProto(node.record.drain_deadline()) - context_.wall;
    drains_.Set(node_id, context_.now + std::max(left, std::chrono::nanoseconds(0)));
  }
}

}  // namespace meshrun::coordinator
