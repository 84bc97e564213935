#include "coordinator/state_machine/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "coordinator/state_machine/usage.h"
#include "core/env_entries.h"
#include "core/ids.h"
#include "core/job_spec.h"
#include "core/proto_time.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

constexpr size_t kArrayVariablesBytes = 1 << 10;
// A rank in the table of a generation takes so much less than its status.
constexpr size_t kWorldRanksOfARank = 16;

}  // namespace

std::string_view StateName(v1::JobState state) {
  std::string_view name = v1::JobState_Name(state);
  name.remove_prefix(std::string_view("JOB_STATE_").size());
  return name;
}

std::chrono::nanoseconds Job::kill_grace() const { return KillGrace(view.spec()); }

Member* Job::FindMember(const std::string& node_id) {
  const auto it = member_by_node.find(node_id);
  return it == member_by_node.end() ? nullptr : &members[it->second];
}

Member* Job::FindLiveMember(const std::string& node_id) {
  Member* const member = active() ? FindMember(node_id) : nullptr;
  return member == nullptr || member->ended ? nullptr : member;
}

bool Job::IsOn(int rank, const std::string& node_id) const {
  const auto it = member_by_node.find(node_id);
  if (it == member_by_node.end()) return false;
  return members[it->second].Has(rank);
}

bool Job::HasRunOn(const std::string& node_id) const {
  const auto it = member_by_node.find(node_id);
  return it != member_by_node.end() && !members[it->second].newcomer;
}

bool Job::Avoids(const std::string& node_id) const {
  const auto& avoided = record.avoided_nodes();
  return std::binary_search(avoided.begin(), avoided.end(), node_id) ||
         RefusalOf(node_id) != nullptr;
}

const v1::PrepareRefusal* Job::RefusalOf(const std::string& node_id) const {
  for (const v1::PrepareRefusal& refusal : record.refusals()) {
    if (refusal.node_id() == node_id) return &refusal;
  }
  return nullptr;
}

void Job::DropRefusal(const std::string& node_id) {
  auto& refusals = *record.mutable_refusals();
  refusals.erase(std::remove_if(refusals.begin(), refusals.end(),
                                [&](const auto& refusal) { return refusal.node_id() == node_id; }),
                 refusals.end());
}

PlacementRequest Job::RequestOn(std::vector<const v1::Node*> nodes) const {
  PlacementRequest request{view.spec(), std::move(nodes), {}};
  for (const Member& member : members) request.previous.push_back(member.node_id);
  if (record.has_gpus_per_proc()) request.gpus_per_proc = record.gpus_per_proc();
  return request;
}

void Job::Avoid(const std::string& node_id) {
  auto& avoided = *record.mutable_avoided_nodes();
  if (std::binary_search(avoided.begin(), avoided.end(), node_id)) return;
  *avoided.Add() = node_id;
  std::sort(avoided.begin(), avoided.end());
}

std::chrono::nanoseconds Job::longest_step() const { return FromProto(record.longest_step()); }

Job& JobTable::Add(v1::JobSpec spec, std::string request_id) {
  SeededIdSource ids(context_.random);
  std::string id = NewJobId(ids, spec.name());
  // The ids of the jobs of an array begin with its own.
  for (auto next = jobs_.lower_bound(id); next != jobs_.end() && next->first.starts_with(id);
       next = jobs_.lower_bound(id)) {
    id = NewJobId(ids, spec.name());
  }
  Job* first = nullptr;
  if (!spec.has_array()) {
    first = &AddOne(id, spec);
  } else {
    const v1::JobArray array = spec.array();
    spec.clear_array();
    for (const uint32_t index : array.indices()) {
      v1::JobSpec own = spec;
      SetEnv(*own.mutable_env(), "MESHRUN_ARRAY_ID", id);
      SetEnv(*own.mutable_env(), "MESHRUN_ARRAY_INDEX", fmt::to_string(index));
      SetEnv(*own.mutable_env(), "MESHRUN_ARRAY_SIZE", fmt::to_string(array.indices_size()));
      Job& job = AddOne(fmt::format("{}_{}", id, index), own);
      job.view.set_array_id(id);
      job.view.set_array_index(index);
      job.view.set_array_at_once(array.at_once());
      if (first == nullptr) first = &job;
      SetPhase(job, JobPhase::kQueued, "");
    }
  }
  first->record.set_request_id(std::move(request_id));
  if (!first->record.request_id().empty()) by_request_[first->record.request_id()] = first;
  if (first->view.array_id().empty()) SetPhase(*first, JobPhase::kQueued, "");
  return *first;
}

