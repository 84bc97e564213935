#include "coordinator/state_machine/jobs.h"

#include <fmt/format.h>

#include "core/ids.h"
#include "core/job_spec.h"
#include "core/proto_time.h"

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::seconds kPrepareTimeout(30);
// Time after the grace for SIGKILL to take effect and for the worker to report it.
constexpr std::chrono::seconds kStopSlack(30);
constexpr char kHidden[] = "(hidden)";

// The values of the environment, which stay out of what people see.
google::protobuf::Map<std::string, std::string> TakeEnvironment(v1::JobSpec& spec) {
  google::protobuf::Map<std::string, std::string> env = spec.env();
  for (auto& [name, value] : *spec.mutable_env()) value = kHidden;
  return env;
}

std::string MemberKey(const Job& job, uint64_t generation, size_t node_rank) {
  return GenerationKey(job.id(), generation) + "/" + KeyNumber(node_rank);
}

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

Job& JobTable::Add(v1::JobSpec spec, std::string request_id) {
  SeededIdSource ids(context_.random);
  std::string id = NewJobId(ids, spec.name());
  while (jobs_.contains(id)) id = NewJobId(ids, spec.name());
  Job& job = jobs_[id];
  job.view.set_job_id(id);
  *job.view.mutable_spec() = std::move(spec);
  job.env = TakeEnvironment(*job.view.mutable_spec());
  job.view.set_submitter(context_.user);
  *job.view.mutable_submitted_at() = ToProtoTimestamp(context_.wall);
  job.submit_sequence = next_sequence_++;
  job.request_id = std::move(request_id);
  by_sequence_[job.submit_sequence] = id;
  if (!job.request_id.empty()) by_request_[job.request_id] = id;
  context_.Record("JobSubmitted", id, "", "submitted");
  SetState(job, v1::JOB_STATE_QUEUED, "");
  return job;
}

Job* JobTable::Find(const std::string& job_id) {
  const auto it = jobs_.find(job_id);
  return it == jobs_.end() ? nullptr : &it->second;
}

Job* JobTable::FindRequest(const std::string& request_id) {
  const auto it = by_request_.find(request_id);
  return it == by_request_.end() ? nullptr : Find(it->second);
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
  return absl::NotFoundError(
      fmt::format("'{}' matches {} jobs, {} and {} among them: write more of the id", text,
                  matches.size(), matches[0]->id(), matches[1]->id()));
}

void JobTable::SetState(Job& job, v1::JobState state, std::string reason) {
  const bool was_queued = job.queued();
  const bool same_state = job.view.state() == state;
  if (same_state && job.view.reason() == reason) return;
  job.view.set_state(state);
  job.view.set_reason(std::move(reason));
  Changed(job);
  if (same_state) return;
  if (state == v1::JOB_STATE_RUNNING && MaxNodes(job.view.spec()) > MinNodes(job.view.spec())) {
    elastic_.insert(job.id());
  } else {
    elastic_.erase(job.id());
  }
  const std::pair<int64_t, uint64_t> place{-int64_t{job.view.spec().priority()},
                                           job.submit_sequence};
  if (!was_queued || !job.queued()) deadlines_.Clear(job.id());
  if (job.queued()) {
    queue_.insert(place);
    context_.placement_due = true;
    if (job.view.spec().has_queue_timeout() && !was_queued) {
      deadlines_.Set(job.id(), context_.now + FromProto(job.view.spec().queue_timeout()));
    }
    return;
  }
  queue_.erase(place);
  if (state == v1::JOB_STATE_RENDEZVOUS) {
    deadlines_.Set(job.id(), context_.now + kPrepareTimeout);
  } else if (state == v1::JOB_STATE_QUIESCING) {
    SetStopDeadline(job);
  } else if (job.ended()) {
    *job.view.mutable_finished_at() = ToProtoTimestamp(context_.wall);
    ended_.insert(job.submit_sequence);
  }
}

void JobTable::SetStopDeadline(const Job& job) {
  SetDeadline(job, context_.now + job.stop_grace() + kStopSlack);
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
}

void JobTable::Leave(Job& job, const Member& member, bool stuck) {
  const size_t node_rank = static_cast<size_t>(&member - job.members.data());
  job.leaving.push_back({job.view.generation(), node_rank, member, stuck});
  Changed(job, member);
}

void JobTable::Left(Job& job, size_t index) {
  const LeavingMember left = std::move(job.leaving[index]);
  job.leaving.erase(job.leaving.begin() + static_cast<ptrdiff_t>(index));
  if (left.generation == job.view.generation()) {
    if (left.node_rank < job.members.size()) Changed(job, job.members[left.node_rank]);
  } else {
    context_.Erase(v1::STATE_TABLE_MEMBERS, MemberKey(job, left.generation, left.node_rank));
  }
}

std::vector<Job*> JobTable::Queue() {
  std::vector<Job*> out;
  for (const auto& [priority, sequence] : queue_) out.push_back(Find(by_sequence_.at(sequence)));
  return out;
}

