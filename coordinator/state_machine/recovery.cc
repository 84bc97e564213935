// Failures, stops and the end of a generation, and what becomes of its job.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "coordinator/state_machine/generations.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

// So much is kept of what a rank says that ended as a consequence.
constexpr size_t kMostConsequenceBytes = 1000;

// The rank whose process has ended, or -1.
int RankOf(const Job& job, const Member& member, const v1::RankExit& exit) {
  if (exit.process_generation() == 0) return member.Has(exit.rank()) ? exit.rank() : -1;
  for (int rank = member.first_rank; member.Has(rank); ++rank) {
    const v1::RankAssignment& process = job.view.ranks(rank).assignment();
    if (process.process_generation() == exit.process_generation() &&
        process.process_rank() == exit.process_rank()) {
      return rank;
    }
  }
  return -1;
}

// A process that was to live on after a failure, and dies before it has come to the next
// generation.
bool DiesOfTheLastFailure(const Job& job, int rank) {
  if (!job.view.has_failure()) return false;
  if (job.view.failure().generation() + 1 != job.view.generation()) return false;
  if (job.view.state() == v1::JOB_STATE_RENDEZVOUS) return true;
  const v1::RankStatus& status = job.view.ranks(rank);
  return !IsFresh(status.assignment(), job.view.generation()) && !status.joined();
}

// The rest of a sentence on a worker that has stopped its ranks.
std::string WhyStopped(const v1::RankExit& exit) {
  if (exit.orphaned()) return ": it had lost its coordinator";
  const std::string& why = exit.error_message();
  return why.empty() ? "" : ": " + why.substr(0, why.find('\n'));
}

}  // namespace

void Generations::OnRankExit(Node& node, const v1::Fence& fence, const v1::RankExit& exit) {
  Job* job = jobs_.Find(fence.job_id());
  Member* member = job == nullptr ? nullptr : job->FindLiveMember(node.id());
  // A process that lives on may end before its host hears of the generation.
  const bool earlier = member != nullptr && exit.process_generation() != 0 &&
                       fence.generation() < job->view.generation();
  if (!earlier) {
    const Target target = Resolve(node, fence, "RankExit");
    job = target.job;
    member = target.member;
  }
  if (job == nullptr) return;
  const int rank = RankOf(*job, *member, exit);
  if (rank < 0) {
    // A process that was replaced has ended as it was told to.
    if (!earlier)
      context_.Warn(fmt::format("RankExit of {}: rank {} of job {} does not live there",
                                node.record.name(), exit.rank(), job->id()));
    return;
  }
  v1::RankExit current = exit;
  current.set_rank(rank);
  TakeExit(*job, node, current);
  jobs_.Changed(*job, *member);
}

void Generations::TakeExit(Job& job, const Node& node, const v1::RankExit& exit) {
  v1::RankStatus& status = *job.view.mutable_ranks(exit.rank());
  if (status.state() == v1::RANK_STATE_EXITED) return;
  status.set_state(v1::RANK_STATE_EXITED);
  *status.mutable_exit() = exit;
  // After the first failure or a cancel every further death is a consequence, whatever its cause.
  if (!ExitedCleanly(exit) && (job.stopping() || (job.survivors_wait() && job.failed()))) {
    status.mutable_exit()->set_teardown(true);
  }
  // Lines of a consequence tell nothing, and thousands of them are many.
  if (status.exit().teardown()) {
    status.mutable_exit()->clear_last_lines();
    std::string& message = *status.mutable_exit()->mutable_error_message();
    message.resize(Utf8Prefix(message, kMostConsequenceBytes).size());
  }
  status.set_end(DescribeEnd(exit));
  const std::string text = RankEndSentence(exit, node.record.name());
  store_.OnRankGone(job, exit.rank(), text);
  if (ExitedCleanly(exit)) {
    blocked_.OnRankLeft(job, exit.rank());
    peers_.OnRankLeft(job, exit.rank());
  } else {
    blocked_.OnRankLost(job, exit.rank());
    peers_.OnRankLost(job, exit.rank(), PeerEndSentence(exit, node.record.name()));
  }
  // A rank that its worker stopped has not finished, however it ended.
  if (job.survivors_wait() || job.asked_to_quiesce()) proceed_.insert(job.id());
  if (job.finished()) {
    TakeExitAfterFinish(job, node, exit);
    return;
  }
  if (!MayFail(job)) return;
  if (ExitedCleanly(exit) && !exit.teardown()) {
    if (job.view.state() != v1::JOB_STATE_RENDEZVOUS) return;
    // It was to live on: the generation that is being prepared cannot start without it.
    Fail(job, v1::FAILURE_CAUSE_MOVED,
         fmt::format("rank {} on {} finished while the next generation was being prepared",
                     exit.rank(), node.record.name()),
         &node, &exit);
    return;
  }
  if (exit.teardown()) {
    Fail(job, v1::FAILURE_CAUSE_NODE_LOST,
         fmt::format("the worker on {} stopped its ranks{}", node.record.name(), WhyStopped(exit)),
         &node, &exit);
    return;
  }
  Fail(job, exit.signal() != 0 ? v1::FAILURE_CAUSE_RANK_SIGNALED : v1::FAILURE_CAUSE_RANK_EXITED,
       text + Unheard(job), &node, &exit);
}