Job& JobTable::AddOne(const std::string& id, const v1::JobSpec& spec) {
  Job& job = jobs_[id];
  job.view.set_job_id(id);
  *job.view.mutable_spec() = spec;
  *job.record.mutable_env() = TakeEnvironment(*job.view.mutable_spec());
  job.view.set_submitter(context_.user);
  *job.view.mutable_submitted_at() = ToProtoTimestamp(context_.wall);
  job.record.set_submit_sequence(next_sequence_++);
  job.record.set_held(job.view.spec().hold());
  *job.record.mutable_waits_for() = job.view.spec().after();
  if (spec.private_()) context_.private_jobs[id] = context_.user;
  context_.Record("JobSubmitted", id, "", "submitted");
  by_sequence_[job.record.submit_sequence()] = &job;
  CountBytes(job);
  return job;
}

absl::Status JobTable::CheckRoom(const v1::JobSpec& spec) const {
  // As AddOne keeps it; of an array each job has three variables more.
  v1::JobSpec kept = spec;
  kept.clear_array();
  const EnvEntries env = TakeEnvironment(kept);
  const size_t jobs = spec.has_array() ? static_cast<size_t>(spec.array().indices_size()) : 1;
  const size_t more = spec.has_array() ? kArrayVariablesBytes : 0;
  return kept_.CheckRoom(context_.user, jobs * (KeptJobs::BytesOf(kept, env) + more),
                         context_.retention.job_bytes());
}

void JobTable::CountBytes(Job& job) {
  size_t bytes = KeptJobs::BytesOf(job.view.spec(), job.record.env());
  if (job.ended()) {
    size_t ranks = static_cast<size_t>(job.view.ranks_size());
    for (const auto& [generation, world] : job.worlds)
      ranks += static_cast<size_t>(world->ranks_size()) / kWorldRanksOfARank;
    bytes += KeptJobs::kRankBytes * ranks;
  }
  const size_t before = std::exchange(job.kept_bytes, bytes);
  kept_.Change(job.view.submitter(), before, bytes,
               job.ended() ? static_cast<ptrdiff_t>(bytes) : ptrdiff_t{0});
}

std::vector<Job*> JobTable::OfArray(const std::string& array_id) {
  std::vector<Job*> out;
  if (array_id.empty()) return out;
  const std::string prefix = array_id + "_";
  for (auto it = jobs_.lower_bound(prefix); it != jobs_.end() && it->first.starts_with(prefix);
       ++it) {
    if (it->second.view.array_id() == array_id) out.push_back(&it->second);
  }
  std::sort(out.begin(), out.end(), [](const Job* a, const Job* b) {
    return a->view.array_index() < b->view.array_index();
  });
  return out;
}

Job* JobTable::Find(const std::string& job_id) {
  const auto it = jobs_.find(job_id);
  return it == jobs_.end() ? nullptr : &it->second;
}

Job* JobTable::FindRequest(const std::string& request_id) {
  const auto it = by_request_.find(request_id);
  return it == by_request_.end() ? nullptr : it->second;
}