std::vector<const Job*> JobTable::Newest(uint64_t before, size_t limit, bool active_only) const {
  std::vector<const Job*> out;
  auto it = before == 0 ? by_sequence_.end() : by_sequence_.lower_bound(before);
  while (it != by_sequence_.begin() && out.size() < limit) {
    const Job& job = jobs_.at((--it)->second);
    if (!active_only || !job.ended()) out.push_back(&job);
  }
  return out;
}

Job* JobTable::PopDue() {
  const auto job_id = deadlines_.PopDue(context_.now);
  return job_id.has_value() ? Find(*job_id) : nullptr;
}

void JobTable::RemoveWatcher(uint64_t call_id) {
  for (auto it = watchers_.begin(); it != watchers_.end(); ++it) {
    if (it->second.erase(call_id) == 0) continue;
    if (it->second.empty()) watchers_.erase(it);
    context_.Reply(call_id, absl::CancelledError("the watcher went away"));
    return;
  }
}

void JobTable::Index(const Job& job) {
  by_sequence_[job.submit_sequence] = job.id();
  next_sequence_ = std::max(next_sequence_, job.submit_sequence + 1);
  if (!job.request_id.empty()) by_request_[job.request_id] = job.id();
  if (job.ended()) ended_.insert(job.submit_sequence);
}

void JobTable::Restore(const std::vector<v1::StateRow>& rows) {
  for (const v1::StateRow& row : rows) {
    if (row.table() == v1::STATE_TABLE_JOBS) {
      v1::JobRecord record;
      if (!record.ParseFromString(row.value()) || record.job().job_id() != row.key()) {
        context_.Damaged(row);
        continue;
      }
      Job& job = jobs_[row.key()];
      job.view = std::move(*record.mutable_job());
      job.submit_sequence = record.submit_sequence();
      job.request_id = record.request_id();
      job.cancel_requested = record.cancel_requested();
      job.cancel_reason = record.cancel_reason();
      job.cancel_now = record.cancel_now();
      job.failures_without_progress = record.failures_without_progress();
      job.progress_step = record.progress_step();
      job.survivors_wait = record.survivors_wait();
      job.quiesce_asked = record.quiesce_asked();
      if (record.has_checkpoint_at_failure()) {
        job.checkpoint_at_failure = record.checkpoint_at_failure();
      }
      job.running_since = context_.now;
      // A record of an older coordinator has the values in the job.
      job.env = record.env().empty() ? TakeEnvironment(*job.view.mutable_spec()) : record.env();
      Index(job);
    } else if (row.table() == v1::STATE_TABLE_WORLDS) {
      auto world = std::make_shared<v1::World>();
      const auto key = ParseGenerationKey(row.key());
      if (!world->ParseFromString(row.value()) || !key.has_value()) {
        context_.Damaged(row);
      } else if (Job* job = Find(key->job_id); job != nullptr) {
        job->worlds[key->generation] = std::move(world);
      }
    } else if (row.table() == v1::STATE_TABLE_MEMBERS) {
      // In the order of keys, so by node rank.
      v1::MemberRecord record;
      if (!record.ParseFromString(row.value())) {
        context_.Damaged(row);
        continue;
      }
      const auto key = ParseGenerationKey(row.key());
      Job* job = key.has_value() ? Find(key->job_id) : nullptr;
      if (job == nullptr) continue;
      if (record.leaving()) {
        LeavingMember& leaving = job->leaving.emplace_back();
        leaving.generation = key->generation;
        leaving.node_rank = std::strtoull(key->rest.c_str(), nullptr, 10);
        leaving.stuck = record.stuck();
        leaving.member.node_id = record.node_id();
        leaving.member.slots = record.slots();
        leaving.member.memory_bytes = record.memory_bytes();
        leaving.member.gpus.assign(record.gpus().begin(), record.gpus().end());
        leaving.member.ended = true;
      }
      if (key->generation != job->view.generation()) continue;
      Member& member = job->members.emplace_back();
      member.node_id = record.node_id();
      job->member_by_node[member.node_id] = job->members.size() - 1;
      member.first_rank = job->view.ranks_size();
      member.rank_count = record.ranks_size();
      member.slots = record.slots();
      member.memory_bytes = record.memory_bytes();
      member.prepared = true;
      member.ended = record.ended();
      for (v1::RankStatus& rank : *record.mutable_ranks()) {
        for (const uint32_t gpu : rank.assignment().gpus()) member.gpus.push_back(gpu);
        *job->view.add_ranks() = std::move(rank);
      }
      if (!member.ended) ++job->members_alive;
    }
  }
  // Deadlines are this term's own: the steady clock of the last one is gone.
  for (auto& [id, job] : jobs_) {
    job.members_prepared = job.members.size();
    const v1::JobState state = job.view.state();
    if (job.ended()) continue;
    job.view.set_state(v1::JOB_STATE_UNSPECIFIED);
    SetState(job, state, job.view.reason());
  }
}

