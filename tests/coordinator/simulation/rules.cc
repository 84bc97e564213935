#include "tests/coordinator/simulation/rules.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshrun::coordinator::simulation {
namespace {

bool IsCharged(const v1::Failure& failure) {
  if (failure.planned()) return false;
  switch (failure.cause()) {
    case v1::FAILURE_CAUSE_RANK_EXITED:
    case v1::FAILURE_CAUSE_RANK_SIGNALED:
    case v1::FAILURE_CAUSE_NODE_LOST:
      return true;
    default:
      return false;
  }
}

bool IsEnd(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

}  // namespace

void Rules::OnCommitted(const StateMachine& machine, const std::vector<v1::StateRow>& rows) {
  std::set<std::string> changed;
  for (const v1::StateRow& row : rows) {
    if (row.table() != v1::STATE_TABLE_JOBS && row.table() != v1::STATE_TABLE_MEMBERS) continue;
    changed.insert(row.key().substr(0, row.key().find('/')));
  }
  for (const std::string& id : changed) {
    const auto it = machine.jobs().all().find(id);
    if (it == machine.jobs().all().end()) continue;
    Facts& facts = facts_[id];
    CheckEndedMembers(it->second, facts);
    if (it->second.view.generation() != facts.generation) CheckPlaces(it->second);
    Remember(it->second, facts);
    CheckJob(it->second);
  }
  if (++batches_ % interval_ != 0) return;
  CheckNodes(machine);
  CheckBarriers(machine);
}

// What a member holds is held until its processes have truly ended.
void Rules::CheckEndedMembers(const Job& job, Facts& facts) {
  const GenerationKey before{job.id(), facts.generation};
  for (size_t i = 0; i < facts.members.size(); ++i) {
    const auto& [node_id, ended] = facts.members[i];
    if (ended) continue;
    const bool same = job.view.generation() == facts.generation && i < job.members.size();
    if (same && !job.members[i].ended) continue;
    const bool leaves = std::any_of(
        job.leaving.begin(), job.leaving.end(), [&, node = node_id](const LeavingMember& leaving) {
          return leaving.member.node_id == node && leaving.generation == facts.generation;
        });
    if (leaves || !ledger_->HasProcesses(node_id, before)) continue;
    ledger_->Fail(
        fmt::format("the coordinator holds generation {} of {} on {} for ended, and it runs: GPUs "
                    "and slots are "
                    "free before their processes are gone",
                    facts.generation, job.id(), node_id));
  }
}

void Rules::Remember(const Job& job, Facts& facts) {
  const v1::Job& view = job.view;
  if (IsEnd(facts.state) && view.state() != facts.state) {
    ledger_->Fail(fmt::format("{} had ended as {} and is {}", job.id(), StateName(facts.state),
                              StateName(view.state())));
  }
  if (view.generation() < facts.generation || view.restarts() < facts.restarts) {
    ledger_->Fail(fmt::format("{} goes back from generation {}, restart {} to {}, {}", job.id(),
                              facts.generation, facts.restarts, view.generation(),
                              view.restarts()));
  }
  facts.state = view.state();
  facts.generation = view.generation();
  facts.restarts = view.restarts();
  facts.cancel_requested = job.cancel_requested;
  facts.failure = view.failure().SerializeAsString();
  facts.members.clear();
  if (job.active()) {
    for (const Member& member : job.members) {
      facts.members.emplace_back(member.node_id, member.ended);
    }
  }
  if (IsCharged(view.failure()) && view.failure().generation() < view.generation()) {
    facts.charged.insert(view.failure().generation());
  }
  if (facts.charged.size() > view.spec().max_restarts()) {
    ledger_->Fail(
        fmt::format("{} may restart {} times, and {} of its generations failed before "
                    "the current one",
                    job.id(), view.spec().max_restarts(), facts.charged.size()));
  }
}

void Rules::CheckJob(const Job& job) {
  const v1::Job& view = job.view;
  if (job.queued() && view.reason().empty()) {
    ledger_->Fail(job.id() + " waits without a reason");
  }
  if (job.active() && job.members_alive == 0) {
    ledger_->Fail(
        fmt::format("{} is {} and nobody is left to end it", job.id(), StateName(view.state())));
  }
  const size_t alive = std::count_if(job.members.begin(), job.members.end(),
                                     [](const Member& member) { return !member.ended; });
  if (job.active() && alive != job.members_alive) {
    ledger_->Fail(
        fmt::format("{} counts {} members alive, and {} are", job.id(), job.members_alive, alive));
  }
}

void Rules::CheckPlaces(const Job& job) {
  std::set<std::pair<std::string, int>> places;
  for (const v1::RankStatus& rank : job.view.ranks()) {
    const v1::RankAssignment& assignment = rank.assignment();
    if (places.insert({assignment.node_id(), assignment.local_rank()}).second) continue;
    ledger_->Fail(fmt::format("{} has two ranks in place {} of {}", job.id(),
                              assignment.local_rank(), assignment.node_id()));
  }
}

void Rules::CheckNodes(const StateMachine& machine) {
  struct Held {
    uint32_t slots = 0;
    std::set<uint32_t> gpus;
    std::multiset<std::string> jobs;
  };
  std::map<std::string, Held> held;
  for (const auto& [id, job] : machine.jobs().all()) {
    const auto hold = [&, id = id](const Member& member) {
      Held& on = held[member.node_id];
      on.slots += member.slots;
      on.jobs.insert(id);
      for (const uint32_t gpu : member.gpus) {
        if (on.gpus.insert(gpu).second) continue;
        ledger_->Fail(fmt::format("GPU {} of {} is held by two members", gpu, member.node_id));
      }
    };
    for (const LeavingMember& leaving : job.leaving) hold(leaving.member);
    for (const Member& member : job.members) {
      if (job.active() && !member.ended) hold(member);
    }
  }
  for (const auto& [id, node] : machine.nodes().all()) {
    const Held& on = held[id];
    const auto& used = node.record.gpus_used();
    if (node.record.slots_used() != on.slots || node.jobs != on.jobs ||
        std::set<uint32_t>(used.begin(), used.end()) != on.gpus ||
        static_cast<size_t>(used.size()) != on.gpus.size()) {
      ledger_->Fail(
          fmt::format("{} counts {} slots, {} GPUs and {} jobs in use, and its members "
                      "hold {}, {} and {}",
                      id, node.record.slots_used(), used.size(), node.jobs.size(), on.slots,
                      on.gpus.size(), on.jobs.size()));
    }
    if (on.slots > node.record.resources().slots()) {
      ledger_->Fail(fmt::format("{} of {} slots of {} are given out", on.slots,
                                node.record.resources().slots(), id));
    }
  }
}

// A call waits only for what can still come.
void Rules::CheckBarriers(const StateMachine& machine) {
  for (const auto& [call, request] : coordinator_->open_barriers()) {
    const auto it = machine.jobs().all().find(request.fence().job_id());
    if (it == machine.jobs().all().end() || !it->second.active() ||
        it->second.view.generation() != request.fence().generation()) {
      ledger_->Fail(
          fmt::format("a call waits in barrier '{}' of generation {} of {}, which is over",
                      request.name(), request.fence().generation(), request.fence().job_id()));
      continue;
    }
    for (const v1::RankStatus& rank : it->second.view.ranks()) {
      if (rank.state() != v1::RANK_STATE_EXITED && rank.state() != v1::RANK_STATE_LOST) continue;
      ledger_->Fail(fmt::format("rank {} of {} waits in barrier '{}' for rank {}, which is gone",
                                request.rank(), it->first, request.name(),
                                rank.assignment().rank()));
    }
  }
}

void Rules::OnRestored(const StateMachine& machine) {
  for (auto& [id, facts] : facts_) {
    const auto it = machine.jobs().all().find(id);
    if (it == machine.jobs().all().end()) {
      ledger_->Fail(id + " is forgotten by a restart of the coordinator");
      continue;
    }
    const Job& job = it->second;
    const v1::Job& view = job.view;
    const bool same = view.generation() == facts.generation && view.restarts() == facts.restarts &&
                      job.cancel_requested == facts.cancel_requested &&
                      view.failure().SerializeAsString() == facts.failure;
    if (!same) {
      ledger_->Fail(fmt::format(
          "{} had generation {}, {} restarts and is restored with {}, {}: or its failure or its "
          "cancel is not durable",
          id, facts.generation, facts.restarts, view.generation(), view.restarts()));
    }
    if (facts.state == v1::JOB_STATE_RENDEZVOUS || facts.state == v1::JOB_STATE_ADMITTED) continue;
    if (view.state() != facts.state) {
      ledger_->Fail(fmt::format("{} was {} and is restored as {}", id, StateName(facts.state),
                                StateName(view.state())));
    }
    for (size_t i = 0; i < facts.members.size(); ++i) {
      const auto& [node_id, ended] = facts.members[i];
      if (i < job.members.size() && job.members[i].node_id == node_id &&
          job.members[i].ended == ended) {
        continue;
      }
      ledger_->Fail(fmt::format("member {} of {} on {} is not restored as it was", i, id, node_id));
    }
  }
}

void Rules::CheckNothingLeft(const StateMachine& machine) {
  CheckNodes(machine);
  for (const auto& [id, node] : machine.nodes().all()) {
    if (!node.jobs.empty()) ledger_->Fail(id + " holds jobs after all have ended");
  }
  for (const auto& [call, request] : coordinator_->open_barriers()) {
    ledger_->Fail("a call waits in barrier '" + request.name() + "' after all jobs have ended");
  }
  if (coordinator_->open_call_count() > 0) {
    ledger_->Fail(fmt::format("{} calls are never answered", coordinator_->open_call_count()));
  }
}

}  // namespace meshrun::coordinator::simulation