absl::StatusOr<Job*> JobTable::Lookup(const std::string& text) {
  if (Job* exact = Find(text); exact != nullptr) return exact;
  std::vector<Job*> matches;
  if (!text.empty()) {
    for (auto it = jobs_.lower_bound(text); it != jobs_.end() && it->first.starts_with(text);
         ++it) {
      matches.push_back(&it->second);
    }
  }
  if (matches.size() == 1) return matches.front();
  if (matches.empty()) {
    return absl::NotFoundError(fmt::format(
        "no job '{}' among the {} that are known: `meshrun ps` lists them", text, jobs_.size()));
  }
  if (const std::string& array = matches.front()->view.array_id(); array == text) {
    return absl::NotFoundError(
        fmt::format("'{}' is an array of {} jobs: name one of them, for example {}", text,
                    matches.size(), matches.front()->id()));
  }
  return absl::NotFoundError(
      fmt::format("'{}' matches {} jobs, {} and {} among them: write more of the id", text,
                  matches.size(), matches[0]->id(), matches[1]->id()));
}

absl::StatusOr<std::vector<Job*>> JobTable::Named(const std::string& id) {
  std::vector<Job*> jobs = OfArray(id);
  if (!jobs.empty()) return jobs;
  MESHRUN_ASSIGN_OR_RETURN(Job* const one, Lookup(id));
  return std::vector<Job*>{one};
}

void JobTable::SetPhase(Job& job, JobPhase phase, std::string reason) {
  const JobPhase from = job.phase();
  if (from != phase && !MayFollow(from, phase)) {
    const std::string change = fmt::format("job {} goes from phase '{}' to '{}'", job.id(),
                                           OnDisk(from).name, OnDisk(phase).name);
    context_.Warn(change + ", which is not foreseen: please report it");
    if (wrong_change_.empty()) wrong_change_ = change;
  }
  Enter(job, phase, std::move(reason));
}

void JobTable::Enter(Job& job, JobPhase phase, std::string reason) {
  const PhaseOnDisk& entered = OnDisk(phase);
  const v1::JobState state = entered.state;
  const bool was_queued = job.queued();
  const v1::JobState left = job.view.state();
  const bool same_state = left == state;
  if (job.phase() == phase && job.view.reason() == reason) return;
  job.view.set_state(state);
  job.record.set_survivors_wait(entered.survivors_wait);
  job.record.set_quiesce_asked(entered.quiesce_asked);
  job.view.set_reason(std::move(reason));
  Changed(job);
  if (same_state) return;
  if (job.queued() || job.ended()) job.ShowFormerProgress();
  context_.tallies.OnState(job.tally, job.view.submitter(), left, state,
                           static_cast<uint32_t>(job.view.ranks_size()), context_.now);
  Count(job);
  IndexWaits(job);
  // Ranks that are told to end go on; new ones have never been paused.
  if (state != v1::JOB_STATE_RUNNING) {
    job.record.clear_paused_ranks();
    job.told_to_go_on.clear();
    job.view.clear_paused_since();
  }
  if (state == v1::JOB_STATE_RUNNING && MaxNodes(job.view.spec()) > MinNodes(job.view.spec())) {
    elastic_.insert(job.id());
    // Growth is to say what it waits for.
    if (!job.leaving.empty()) context_.placement_due = true;
  } else {
    elastic_.erase(job.id());
  }
  run_clock_.OnState(job.view);
  if (!was_queued || !job.queued()) deadlines_.Clear(job.id());
  if (job.queued()) {
    if (!was_queued) Enqueue(job);
    return;
  }
  // A host that cannot prepare it puts it back: it has waited all the while.
  const bool starts = state == v1::JOB_STATE_ADMITTED || state == v1::JOB_STATE_RENDEZVOUS;
  LeaveQueue(job, starts);
  job.record.clear_queue_note();
  if (!starts) job.queued_since.reset();
  if (state == v1::JOB_STATE_RENDEZVOUS) {
    deadlines_.Set(job.id(), context_.now + kPrepareTimeout);
  } else if (state == v1::JOB_STATE_QUIESCING) {
    SetStopDeadline(job);
  } else if (job.ended()) {
    *job.view.mutable_finished_at() = ToProtoTimestamp(context_.wall);
    job.curve.End();
    job.stepped.clear();
    job.quiesced.clear();
    ended_.insert({context_.wall, job.record.submit_sequence()});
    usage_.Append(context_, context_.retention.usage_records(),
                  UsageOf(job, context_.held_times.Of(job.id(), context_.wall)));
    context_.held_times.Forget(job.id());
    if (kept_.IsShortened(job.view.submitter(), job.kept_bytes, context_.retention.job_bytes()))
      Shorten(job.view.mutable_spec(), &job.record);
    CountBytes(job);
  }
}