// "; the connection to node2 broke before it": a rank often ends for want of those on another host,
// of which nobody knows more until its lease is over. Nothing where all hosts are connected.
std::string Generations::Unheard(const Job& job) const {
  constexpr size_t kNamed = 4;
  std::vector<std::string> names;
  for (const Member& member : job.members) {
    const Node* const node = member.ended ? nullptr : nodes_.Find(member.node_id);
    if (node != nullptr && node->session_id == 0 && !nodes_.IsRecovering(*node))
      names.push_back(node->record.name());
  }
  if (names.empty()) return "";
  const size_t more = names.size() - std::min(names.size(), kNamed);
  names.resize(names.size() - more);
  return fmt::format("; the connection to {}{} broke before it", fmt::join(names, ", "),
                     more == 0 ? "" : fmt::format(" and {} more", more));
}

void Generations::RecordFailure(Job& job, v1::FailureCause cause, const std::string& message,
                                const Node* node, const v1::RankExit* exit) {
  v1::Failure& failure = *job.view.mutable_failure();
  const bool follows = exit != nullptr && DiesOfTheLastFailure(job, exit->rank());
  failure.Clear();
  failure.set_cause(cause);
  failure.set_message(message);
  failure.set_rank(exit == nullptr ? -1 : exit->rank());
  if (node != nullptr) {
    failure.set_node_id(node->id());
    failure.set_node_name(node->record.name());
  }
  // A worker without its coordinator stops its ranks: nobody in the job is to blame.
  const bool orphaned = exit != nullptr && exit->orphaned();
  failure.set_planned(follows || orphaned || cause == v1::FAILURE_CAUSE_MOVED ||
                      (cause == v1::FAILURE_CAUSE_NODE_LOST && node != nullptr && node->draining));
  if (exit != nullptr) *failure.mutable_exit() = *exit;
  failure.set_generation(job.view.generation());
  if (node != nullptr && !failure.planned() && cause == v1::FAILURE_CAUSE_NODE_LOST) {
    nodes_.CountAbsence(*nodes_.Find(node->id()));
  }
  // A job that has used up its own memory would do so anywhere.
  const bool own_fault = exit != nullptr && exit->out_of_memory();
  if (node != nullptr && !failure.planned() && !own_fault) CountFailure(job, *node);
  jobs_.Changed(job);
}

void Generations::CountFailure(Job& job, const Node& node) {
  if (++(*job.record.mutable_failures_of_nodes())[node.id()] < 2) return;
  job.Avoid(node.id());
  context_.Record(
      "NodeAvoided", job.id(), node.id(),
      fmt::format("{} has failed the job twice: others are preferred to it", node.record.name()));
}

void Generations::Fail(Job& job, v1::FailureCause cause, std::string message, const Node* node,
                       const v1::RankExit* exit) {
  RecordFailure(job, cause, message, node, exit);
  context_.Record(exit == nullptr ? "NodeFailed" : "RankFailed", job.id(),
                  node == nullptr ? "" : node->id(), message);
  if (TakesGenerations(job) && !job.record.cancel_requested() &&
      RestartBudget(job, context_.now).MayRestart()) {
    SurvivorsWait(job, job.asked_to_quiesce(), message);
  } else {
    Quiesce(job, job.kill_grace(), std::move(message));
  }
}

// The job ends, without a rank to blame.
void Generations::FailJob(Job& job, v1::FailureCause cause, const std::string& message,
                          const Node* node) {
  RecordFailure(job, cause, message, node, nullptr);
  Finish(job, JobPhase::kFailed, message);
}

void Generations::Quiesce(Job& job, std::chrono::nanoseconds grace, std::string reason) {
  jobs_.SetPhase(job, JobPhase::kStopping, std::move(reason));
  // Survivors that waited may be stopped for the same reason.
  jobs_.Changed(job);
  jobs_.SetStopDeadline(job);
  peers_.Tell(job);
  grace = std::min(grace, jobs_.StopGrace(job));
  for (const Member& member : job.members) commands_.Stop(job, member, grace);
}

