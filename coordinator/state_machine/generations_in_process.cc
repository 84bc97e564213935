// Generations whose ranks are asked to stand still, or survive a loss, and go on in process.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state_machine/generations.h"
#include "core/rank_exit.h"
#include "core/text.h"

namespace meshrun::coordinator {

void Generations::SurvivorsWait(Job& job, bool asked, const std::string& reason) {
  jobs_.SetPhase(job, asked ? JobPhase::kAskedToQuiesce : JobPhase::kSurvivorsWait, reason);
  jobs_.Changed(job);
  peers_.Tell(job);
  proceed_.insert(job.id());
}

bool Generations::AskToQuiesce(Job& job, const std::string& reason, bool save) {
  if (job.view.state() != v1::JOB_STATE_RUNNING || !StandsStillWhenAsked(job)) return false;
  job.record.set_save_asked(save);
  job.quiesced.clear();
  SurvivorsWait(job, /*asked=*/true, reason);
  jobs_.SetDeadline(job, context_.now + kQuiesceTimeout);
  context_.Record("QuiesceAsked", job.id(), "", reason);
  for (const Member& member : job.members) commands_.Quiesce(job, member);
  return true;
}

void Generations::OnRanksQuiesced(Node& node, const v1::Fence& fence,
                                  const v1::RanksQuiesced& quiesced) {
  const auto [job, member] = Resolve(node, fence, "RanksQuiesced");
  if (job == nullptr) return;
  for (const auto& [rank, step] : quiesced.steps()) job->quiesced.insert(rank);
  proceed_.insert(job->id());
}

void Generations::ProceedAll() {
  proceed_.merge(departures_.TakeChanged());
  for (const std::string& job_id : std::exchange(proceed_, {})) {
    if (Job* job = jobs_.Find(job_id); job != nullptr) Proceed(*job);
  }
}

void Generations::Proceed(Job& job) {
  const auto [still, running] = CountStandingStill(job);
  if (job.phase() == JobPhase::kFinishing && running > 0 && still == running && !job.finished()) {
    Fail(job, v1::FAILURE_CAUSE_MOVED,
         "a rank finished, and all others stand still for a generation that needs it", nullptr,
         nullptr);
    return;
  }
  if (!job.survivors_wait()) return;
  for (const Member& member : job.members) {
    // Whether a host whose session broke comes back is known when its lease is over.
    if (!member.ended && nodes_.Find(member.node_id)->session_id == 0) return;
  }
  if (job.asked_to_quiesce() && !job.failed()) {
    const bool one_has_finished =
        std::any_of(job.view.ranks().begin(), job.view.ranks().end(), [](const auto& rank) {
          return rank.state() == v1::RANK_STATE_EXITED && ExitedCleanly(rank.exit());
        });
    if (one_has_finished) {
      // It had come to its end when it was asked, and so have the others, as a rule: those that
      // stand still do not.
      jobs_.SetPhase(job, JobPhase::kFinishing, "");
      jobs_.ClearDeadline(job);
      proceed_.insert(job.id());
      return;
    }
    if (still < running) return;
  }
  if (ContinueInProcess(job) || continuation_.WaitsForFence(job)) return;
  if (!job.failed()) RequeueOnceStopped(job, job.view.reason());
  Quiesce(job, job.stop_grace(), job.view.reason());
}

// Nothing has failed: the ranks stand still for the coordinator's own wish, or were to live on.
void Generations::RequeueOnceStopped(Job& job, std::string reason) {
  job.record.set_stop_intent(v1::STOP_INTENT_REQUEUE);
  job.record.set_stop_reason(std::move(reason));
  jobs_.Changed(job);
}

bool Generations::ContinueInProcess(Job& job) {
  const std::optional<NextGeneration> next = continuation_.Plan(job);
  if (!next.has_value()) return false;
  if (next->has_newcomers && !job.writes_are_fenced()) {
    // Ranks that are told to end compute until they do: no other node takes their place before.
    bool told = false;
    for (Member& member : job.members) {
      if (member.ended || next->survivors.contains(member.node_id)) continue;
      commands_.Stop(job, member, job.stop_grace());
      EndMember(job, member, MemberEnd::kToldToEnd);
      told = true;
    }
    if (told) return ContinueInProcess(job);
  }
  for (Member& member : job.members) {
    if (member.ended) continue;
    if (next->survivors.contains(member.node_id)) {
      nodes_.Release(*nodes_.Find(member.node_id), job.id(), member.slots, member.memory_bytes,
                     member.gpus);
      continue;
    }
    // Parked, or its worker is stopping.
    commands_.Stop(job, member, job.stop_grace());
    departures_.Leave(job, member, MemberEnd::kToldToEnd);
  }
  const std::string reason = RestartBudget(job, context_.now).Charge();
  EndGeneration(job, "the generation is over, its ranks go on in the next one");
  context_.Record(
      "GoesOnInProcess", job.id(), "",
      fmt::format("{} of {} {} on in generation {}; {}", next->living,
                  Count(next->placement.world_size, "rank"), next->living == 1 ? "lives" : "live",
                  job.view.generation() + 1, reason));
  Begin(job, next->placement, next->survivors);
  return true;
}

void Generations::OnJoinDeadline(Job& job) {
  for (const v1::RankStatus& rank : job.view.ranks()) {
    if (rank.joined() || rank.state() != v1::RANK_STATE_RUNNING ||
        IsFresh(rank.assignment(), job.view.generation())) {
      continue;
    }
    const std::string message =
        fmt::format("rank {} on {} was to go on in generation {}, and did not join it within 30 s",
                    rank.assignment().rank(), rank.node_name(), job.view.generation());
    OnHung(job, rank.assignment().rank(), message);
    return;
  }
}

// All are started anew: nobody knows in which call a rank stands that hangs.
void Generations::OnHung(Job& job, int rank, const std::string& message) {
  if (job.finished()) return;
  const Node* node = rank < 0 ? nullptr : nodes_.Find(job.view.ranks(rank).assignment().node_id());
  RecordFailure(job, v1::FAILURE_CAUSE_HUNG, message, node, nullptr);
  job.view.mutable_failure()->set_rank(rank);
  context_.Record("RankHung", job.id(), node == nullptr ? "" : node->id(), message);
  Quiesce(job, job.kill_grace(), message);
}

}  // namespace meshrun::coordinator