void JobTable::SetStopDeadline(const Job& job) {
  SetDeadline(job, context_.now + StopGrace(job) + kStopSlack);
}

std::chrono::nanoseconds JobTable::StopGrace(const Job& job) const {
  return std::min(job.stop_grace(), MostKillGrace(ScopesOf(job)));
}

void JobTable::ShortenStop(Job& job, std::chrono::nanoseconds grace) {
  const SteadyNanos by = context_.now + grace + kStopSlack;
  const auto deadline = deadlines_.Of(job.id());
  if (deadline.has_value() && *deadline > by) deadlines_.Set(job.id(), by);
}

std::string JobTable::ReasonOf(const Job& job) const {
  return job.queued() && reason_of ? reason_of(job) : job.view.reason();
}

v1::Job JobTable::View(const Job& job, bool with_ranks) const {
  // Swapped out for the copy: there may be thousands.
  v1::Job& view = const_cast<Job&>(job).view;
  v1::Job parts;
  parts.mutable_ranks()->Swap(view.mutable_ranks());
  parts.mutable_groups()->Swap(view.mutable_groups());
  v1::Job out = view;
  parts.mutable_ranks()->Swap(view.mutable_ranks());
  parts.mutable_groups()->Swap(view.mutable_groups());
  if (job.queued()) out.set_reason(ReasonOf(job));
  if (!with_ranks) return out;
  *out.mutable_groups() = view.groups();
  AddRanks(job, 0, view.ranks_size(), &out);
  return out;
}

void JobTable::AddRanks(const Job& job, int first, int count, v1::Job* out) const {
  const v1::Job& view = job.view;
  for (int i = first; i < std::min(first + count, view.ranks_size()); ++i) {
    v1::RankStatus& rank = *out->add_ranks();
    rank = view.ranks(i);
    if (rank.has_exit() && job.HidesLastLines(i)) rank.mutable_exit()->clear_last_lines();
  }
}

void JobTable::Changed(Job& job, const Member& member) {
  changed_.insert(job.id());
  changed_members_.insert({job.id(), static_cast<size_t>(&member - job.members.data())});
}

void JobTable::NewGeneration(Job& job, uint64_t previous_generation) {
  for (auto it = changed_members_.lower_bound({job.id(), 0});
       it != changed_members_.end() && it->first == job.id();) {
    it = changed_members_.erase(it);
  }
  if (previous_generation != 0) {
    const auto previous = job.worlds.find(previous_generation);
    const int nodes = previous == job.worlds.end() ? 0 : previous->second->addresses_size();
    for (int i = 0; i < nodes; ++i)
      context_.Erase(v1::STATE_TABLE_MEMBERS, MemberKey(job, previous_generation, i));
    for (const LeavingMember& leaving : job.leaving) {
      if (leaving.generation == previous_generation) WriteLeaving(job, leaving);
    }
  }
  const v1::World& world = *job.worlds.at(job.view.generation());
  context_.Put(v1::STATE_TABLE_WORLDS, GenerationKey(job.id(), job.view.generation()), world);
  for (const Member& member : job.members) Changed(job, member);
  if (!job.queued()) Count(job);
  DropOldWorlds(job);
}

