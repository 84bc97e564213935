#include "coordinator/state_machine/departures.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// After the grace, for SIGKILL to take effect and for the worker to report it.
constexpr std::chrono::seconds kEndSlack(30);

}  // namespace

void Departures::Leave(Job& job, Member& member, MemberEnd how) {
  const bool stuck = how == MemberEnd::kStuck;
  jobs_.Leave(job, member, stuck);
  if (how == MemberEnd::kToldToEnd) job.leaving.back().stop_by = context_.now + job.stop_grace();
  job.leaving.back().exited = true;
  for (int i = 0; i < member.rank_count; ++i) {
    const bool exited = job.view.ranks(member.first_rank + i).state() == v1::RANK_STATE_EXITED;
    job.leaving.back().exited &= exited;
  }
  Node& node = *nodes_.Find(member.node_id);
  if (!stuck) {
    deadlines_.Set({job.id(), node.id()}, context_.now + job.stop_grace() + kEndSlack);
    return;
  }
  UpdateDrainReason(node);
}

std::chrono::nanoseconds Departures::GraceLeft(const Job& job, const LeavingMember& leaving) const {
  if (!leaving.stop_by.has_value()) return std::chrono::nanoseconds(0);
  return std::clamp<std::chrono::nanoseconds>(*leaving.stop_by - context_.now,
                                              std::chrono::nanoseconds(0), job.stop_grace());
}

bool Departures::StopAgain(const Job& job, const Node& node, const v1::RunningGeneration& running) {
  if (running.ended() || node.session_id == 0) return false;
  for (const LeavingMember& leaving : job.leaving) {
    if (leaving.member.node_id != node.id() || leaving.generation != running.generation() ||
        leaving.stuck || !leaving.stop_by.has_value()) {
      continue;
    }
    v1::OpenSessionResponse message = MessageTo(node, job.id(), leaving.generation);
    *message.mutable_stop()->mutable_grace() = ToProtoDuration(GraceLeft(job, leaving));
    message.mutable_stop()->set_reason("these ranks were told to end");
    context_.Send(node.session_id, std::move(message));
    return true;
  }
  return false;
}

void Departures::UpdateDrainReason(Node& node) {
  for (const std::string& job_id : node.jobs) {
    const Job* const job = jobs_.Find(job_id);
    if (job == nullptr) continue;
    for (const LeavingMember& leaving : job->leaving) {
      if (!leaving.stuck || leaving.member.node_id != node.id()) continue;
      nodes_.SetDrainReason(node, fmt::format("processes of job {} do not end", job_id));
      return;
    }
  }
  nodes_.SetDrainReason(
      node, node.strays.empty()
                ? ""
                : fmt::format("processes of job {}, which is not known here, are told to end",
                              node.strays.begin()->first));
}

void Departures::ExpireDue() {
  while (const auto due = deadlines_.PopDue(context_.now)) {
    Job* job = jobs_.Find(due->first);
    Node* node = nodes_.Find(due->second);
    // One that is not connected has a fence time, and is told again when it returns.
    if (job == nullptr || node == nullptr || node->session_id == 0) continue;
    for (size_t i = 0; i < job->leaving.size(); ++i) {
      const LeavingMember& leaving = job->leaving[i];
      if (leaving.stuck || leaving.member.node_id != node->id()) continue;
      context_.Record("MemberStuck", job->id(), node->id(),
                      fmt::format("{} was told to end ranks of generation {}, and did not say that "
                                  "they ended; it is told to kill and forget them",
                                  node->record.name(), leaving.generation));
      commands_.Forget(job->id(), leaving.generation, *node);
      jobs_.Stuck(*job, i);
      UpdateDrainReason(*node);
      changed_.insert(job->id());
    }
  }
}

void Departures::Release(Job& job, size_t index) {
  const LeavingMember leaving = job.leaving[index];
  jobs_.Left(job, index);
  changed_.insert(job.id());
  Node* node = nodes_.Find(leaving.member.node_id);
  if (node == nullptr) return;
  const Member& member = leaving.member;
  nodes_.Release(*node, job.id(), member.slots, member.memory_bytes, member.gpus);
  if (leaving.stuck) UpdateDrainReason(*node);
}