void Generations::OnEnded(Node& node, const v1::Fence& fence) {
  commands_.Forget(fence.job_id(), fence.generation(), node);
  const size_t strays = std::erase_if(node.strays, [&](const auto& stray) {
    return stray.first == fence.job_id() && stray.second <= fence.generation();
  });
  if (strays > 0) {
    departures_.UpdateDrainReason(node);
    return;
  }
  if (departures_.OnEnded(node, fence)) {
    const Job* known = jobs_.Find(fence.job_id());
    if (fence.generation() != known->view.generation()) return;
    const auto place = known->member_by_node.find(node.id());
    if (place == known->member_by_node.end() || known->members[place->second].ended) return;
  }
  const auto [job, member] = Resolve(node, fence, "GenerationEnded");
  if (job == nullptr) return;
  if (job->view.state() == v1::JOB_STATE_RENDEZVOUS && !HasSurvivors(*job)) {
    v1::PrepareResult gave_up;
    gave_up.set_error("gave the generation up before its start");
    OnPrepareResult(node, fence, gave_up);
    return;
  }
  EndMember(*job, *member, MemberEnd::kEnded);
  for (int i = 0; i < member->rank_count && !job->failed(); ++i) {
    const v1::RankStatus& status = job->view.ranks(member->first_rank + i);
    if (status.state() == v1::RANK_STATE_EXITED) continue;
    if (job->stopping()) break;
    if (job->finished()) {
      NoteEndAfterFinish(*job, node,
                         fmt::format("{} says that its ranks have ended, but not how rank {} did",
                                     node.record.name(), status.assignment().rank()));
      break;
    }
    Fail(*job, v1::FAILURE_CAUSE_NODE_LOST,
         fmt::format("{} says that its ranks have ended, but not how rank {} did",
                     node.record.name(), status.assignment().rank()),
         &node, nullptr);
  }
  if (job->survivors_wait()) proceed_.insert(job->id());
  Conclude(*job);
}

void Generations::EndMember(Job& job, Member& member, MemberEnd how) {
  if (member.ended) return;
  bool all_exited = true;
  for (int i = 0; i < member.rank_count; ++i) {
    v1::RankStatus& status = *job.view.mutable_ranks(member.first_rank + i);
    if (status.state() == v1::RANK_STATE_EXITED) continue;
    all_exited = false;
    if (how == MemberEnd::kEnded) continue;
    status.set_state(v1::RANK_STATE_LOST);
    status.set_end(fmt::format("lost with {}", status.node_name()));
    store_.OnRankGone(job, member.first_rank + i,
                      fmt::format("rank {} was {}", member.first_rank + i, status.end()));
    blocked_.OnRankLost(job, member.first_rank + i);
    peers_.OnRankLost(job, member.first_rank + i,
                      fmt::format("its host {} was lost", status.node_name()));
  }
  if ((how == MemberEnd::kLost && !all_exited) || how == MemberEnd::kToldToEnd ||
      how == MemberEnd::kStuck) {
    departures_.Leave(job, member, how);
  } else if (Node* node = nodes_.Find(member.node_id); node != nullptr) {
    nodes_.Release(*node, job.id(), member.slots, member.memory_bytes, member.gpus);
  }
  member.ended = true;
  --job.members_alive;
  jobs_.Changed(job, member);
}

// What becomes of the job when the last member has ended.
void Generations::Conclude(Job& job) {
  if (job.members_alive > 0 || !job.active()) return;
  EndGeneration(job, "the generation has ended");
  if (ConcludeStop(job)) return;
  RestartBudget budget(job, context_.now);
  const bool may_restart = budget.MayRestart();
  if (job.failed() && (!job.record.cancel_requested() || !may_restart)) {
    if (!may_restart) {
      if (!job.finished() && budget.LacksProgress() &&
          job.view.restarts_charged() < job.view.spec().max_restarts()) {
        job.view.mutable_failure()->set_cause(v1::FAILURE_CAUSE_NO_PROGRESS);
        job.view.mutable_failure()->set_message(fmt::format(
            "{} generations in a row without a step of progress, the last one after: {}",
            job.record.failures_without_progress() + 1, job.view.failure().message()));
      }
      Finish(job, JobPhase::kFailed, job.view.failure().message());
      return;
    }
    const std::string reason = budget.Charge();
    // The job itself fails, not what it runs on.
    if (job.view.failure().has_exit()) {
      job.not_before = context_.now + Backoff(job.record.failures_without_progress());
    }
    context_.Record("JobRestarting", job.id(), "", reason);
    jobs_.SetPhase(job, JobPhase::kWaiting, reason);
    return;
  }
  if (job.record.cancel_requested()) {
    Finish(job, JobPhase::kCancelled, job.record.cancel_reason());
    return;
  }
  Finish(job, JobPhase::kSucceeded, EndsAfterFinish(job));
}

