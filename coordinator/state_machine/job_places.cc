// A job's place in the queue: whose turn it takes, what holds it back, what it counts as.
#include <algorithm>

#include "coordinator/state_machine/jobs.h"
#include "core/job_spec.h"
#include "core/proto_time.h"

namespace meshrun::coordinator {
namespace {

bool HasQuota(const v1::UserLimits& limits) {
  return limits.has_running_jobs() || limits.has_running_ranks() || limits.has_running_gpus() ||
         limits.has_ranks();
}

// What the job asks for, as far as it says.
uint64_t LeastSlots(const v1::JobSpec& spec) {
  return uint64_t{MinNodes(spec)} * std::max(spec.procs_per_node().count(), 1u) * CpusPerProc(spec);
}

}  // namespace

std::vector<PolicyScope> JobTable::ScopesOf(const Job& job) const {
  const v1::JobSpec& spec = job.view.spec();
  std::vector<PolicyScope> scopes = coordinator::ScopesOf(context_.policy, job.view.submitter(),
                                                          spec.account(), spec.partition());
  if (job.view.array_at_once() > 0) {
    PolicyScope& array = scopes.emplace_back();
    array.kind = v1::LimitScope::KIND_ARRAY;
    array.name = job.view.array_id();
    array.limits.set_running_jobs(job.view.array_at_once());
  }
  return scopes;
}

void JobTable::Count(Job& job) {
  JobUsage usage;
  if (job.queued()) usage.queued_jobs = 1;
  if (!job.queued() && !job.ended()) {
    usage.running_jobs = 1;
    usage.ranks = job.view.world_size();
    for (const Member& member : job.members)
      usage.gpus += static_cast<uint32_t>(member.gpus.size());
  }
  for (const LeavingMember& leaving : job.leaving) {
    // Those of the generation that runs are among its members.
    if (usage.running_jobs == 1 && leaving.generation == job.view.generation()) continue;
    usage.ranks += static_cast<uint32_t>(leaving.member.rank_count);
    usage.gpus += static_cast<uint32_t>(leaving.member.gpus.size());
  }
  std::vector<std::string> scopes;
  bool has_quota = false;
  for (const PolicyScope& scope : ScopesOf(job)) {
    scopes.push_back(scope.Key());
    has_quota |= HasQuota(scope.limits);
  }
  const JobUsage before = job.counted.usage;
  const std::string of_submitter = scopes.front();
  quotas_.Set(job.counted, std::move(scopes), usage);
  // What was freed may be what another waits for.
  const bool less = usage.running_jobs < before.running_jobs || usage.ranks < before.ranks ||
                    usage.gpus < before.gpus;
  if (has_quota && less) context_.placement_due = true;
  const JobUsage of_user = quotas_.Of(of_submitter);
  if (of_user.queued_jobs == 0 && of_user.running_jobs == 0) turns_.Forget(job.view.submitter());
}

void JobTable::OnPolicy() {
  for (auto& [id, job] : jobs_) {
    if (job.ended()) continue;
    Count(job);
    if (queue_.Find(id) != nullptr) Enqueue(job);
  }
}

void JobTable::IndexWaits(const Job& job) {
  for (const std::string& text : job.record.waits_for()) {
    const std::string awaited = text.substr(text.find(':') + 1);
    if (!job.ended()) {
      waiting_for_[awaited].insert(job.id());
    } else if (const auto all = waiting_for_.find(awaited); all != waiting_for_.end()) {
      all->second.erase(job.id());
      if (all->second.empty()) waiting_for_.erase(all);
    }
  }
  if (job.ended() && waiting_for_.contains(job.id())) awaited_ended_.push_back(job.id());
}

void JobTable::WaitsForLess(Job& job) {
  Changed(job);
  if (job.record.waits_for().empty() && job.queued()) Enqueue(job);
}

std::vector<std::string> JobTable::WaitingFor(const std::string& job_id) const {
  const auto all = waiting_for_.find(job_id);
  if (all == waiting_for_.end()) return {};
  return {all->second.begin(), all->second.end()};
}

std::vector<std::string> JobTable::Awaited() const {
  std::vector<std::string> ids;
  for (const auto& [id, waiting] : waiting_for_) ids.push_back(id);
  return ids;
}

void JobTable::LeaveQueue(Job& job, bool starts) {
  if (queue_.Find(job.id()) == nullptr) return;
  const int32_t priority = job.view.spec().priority();
  const Turn turn = *job.turn();
  const uint64_t earliest = EarliestTurn(priority).value_or(turn.begin);
  queue_.Erase(job.id());
  if (starts) {
    turns_.Start(priority, job.view.submitter(), turn, earliest);
  } else {
    turns_.Leave(priority, job.view.submitter(), turn);
  }
}

std::optional<uint64_t> JobTable::EarliestTurn(int32_t priority) const {
  const int64_t level = -int64_t{priority};
  QueuePlace place{.level = level};
  // A parked job could not be placed, and one over its quota may not.
  while (const auto entry = queue_.NextFront(place)) {
    if (entry->place.level != level) break;
    if (!entry->shape->over_quota) return entry->place.turn;
    place = entry->place;
  }
  return std::nullopt;
}

void JobTable::ForgetTurn(Job& job) {
  LeaveQueue(job, /*starts=*/false);
  job.record.clear_turn_begin();
  job.record.clear_turn_end();
}

void JobTable::Enqueue(Job& job) {
  LeaveQueue(job, /*starts=*/false);
  if (job.record.held() || !job.record.waits_for().empty()) {
    deadlines_.Clear(job.id());
    job.queued_since.reset();
    return;
  }
  // What it has run already, and the nodes that it avoids, are its own.
  const bool alone = job.view.has_run_time() || job.avoids_nodes() || !job.leaving.empty() ||
                     job.record.has_gpus_per_proc();
  const v1::JobSpec& spec = job.view.spec();
  if (const auto turn = job.turn()) {
    turns_.JoinAgain(spec.priority(), job.view.submitter(), *turn);
  } else {
    const Turn first = turns_.Join(spec.priority(), job.view.submitter(), LeastSlots(spec),
                                   WeightOf(context_.policy, job.view.submitter()));
    job.record.set_turn_begin(first.begin);
    job.record.set_turn_end(first.end);
  }
  std::string apart = alone ? job.id() : "";
  for (const PolicyScope& scope : ScopesOf(job)) {
    if (HasQuota(scope.limits)) apart += scope.Key() + '\n';
  }
  queue_.Insert(job.place(), job.id(), spec, apart);
  if (!job.queued_since.has_value()) job.queued_since = context_.now;
  if (job.view.spec().has_queue_timeout() && !deadlines_.Of(job.id()).has_value()) {
    deadlines_.Set(job.id(), *job.queued_since + FromProto(job.view.spec().queue_timeout()));
  }
}

void JobTable::ForgiveNode(const std::string& node_id) {
  for (auto& [id, job] : jobs_) {
    if (!job.queued() || job.RefusalOf(node_id) == nullptr) continue;
    job.DropRefusal(node_id);
    job.record.clear_queue_note();
    Changed(job);
  }
}

void JobTable::SetHeld(Job& job, bool held) {
  // Else jobs that were held would all go before those that others have queued since.
  if (!held && job.queued()) ForgetTurn(job);
  job.record.set_held(held);
  Changed(job);
  if (job.queued()) Enqueue(job);
}

void JobTable::SetPriority(Job& job, int32_t priority) {
  ForgetTurn(job);
  job.view.mutable_spec()->set_priority(priority);
  Changed(job);
  if (job.queued()) Enqueue(job);
}

}  // namespace meshrun::coordinator