// A job may live through any number of generations.
void JobTable::DropOldWorlds(Job& job) {
  size_t kept = 0;
  int ranks = 0;
  auto it = job.worlds.end();
  while (it != job.worlds.begin()) {
    ranks += std::prev(it)->second->ranks_size();
    if (++kept > kMaxWorlds || (kept > 1 && ranks > kMaxWorldRanks)) break;
    --it;
  }
  for (auto old = job.worlds.begin(); old != it; old = job.worlds.erase(old)) {
    context_.Erase(v1::STATE_TABLE_WORLDS, GenerationKey(job.id(), old->first));
  }
}

void JobTable::Leave(Job& job, const Member& member, bool stuck) {
  const size_t node_rank = static_cast<size_t>(&member - job.members.data());
  job.leaving.push_back({job.view.generation(), node_rank, member, stuck});
  Changed(job, member);
  Count(job);
}

void JobTable::Stuck(Job& job, size_t index) {
  LeavingMember& leaving = job.leaving[index];
  leaving.stuck = true;
  if (leaving.generation == job.view.generation()) {
    Changed(job, job.members[leaving.node_rank]);
  } else {
    WriteLeaving(job, leaving);
  }
}

void JobTable::Left(Job& job, size_t index) {
  const LeavingMember left = std::move(job.leaving[index]);
  job.leaving.erase(job.leaving.begin() + static_cast<ptrdiff_t>(index));
  Count(job);
  if (left.generation == job.view.generation()) {
    if (left.node_rank < job.members.size()) Changed(job, job.members[left.node_rank]);
  } else {
    context_.Erase(v1::STATE_TABLE_MEMBERS, MemberKey(job, left.generation, left.node_rank));
    // For how long it held what it held stands there.
    Changed(job);
  }
}

int JobTable::ListGroup(const Job& job, const v1::ListJobsRequest& request) {
  if (!request.running_first()) return 0;
  return job.ended() ? 2 : job.queued() ? 1 : 0;
}

std::vector<const Job*> JobTable::List(const v1::ListJobsRequest& request, ListPlace place,
                                       size_t limit) const {
  const auto& states = request.states();
  const auto wanted = [&](const Job& job) {
    if (request.active_only() && job.ended()) return false;
    if (!request.user().empty() && job.view.submitter() != request.user()) return false;
    if (!request.array_id().empty() && job.view.array_id() != request.array_id()) return false;
    return states.empty() ||
           std::find(states.begin(), states.end(), job.view.state()) != states.end();
  };
  std::vector<const Job*> out;
  for (; place.group < 3 && out.size() < limit; place = {place.group + 1, 0}) {
    auto it = place.before == 0 ? by_sequence_.end() : by_sequence_.lower_bound(place.before);
    while (it != by_sequence_.begin() && out.size() < limit) {
      const Job& job = *(--it)->second;
      if (ListGroup(job, request) == place.group && wanted(job)) out.push_back(&job);
    }
  }
  return out;
}

Job* JobTable::PopDue() {
  const auto job_id = deadlines_.PopDue(context_.now);
  return job_id.has_value() ? Find(*job_id) : nullptr;
}

void JobTable::Progressed(Job& job, const v1::Progress* report) {
  if (report != nullptr) job.curve.Add(*report, context_.wall);
  progressed_.insert(job.id());
}

void JobTable::AddWatcher(const Job& job, uint64_t call_id, const v1::WatchJobRequest& request) {
  watchers_.Add(job, call_id, request,
                [this](const Job& j, bool with_ranks) { return View(j, with_ranks); });
}

void JobTable::Tell(const Job& job) {
  watchers_.Tell(job, [this](const Job& j, bool with_ranks) { return View(j, with_ranks); });
}

}  // namespace meshrun::coordinator