void JobTable::WriteJob(Job& job) {
  v1::JobRecord record;
  // Copied without the ranks, of which there may be thousands.
  google::protobuf::RepeatedPtrField<v1::RankStatus> ranks;
  ranks.Swap(job.view.mutable_ranks());
  *record.mutable_job() = job.view;
  ranks.Swap(job.view.mutable_ranks());
  record.set_submit_sequence(job.submit_sequence);
  record.set_request_id(job.request_id);
  record.set_cancel_requested(job.cancel_requested);
  record.set_cancel_reason(job.cancel_reason);
  record.set_cancel_now(job.cancel_now);
  record.set_failures_without_progress(job.failures_without_progress);
  record.set_progress_step(job.progress_step);
  record.set_survivors_wait(job.survivors_wait);
  record.set_quiesce_asked(job.quiesce_asked);
  if (job.checkpoint_at_failure >= 0) record.set_checkpoint_at_failure(job.checkpoint_at_failure);
  *record.mutable_env() = job.env;
  context_.Put(v1::STATE_TABLE_JOBS, job.id(), record);
}

void JobTable::WriteMember(const Job& job, size_t index) {
  const Member& member = job.members[index];
  v1::MemberRecord record;
  record.set_node_id(member.node_id);
  record.set_ended(member.ended);
  record.set_slots(member.slots);
  record.set_memory_bytes(member.memory_bytes);
  for (int i = 0; i < member.rank_count; ++i) {
    v1::RankStatus& rank = *record.add_ranks();
    rank = job.view.ranks(member.first_rank + i);
    rank.clear_progress();
  }
  for (const LeavingMember& leaving : job.leaving) {
    if (leaving.generation != job.view.generation() || leaving.node_rank != index) continue;
    record.set_leaving(true);
    record.set_stuck(leaving.stuck);
    record.mutable_gpus()->Add(leaving.member.gpus.begin(), leaving.member.gpus.end());
  }
  context_.Put(v1::STATE_TABLE_MEMBERS, MemberKey(job, job.view.generation(), index), record);
}

void JobTable::WriteLeaving(const Job& job, const LeavingMember& leaving) {
  v1::MemberRecord record;
  record.set_node_id(leaving.member.node_id);
  record.set_ended(true);
  record.set_leaving(true);
  record.set_stuck(leaving.stuck);
  record.set_slots(leaving.member.slots);
  record.set_memory_bytes(leaving.member.memory_bytes);
  record.mutable_gpus()->Add(leaving.member.gpus.begin(), leaving.member.gpus.end());
  context_.Put(v1::STATE_TABLE_MEMBERS, MemberKey(job, leaving.generation, leaving.node_rank),
               record);
}

void JobTable::Notify(const Job& job) {
  const auto it = watchers_.find(job.id());
  if (it == watchers_.end()) return;
  auto item = std::make_shared<v1::WatchJobResponse>();
  *item->mutable_job() = job.view;
  for (const uint64_t call_id : it->second) {
    context_.Add(StreamItem{call_id, item});
    if (job.ended()) context_.Add(ReplyToCall{call_id, absl::OkStatus(), nullptr});
  }
  if (job.ended()) watchers_.erase(it);
}

void JobTable::DropOldest() {
  // A job that still holds something of a node stays.
  for (auto next = ended_.begin(); ended_.size() > kMaxEnded && next != ended_.end();) {
    const uint64_t sequence = *next;
    const std::string id = by_sequence_.at(sequence);
    const Job& job = jobs_.at(id);
    if (!job.leaving.empty()) {
      ++next;
      continue;
    }
    next = ended_.erase(next);
    for (const auto& [generation, world] : job.worlds) {
      context_.Erase(v1::STATE_TABLE_WORLDS, GenerationKey(id, generation));
    }
    for (size_t i = 0; i < job.members.size(); ++i) {
      context_.Erase(v1::STATE_TABLE_MEMBERS, MemberKey(job, job.view.generation(), i));
    }
    context_.Erase(v1::STATE_TABLE_JOBS, id);
    by_request_.erase(job.request_id);
    by_sequence_.erase(sequence);
    jobs_.erase(id);
  }
}

void JobTable::WriteChanged() {
  for (const std::string& id : changed_) {
    Job* job = Find(id);
    if (job == nullptr) continue;
    job->view.set_revision(job->view.revision() + 1);
    WriteJob(*job);
    Notify(*job);
    progressed_.erase(id);
  }
  changed_.clear();
  for (const std::string& id : std::exchange(progressed_, {})) {
    Job* job = Find(id);
    if (job == nullptr) continue;
    job->view.set_revision(job->view.revision() + 1);
    Notify(*job);
  }
  for (const auto& [id, index] : std::exchange(changed_members_, {})) {
    const Job* job = Find(id);
    if (job == nullptr || index >= job->members.size()) continue;
    WriteMember(*job, index);
  }
  DropOldest();
}

}  // namespace meshrun::coordinator
