// What becomes of running generations when a node returns, when a node is lost, and when the
// coordinator restarts.
#include <fmt/format.h>

#include <set>

#include "coordinator/state_machine/generations.h"

namespace meshrun::coordinator {
namespace {

// All its ranks said how they ended: losing the node afterwards harms nobody.
bool AllExited(const Job& job, const Member& member) {
  for (int i = 0; i < member.rank_count; ++i) {
    if (job.view.ranks(member.first_rank + i).state() != v1::RANK_STATE_EXITED) return false;
  }
  return true;
}

// Nodes lost during rendezvous, in a row: a job that takes its hosts down must not walk through all
// of them.
constexpr uint32_t kLostInRendezvous = 5;

}  // namespace

void Generations::OnNodeReturned(Node& node, const v1::Hello& hello) {
  departures_.OnNodeReturned(node, hello);
  std::set<std::string> carried;
  for (const v1::RunningGeneration& running : hello.running()) {
    Job* job = jobs_.Find(running.job_id());
    Member* member = job == nullptr ? nullptr : job->FindLiveMember(node.id());
    const bool takes_part = member != nullptr;
    // Its processes are to live on, and it has not heard of that.
    const bool behind = takes_part && running.generation() < job->view.generation() &&
                        HasSurvivors(*job) &&
                        (job->view.state() == v1::JOB_STATE_RENDEZVOUS || job->survivors_wait() ||
                         (job->view.state() == v1::JOB_STATE_QUIESCING && !running.ended()));
    // Processes may leave a host that takes part again.
    const bool leaves = job != nullptr && departures_.StopAgain(*job, node, running);
    if (!takes_part || (job->view.generation() != running.generation() && !behind)) {
      if (leaves) continue;
      commands_.Forget(running.job_id(), running.generation(), node);
      // What such processes hold is counted for nobody: nothing is placed beside them.
      const bool counted = node.jobs.contains(running.job_id());
      if (!running.ended() && !counted) {
        node.strays.insert({running.job_id(), running.generation()});
      }
      continue;
    }
    carried.insert(job->id());
    // An exit is judged by the steps that were done before it.
    const bool runs = job->view.state() == v1::JOB_STATE_RUNNING &&
                      job->view.generation() == running.generation();
    for (const auto& [rank, step] : running.steps()) {
      if (runs) {
        // The session was away; its ranks were not.
        context_.tallies.OnStep(job->tally, job->view.generation(),
                                static_cast<uint32_t>(job->view.world_size()), step,
                                /*fell=*/false, jobs_.run_clock().Used(job->view));
      } else {
        context_.tallies.OnReached(job->tally, step);
      }
      if (step <= job->step_beyond()) continue;
      job->record.set_step_beyond(step);
      jobs_.Changed(*job);
    }
    v1::Fence fence;
    fence.set_job_id(job->id());
    fence.set_generation(running.generation());
    if (behind) {
      for (const v1::RankExit& exit : running.exits()) OnRankExit(node, fence, exit);
      if (job->view.state() == v1::JOB_STATE_RENDEZVOUS && !member->prepared) {
        commands_.Prepare(*job, *member);
      }
      if (job->survivors_wait()) {
        proceed_.insert(job->id());
      } else if (job->view.state() == v1::JOB_STATE_QUIESCING) {
        // They compute until they are told, and hold what they hold until they have ended.
        commands_.Stop(*job, *member, job->stop_grace());
      }
      continue;
    }
    if (job->view.state() == v1::JOB_STATE_RENDEZVOUS && (running.ended() || !HasSurvivors(*job))) {
      if (running.ended()) {
        OnEnded(node, fence);
      } else if (!member->prepared) {
        // Its answer may have been lost with the old session.
        commands_.Prepare(*job, *member);
      }
      continue;
    }
    TakeOver(*job, *member, node, running);
    if (running.ended()) {
      OnEnded(node, fence);
    } else if (job->view.state() == v1::JOB_STATE_RENDEZVOUS) {
      if (!member->prepared) commands_.Prepare(*job, *member);
    } else if (job->survivors_wait()) {
      if (job->asked_to_quiesce()) commands_.Quiesce(*job, *member);
      proceed_.insert(job->id());
    } else if (job->view.state() == v1::JOB_STATE_QUIESCING) {
      commands_.Stop(*job, *member, job->stop_grace());
    } else if ((running.running_ranks().empty() && running.exits().empty()) ||
               (!running.started() && HasSurvivors(*job))) {
      commands_.Start(*job, *member);
    } else if (job->asked_to_quiesce()) {
      // They are asked anew which of them stand still.
      commands_.Quiesce(*job, *member);
    }
    if (job->view.state() == v1::JOB_STATE_RUNNING && !running.ended()) {
      commands_.RepeatPauses(*job, *member);
    }
  }
  OnUnnamed(node, carried);
  departures_.UpdateDrainReason(node);
}

// What the node knows of the ranks of a generation that it carries on.
void Generations::TakeOver(Job& job, Member& member, Node& node,
                           const v1::RunningGeneration& running) {
  v1::Fence fence;
  fence.set_job_id(job.id());
  fence.set_generation(running.generation());
  for (const v1::RankExit& exit : running.exits()) OnRankExit(node, fence, exit);
  for (const int rank : running.running_ranks()) {
    if (!member.Has(rank)) continue;
    v1::RankStatus& status = *job.view.mutable_ranks(rank);
    if (status.state() == v1::RANK_STATE_ASSIGNED && running.started()) {
      status.set_state(v1::RANK_STATE_RUNNING);
    }
  }
  OnRanksJoined(node, fence, running.joined());
  jobs_.Changed(job, member);
  blocked_.OnNodeReturned(job);
  peers_.OnNodeReturned(job, node);
}

// Generations that the node should run and does not name.
void Generations::OnUnnamed(Node& node, const std::set<std::string>& carried) {
  const std::set<std::string> jobs(node.jobs.begin(), node.jobs.end());
  for (const std::string& job_id : jobs) {
    if (carried.contains(job_id)) continue;
    Job* job = jobs_.Find(job_id);
    Member* member = job == nullptr ? nullptr : job->FindMember(node.id());
    if (member == nullptr || member->ended) continue;
    if (job->view.state() == v1::JOB_STATE_RENDEZVOUS && !HasSurvivors(*job)) {
      if (member->prepared) --job->members_prepared;
      member->prepared = false;
      commands_.Prepare(*job, *member);
      continue;
    }
    const bool all_exited = AllExited(*job, *member);
    EndMember(*job, *member, MemberEnd::kGone);
    const std::string why =
        fmt::format("{} came back without its ranks of this job", node.record.name());
    if (job->finished() && !all_exited) {
      NoteEndAfterFinish(*job, node, why);
    } else if (MayFail(*job) && !all_exited) {
      Fail(*job, v1::FAILURE_CAUSE_NODE_LOST, why, &node, nullptr);
    }
    if (job->survivors_wait()) proceed_.insert(job->id());
    Conclude(*job);
  }
}

// Whether what happens to a rank now would be the generation's first failure.
bool Generations::MayFail(const Job& job) const {
  if (job.failed() || job.finished()) return false;
  return job.view.state() == v1::JOB_STATE_RUNNING || job.survivors_wait() ||
         (job.view.state() == v1::JOB_STATE_RENDEZVOUS && HasSurvivors(job));
}

void Generations::OnNodeLost(Node& node, const std::string& why, bool stopped) {
  const std::set<std::string> jobs(node.jobs.begin(), node.jobs.end());
  for (const std::string& job_id : jobs) {
    Job* job = jobs_.Find(job_id);
    Member* member = job == nullptr ? nullptr : job->FindMember(node.id());
    if (member == nullptr || member->ended) continue;
    if (job->view.state() == v1::JOB_STATE_RENDEZVOUS && !HasSurvivors(*job)) {
      EndMember(*job, *member, MemberEnd::kGone);
      Abandon(*job);
      job->record.set_lost_in_rendezvous(job->record.lost_in_rendezvous() + 1);
      if (job->record.lost_in_rendezvous() < kLostInRendezvous) {
        Requeue(*job, why);
      } else {
        FailJob(*job, v1::FAILURE_CAUSE_NODE_LOST,
                fmt::format("{} nodes in a row were lost while the job was being prepared on them, "
                            "the last one: {}",
                            job->record.lost_in_rendezvous(), why),
                &node);
      }
      continue;
    }
    const bool all_exited = AllExited(*job, *member);
    EndMember(*job, *member, stopped ? MemberEnd::kGone : MemberEnd::kLost);
    if (job->finished() && !all_exited) {
      NoteEndAfterFinish(*job, node, why);
    } else if (MayFail(*job) && !all_exited) {
      Fail(*job, v1::FAILURE_CAUSE_NODE_LOST, why, &node, nullptr);
    }
    if (job->survivors_wait()) proceed_.insert(job->id());
    Conclude(*job);
  }
}

void Generations::OnRestored() {
  for (const auto& [id, unused] : jobs_.all()) {
    Job& job = *jobs_.Find(id);
    for (const LeavingMember& leaving : job.leaving) {
      const Member& member = leaving.member;
      if (Node* node = nodes_.Find(member.node_id); node != nullptr) {
        nodes_.Hold(*node, id, member.slots, member.memory_bytes, member.gpus);
      }
    }
    if (!job.active()) {
      context_.held_times.Resume(id, context_.wall);
      if (job.ended()) context_.held_times.Forget(id);
      continue;
    }
    if (job.members_alive > 0 && job.view.has_progress()) {
      job.former_progress = std::move(*job.view.mutable_progress());
      job.view.clear_progress();
    }
    for (Member& member : job.members) {
      if (member.ended) continue;
      Node* node = nodes_.Find(member.node_id);
      if (node == nullptr || node->lost()) {
        // Written in one batch with the member's end, or not at all; kept against a damaged table.
        member.ended = true;
        --job.members_alive;
        continue;
      }
      nodes_.Hold(*node, id, member.slots, member.memory_bytes, member.gpus);
    }
    context_.held_times.Resume(id, context_.wall);
    if (job.view.state() == v1::JOB_STATE_RENDEZVOUS && HasSurvivors(job)) {
      // Its processes live on: the Prepare of the same generation is repeated to all.
      job.members_prepared = 0;
      for (Member& member : job.members) member.prepared = false;
      job.world_digest = WorldDigest(*job.worlds.at(job.view.generation()));
    } else if (job.view.state() == v1::JOB_STATE_RENDEZVOUS) {
      // No Start was sent. Its members hear Forget when they name it; the next generation is
      // another.
      Abandon(job);
      Requeue(job, "the coordinator restarted");
    } else {
      if (job.survivors_wait() && job.asked_to_quiesce()) {
        // The ranks were told how long they have.
        jobs_.SetDeadline(job, context_.now + kQuiesceTimeout);
      }
      if (job.view.state() == v1::JOB_STATE_RUNNING && HasSurvivors(job)) {
        jobs_.SetDeadline(job, context_.now + context_.lease + std::chrono::seconds(30));
      }
      Conclude(job);
    }
  }
}

}  // namespace meshrun::coordinator