void Departures::OnNodeForgotten(Node& node) {
  const std::set<std::string> jobs(node.jobs.begin(), node.jobs.end());
  for (const std::string& job_id : jobs) {
    Job* const job = jobs_.Find(job_id);
    for (size_t i = job == nullptr ? 0 : job->leaving.size(); i-- > 0;) {
      if (job->leaving[i].member.node_id != node.id()) continue;
      context_.Record("RanksGivenUp", job_id, node.id(),
                      fmt::format("{} never said that the ranks of generation {} had ended; it is "
                                  "forgotten, and none of them computes any more",
                                  node.record.name(), job->leaving[i].generation));
      Release(*job, i);
    }
  }
}

bool Departures::OnEnded(Node& node, const v1::Fence& fence) {
  Job* job = jobs_.Find(fence.job_id());
  bool found = false;
  for (size_t i = job == nullptr ? 0 : job->leaving.size(); i-- > 0;) {
    const LeavingMember& leaving = job->leaving[i];
    if (leaving.member.node_id != node.id() || leaving.generation > fence.generation()) continue;
    Release(*job, i);
    found = true;
  }
  return found;
}

void Departures::OnNodeReturned(Node& node, const v1::Hello& hello) {
  const std::set<std::string> jobs(node.jobs.begin(), node.jobs.end());
  for (const std::string& job_id : jobs) {
    Job* job = jobs_.Find(job_id);
    for (size_t i = job == nullptr ? 0 : job->leaving.size(); i-- > 0;) {
      const LeavingMember& leaving = job->leaving[i];
      if (leaving.member.node_id != node.id()) continue;
      bool runs = false;
      for (const v1::RunningGeneration& running : hello.running()) {
        if (running.job_id() != job_id || running.ended()) continue;
        // The host has taken the job's present generation: those before it are gone.
        if (running.generation() == job->view.generation() &&
            leaving.generation < running.generation()) {
          continue;
        }
        runs = true;
        // It never heard of the generation that it was part of when it was lost.
        if (running.generation() < leaving.generation) {
          commands_.Forget(job_id, leaving.generation, node);
        }
      }
      if (!runs) {
        Release(*job, i);
      } else if (!leaving.stuck) {
        deadlines_.Set({job_id, node.id()}, context_.now + GraceLeft(*job, leaving) + kEndSlack);
      }
    }
  }
}

bool Departures::MayCompute(const LeavingMember& leaving) const {
  const Node* node = nodes_.Find(leaving.member.node_id);
  if (node == nullptr || leaving.stuck || leaving.exited) return false;
  return !node->lost() || context_.now < node->fence();
}

void Departures::OnNodeFenced(Node& node) {
  const std::set<std::string> jobs(node.jobs.begin(), node.jobs.end());
  for (const std::string& job_id : jobs) {
    changed_.insert(job_id);
    context_.Record("NodeFenced", job_id, node.id(),
                    fmt::format("the fence time of {} is over: none of its ranks computes any more",
                                node.record.name()));
  }
}

std::vector<const v1::Node*> Departures::Candidates(const Job& job, std::string* waits) const {
  std::vector<const v1::Node*> healthy = nodes_.Present(/*healthy_only=*/true);
  waits->clear();
  if (job.writes_are_fenced()) return healthy;
  for (const LeavingMember& leaving : job.leaving) {
    if (!MayCompute(leaving)) continue;
    const Node& node = *nodes_.Find(leaving.member.node_id);
    const bool known = node.lost() && node.fence() != SteadyNanos::max();
    *waits = fmt::format(
        "ranks of the job may still compute on {}, {}: no other node takes their place before",
        node.record.name(),
        known         ? "for " + FormatDuration(node.fence() - context_.now) + " at most"
        : node.lost() ? "which is lost and has promised no fence time"
                      : "which is told to end them");
  }
  if (waits->empty()) return healthy;
  std::erase_if(healthy, [&](const v1::Node* node) { return !job.HasRunOn(node->node_id()); });
  return healthy;
}

}  // namespace meshrun::coordinator
