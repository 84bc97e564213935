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

}  // namespace

void Generations::OnNodeReturned(Node& node, const v1::Hello& hello) {
  std::set<std::string> carried;
  for (const v1::RunningGeneration& running : hello.running()) {
    Job* job = jobs_.Find(running.job_id());
    Member* member = job == nullptr ? nullptr : job->FindMember(node.id());
    if (job == nullptr || member == nullptr || member->ended || !job->active() ||
        job->view.generation() != running.generation()) {
      SendForget(running.job_id(), running.generation(), node);
      continue;
    }
    carried.insert(job->id());
    if (job->view.state() == v1::JOB_STATE_RENDEZVOUS) {
      if (running.ended()) {
        v1::Fence fence;
        fence.set_job_id(job->id());
        fence.set_generation(running.generation());
        OnEnded(node, fence);
      } else if (!member->prepared) {
        // Its answer may have been lost with the old session.
        SendPrepare(*job, *member);
      }
      continue;
    }
    for (const v1::RankExit& exit : running.exits()) {
      if (exit.rank() >= member->first_rank &&
          exit.rank() < member->first_rank + member->rank_count) {
        TakeExit(*job, node, exit);
      }
    }
    for (const int rank : running.running_ranks()) {
      if (rank < member->first_rank || rank >= member->first_rank + member->rank_count) continue;
      v1::RankStatus& status = *job->view.mutable_ranks(rank);
      if (status.state() == v1::RANK_STATE_ASSIGNED) status.set_state(v1::RANK_STATE_RUNNING);
    }
    jobs_.Changed(*job, *member);
    blocked_.OnNodeReturned(*job, node);
    if (running.ended()) {
      v1::Fence fence;
      fence.set_job_id(job->id());
      fence.set_generation(running.generation());
      OnEnded(node, fence);
    } else if (job->view.state() == v1::JOB_STATE_QUIESCING) {
      SendStop(*job, *member, job->stop_grace());
    } else if (running.running_ranks().empty() && running.exits().empty()) {
      SendStart(*job, *member);
    }
  }
  // Generations that the node should run and does not name.
  const std::set<std::string> jobs = node.jobs;
  for (const std::string& job_id : jobs) {
    if (carried.contains(job_id)) continue;
    Job* job = jobs_.Find(job_id);
    Member* member = job == nullptr ? nullptr : job->FindMember(node.id());
    if (member == nullptr || member->ended) continue;
    if (job->view.state() == v1::JOB_STATE_RENDEZVOUS) {
      if (member->prepared) --job->members_prepared;
      member->prepared = false;
      SendPrepare(*job, *member);
      continue;
    }
    const bool failing = job->view.state() == v1::JOB_STATE_RUNNING && !AllExited(*job, *member);
    EndMember(*job, *member, /*lost=*/true);
    if (failing) {
      Fail(*job, v1::FAILURE_CAUSE_NODE_LOST,
           fmt::format("{} came back without its ranks of this job", node.record.name()), &node,
           nullptr);
    }
    Conclude(*job);
  }
}

void Generations::OnNodeLost(Node& node, const std::string& why) {
  const std::set<std::string> jobs = node.jobs;
  for (const std::string& job_id : jobs) {
    Job* job = jobs_.Find(job_id);
    Member* member = job == nullptr ? nullptr : job->FindMember(node.id());
    if (member == nullptr || member->ended) continue;
    EndMember(*job, *member, /*lost=*/true);
    if (job->view.state() == v1::JOB_STATE_RENDEZVOUS) {
      Abandon(*job);
      Requeue(*job, why);
      continue;
    }
    if (job->view.state() == v1::JOB_STATE_RUNNING && !AllExited(*job, *member)) {
      Fail(*job, v1::FAILURE_CAUSE_NODE_LOST, why, &node, nullptr);
    }
    Conclude(*job);
  }
}

void Generations::OnRestored() {
  for (const auto& [id, unused] : jobs_.all()) {
    Job& job = *jobs_.Find(id);
    if (!job.active()) continue;
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
    if (job.view.state() == v1::JOB_STATE_RENDEZVOUS) {
      // No Start was sent. Its members hear Forget when they name it; the next generation is
      // another.
      Abandon(job);
      Requeue(job, "the coordinator restarted");
    } else {
      Conclude(job);
    }
  }
}

}  // namespace meshrun::coordinator