void Generations::EndGeneration(Job& job, const std::string& why) {
  store_.EndGeneration(job, why);
  blocked_.EndGeneration(job);
  peers_.EndGeneration(job);
}

void Generations::Finish(Job& job, JobPhase end, std::string reason) {
  const std::string kind = end == JobPhase::kSucceeded ? "JobSucceeded"
                           : end == JobPhase::kFailed  ? "JobFailed"
                                                       : "JobCancelled";
  context_.Record(kind, job.id(), "", reason);
  jobs_.SetPhase(job, end, std::move(reason));
}

void Generations::Cancel(Job& job, bool now, const std::string& reason, int first_signal) {
  if (job.ended()) return;
  if (now && !job.record.cancel_now()) {
    job.record.set_cancel_now(true);
    jobs_.Changed(job);
  }
  if (!job.record.cancel_requested()) {
    job.record.set_cancel_requested(true);
    job.record.set_cancel_reason(reason.empty() ? "cancelled by a client" : reason);
    job.record.set_cancel_signal(first_signal);
    context_.Record("CancelRequested", job.id(), "", job.record.cancel_reason());
    jobs_.Changed(job);
  }
  if (job.queued()) {
    Finish(job, JobPhase::kCancelled, job.record.cancel_reason());
  } else if (job.view.state() == v1::JOB_STATE_RENDEZVOUS && !HasSurvivors(job)) {
    Abandon(job);
    Finish(job, JobPhase::kCancelled, job.record.cancel_reason());
  } else if (!job.stopping()) {
    Quiesce(job, job.stop_grace(), job.record.cancel_reason());
  } else if (now) {
    for (const Member& member : job.members) commands_.Stop(job, member, job.stop_grace());
    jobs_.ShortenStop(job, job.stop_grace());
  }
}

void Generations::OnDeadline(Job& job) {
  if (job.queued()) {
    const std::string message =
        fmt::format("not placed within its queue timeout of {}: {}",
                    FormatDuration(FromProto(job.view.spec().queue_timeout())),
                    jobs_.ReasonOf(job).empty() ? "no reason known" : jobs_.ReasonOf(job));
    FailJob(job, v1::FAILURE_CAUSE_QUEUE_TIMEOUT, message, nullptr);
    return;
  }
  if (job.view.state() == v1::JOB_STATE_RENDEZVOUS) {
    for (Member& member : job.members) {
      if (member.prepared || member.ended) continue;
      v1::Fence fence;
      fence.set_job_id(job.id());
      fence.set_generation(job.view.generation());
      v1::PrepareResult silence;
      silence.set_error("no answer to Prepare within 30 s");
      OnPrepareResult(*nodes_.Find(member.node_id), fence, silence);
      return;
    }
    // All that are left have answered, and one is gone: it will not start.
    const std::string message = "a host of the generation is gone";
    RecordFailure(job, v1::FAILURE_CAUSE_MOVED, message, nullptr, nullptr);
    Quiesce(job, job.kill_grace(), message);
    return;
  }
  if (job.view.state() == v1::JOB_STATE_RUNNING) {
    OnJoinDeadline(job);
    return;
  }
  if (job.view.state() != v1::JOB_STATE_QUIESCING) return;
  if (job.survivors_wait()) {
    if (!job.failed()) {
      RequeueOnceStopped(job, job.view.reason() + "; not all ranks stood still in time");
    }
    Quiesce(job, job.stop_grace(), job.view.reason());
    return;
  }
  for (Member& member : job.members) {
    if (member.ended) continue;
    const Node& node = *nodes_.Find(member.node_id);
    context_.Record(
        "MemberStuck", job.id(), node.id(),
        fmt::format("{} did not say that its ranks ended; it is told to kill and forget them",
                    node.record.name()));
    commands_.Forget(job.id(), job.view.generation(), node);
    // A host that is not connected may not have heard of the stop: its ranks may compute.
    EndMember(job, member, node.session_id == 0 ? MemberEnd::kLost : MemberEnd::kStuck);
  }
  Conclude(job);
}

}  // namespace meshrun::coordinator
