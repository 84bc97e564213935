#include "tests/coordinator/simulation/rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/job_spec.h"

namespace meshrun::coordinator::simulation {
namespace {

// Its generation's end is charged to the job when another one follows.
bool IsCharged(const v1::Failure& failure) {
  return !failure.planned() && failure.cause() != v1::FAILURE_CAUSE_QUEUE_TIMEOUT &&
         failure.cause() != v1::FAILURE_CAUSE_UNSPECIFIED;
}

bool IsEnd(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

// Whether the node has enough that nobody uses.
bool HasRoom(const v1::Node& node, const v1::JobSpec& spec) {
  const v1::Resources& all = node.resources();
  const uint64_t procs = spec.procs_per_node().count();
  return node.slots_used() + procs * CpusPerProc(spec) <= all.slots() &&
         node.memory_used_bytes() + procs * spec.memory_bytes() <= all.memory_bytes() &&
         node.gpus_used_size() + procs * spec.gpus_per_proc() <=
             static_cast<uint64_t>(all.gpus_size());
}

}  // namespace

void Rules::OnCommitted(const StateMachine& machine, const std::vector<v1::StateRow>& rows) {
  std::set<std::string> changed;
  for (const v1::StateRow& row : rows) {
    if (row.table() != v1::STATE_TABLE_JOBS && row.table() != v1::STATE_TABLE_MEMBERS) continue;
    changed.insert(row.key().substr(0, row.key().find('/')));
    if (row.table() == v1::STATE_TABLE_JOBS && !row.erased()) {
      facts_[row.key()].record.ParseFromString(row.value());
    }
  }
  for (const std::string& id : changed) {
    const auto it = machine.jobs().all().find(id);
    if (it == machine.jobs().all().end()) {
      const auto facts = facts_.find(id);
      if (facts == facts_.end()) continue;
      if (!IsEnd(facts->second.state)) ledger_->Fail(id + " is forgotten before it has ended");
      facts_.erase(facts);
      ++forgotten_;
      continue;
    }
    Facts& facts = facts_[id];
    CheckEndedMembers(it->second, facts);
    CheckCheckpoint(it->second, facts);
    if (it->second.view.generation() != facts.generation) {
      CheckPlaces(it->second);
      if (facts.generation == 0) ++placed_;
      const Told& told = told_[id];
      if (told.generation == facts.generation) facts.reached = std::max(facts.reached, told.step);
    }
    CheckGrowth(machine, it->second, facts);
    Remember(it->second, facts);
    CheckJob(machine, it->second);
  }
  if (++batches_ % interval_ != 0) return;
  CheckNodes(machine);
  CheckFences(machine);
  CheckBarriers(machine);
  CheckQueueWaits(machine);
  for (const auto& [id, job] : machine.jobs().all()) CheckRow(machine, job, facts_[id], "holds");
}

// What the coordinator knows of a job is what its row says: nothing is changed without being
// written, and nothing is forgotten by a restart.
void Rules::CheckRow(const StateMachine& machine, const Job& job, const Facts& facts,
                     std::string_view when) {
  const auto text = [](v1::JobRecord record, v1::Job view) {
    // Times are relative to another clock; steps and the revision are not durable.
    record.clear_job();
    record.clear_generation_since();
    record.clear_queued_since();
    record.clear_not_before();
    record.clear_held_time();
    record.clear_reached_step();
    view.clear_ranks();
    view.clear_progress();
    view.clear_revision();
    *record.mutable_job() = std::move(view);
    return record.ShortDebugString();
  };
  const std::string written = text(facts.record, facts.record.job());
  const std::string known = text(machine.jobs().RecordWithoutView(job), job.view);
  if (written == known) return;
  ledger_->Fail(fmt::format("of {} the coordinator {} what its row does not say: {} / {}", job.id(),
                            when, known, written));
}

// What a member holds is held, by itself or by one that follows it, until its processes have truly
// ended.
void Rules::CheckEndedMembers(const Job& job, Facts& facts) {
  for (const KnownMember& member : facts.members) {
    const std::string& node_id = member.node_id;
    if (member.ended || !ledger_->HasProcesses(node_id, job.id())) continue;
    const auto there = job.member_by_node.find(node_id);
    const bool holds =
        job.active() && there != job.member_by_node.end() && !job.members[there->second].ended;
    const bool leaves = std::any_of(
        job.leaving.begin(), job.leaving.end(),
        [&](const LeavingMember& leaving) { return leaving.member.node_id == node_id; });
    if (holds || leaves) continue;
    ledger_->Fail(
        fmt::format("the coordinator holds generation {} of {} on {} for ended, and it runs: GPUs "
                    "and slots are "
                    "free before their processes are gone",
                    facts.generation, job.id(), node_id));
  }
}

// One line of checkpoints: each is of a later step than the one before, of no earlier generation,
// and written by the generation that committed it.
void Rules::CheckCheckpoint(const Job& job, Facts& facts) {
  if (job.writes_are_fenced()) ledger_->SetWritesFenced(job.id());
  for (const v1::CheckpointCommit& commit : job.view.checkpoints()) {
    const std::pair<int64_t, uint64_t> newest{commit.step(), commit.generation()};
    if (newest == facts.checkpoint) continue;
    if (commit.digest() != std::to_string(commit.generation())) {
      ledger_->Fail(
          fmt::format("generation {} has written step {} of {}, and it is committed as "
                      "generation {}'s",
                      commit.digest(), commit.step(), job.id(), commit.generation()));
    }
    if (newest.first <= facts.checkpoint.first || newest.second < facts.checkpoint.second) {
      ledger_->Fail(fmt::format(
          "the newest checkpoint of {} goes from step {} of generation {} to "
          "step {} of generation {}",
          job.id(), facts.checkpoint.first, facts.checkpoint.second, newest.first, newest.second));
    }
    facts.checkpoint = newest;
  }
}

// Ranks that are asked to stand still without a checkpoint are to become more: there are nodes for
// that when they are asked.
void Rules::CheckGrowth(const StateMachine& machine, const Job& job, const Facts& facts) {
  if (job.phase() != JobPhase::kAskedToQuiesce || facts.asked_to_quiesce ||
      job.record.save_asked()) {
    return;
  }
  size_t fit = 0;
  for (const v1::Node* node : machine.nodes().Present(/*healthy_only=*/true)) {
    const auto place = job.member_by_node.find(node->node_id());
    const bool runs_there = place != job.member_by_node.end() && !job.members[place->second].ended;
    fit += runs_there || HasRoom(*node, job.view.spec());
  }
  const size_t next = std::min<size_t>(fit, MaxNodes(job.view.spec()));
  if (next > job.members.size()) return;
  ledger_->Fail(fmt::format("{} stands still to grow beyond {} nodes, and {} can take it", job.id(),
                            job.members.size(), fit));
}

// Nothing computes on a lost node once its fence time is over on the coordinator's clock.
void Rules::CheckFences(const StateMachine& machine) {
  const SteadyNanos now = coordinator_->Now();
  for (const auto& [id, node] : machine.nodes().all()) {
    if (!node.lost() || now < node.fence()) continue;
    const std::string computes = ledger_->ComputesOn(id);
    if (computes.empty()) continue;
    ledger_->Fail(
        fmt::format("{} computes on {}, which is lost, after its fence time", computes, id));
  }
}

Rules::KnownMember Rules::Known(const Member& member) {
  return {member.node_id, member.ended, member.slots, member.memory_bytes, member.gpus};
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
  facts.restarts_charged = view.restarts_charged();
  facts.cancel_requested = job.record.cancel_requested();
  facts.asked_to_quiesce = job.asked_to_quiesce();
  facts.failure = view.failure().SerializeAsString();
  facts.members.clear();
  if (job.active()) {
    for (const Member& member : job.members) facts.members.push_back(Known(member));
  }
  facts.leaving.clear();
  for (const LeavingMember& leaving : job.leaving) {
    facts.leaving[{leaving.generation, leaving.node_rank}] = Known(leaving.member);
  }
  if (IsCharged(view.failure()) && view.failure().generation() < view.generation()) {
    facts.charged.insert(view.failure().generation());
  }
  if (facts.charged.size() > view.restarts() ||
      view.restarts_charged() > view.spec().max_restarts()) {
    ledger_->Fail(fmt::format(
        "{} generations of {} failed at its charge before the current one; it counts {} restarts, "
        "{} of {} charged",
        facts.charged.size(), job.id(), view.restarts(), view.restarts_charged(),
        view.spec().max_restarts()));
  }
}

void Rules::CheckJob(const StateMachine& machine, const Job& job) {
  const v1::Job& view = job.view;
  if (const std::string& wrong = machine.jobs().wrong_change(); !wrong.empty()) {
    ledger_->Fail(wrong + ", which the table of phases does not have");
  }
  if (job.queued() && machine.jobs().ReasonOf(job).empty()) {
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
    uint64_t memory_bytes = 0;
    std::set<uint32_t> gpus;
    std::multiset<std::string> jobs;
  };
  std::map<std::string, Held> held;
  for (const auto& [id, job] : machine.jobs().all()) {
    const auto hold = [&, id = id](const Member& member) {
      Held& on = held[member.node_id];
      on.slots += member.slots;
      on.memory_bytes += member.memory_bytes;
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
    if (node.record.quarantined() && !node.record.drained()) {
      ledger_->Fail(id + " is in quarantine and takes jobs");
    }
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
    if (node.record.memory_used_bytes() != on.memory_bytes ||
        on.memory_bytes > node.record.resources().memory_bytes()) {
      ledger_->Fail(
          fmt::format("{} counts {} of {} bytes of memory in use, and its members hold {}", id,
                      node.record.memory_used_bytes(), node.record.resources().memory_bytes(),
                      on.memory_bytes));
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
