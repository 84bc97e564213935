// Jobs in the durable state: what is written at the end of a batch, read at a start, forgotten.
#include <algorithm>
#include <functional>
#include <optional>

#include "coordinator/state_machine/jobs.h"
#include "core/parse_integer.h"
#include "core/proto_time.h"

namespace meshrun::coordinator {
namespace {

constexpr char kHidden[] = "(hidden)";

// What Job has in other members.
void ClearTimesAndView(v1::JobRecord& record) {
  record.clear_job();
  record.clear_generation_since();
  record.clear_not_before();
  record.clear_queued_since();
  record.clear_held_time();
  record.clear_reached_step();
}

}  // namespace

// The values of the environment, which stay out of what people see.
EnvEntries TakeEnvironment(v1::JobSpec& spec) {
  EnvEntries env = spec.env();
  for (v1::EnvEntry& entry : *spec.mutable_env()) entry.set_value(kHidden);
  return env;
}

std::string MemberKey(const Job& job, uint64_t generation, size_t node_rank) {
  return GenerationKey(job.id(), generation) + "/" + KeyNumber(node_rank);
}

void JobTable::Index(Job& job) {
  const uint64_t sequence = job.record.submit_sequence();
  by_sequence_[sequence] = &job;
  next_sequence_ = std::max(next_sequence_, sequence + 1);
  if (!job.record.request_id().empty()) by_request_[job.record.request_id()] = &job;
  if (job.view.spec().private_()) context_.private_jobs[job.id()] = job.view.submitter();
  if (job.ended()) ended_.insert({FromProto(job.view.finished_at()), sequence});
}

void JobTable::Restore(const v1::StateRow& row) {
  if (row.table() == v1::STATE_TABLE_JOBS) {
    v1::JobRecord record;
    if (!record.ParseFromString(row.value()) || record.job().job_id() != row.key()) {
      context_.Damaged(row);
      return;
    }
    Job& job = jobs_[row.key()];
    if (record.has_held_time()) context_.held_times.Restore(row.key(), record.held_time());
    TakeRecord(job, std::move(record));
    Index(job);
  } else if (row.table() == v1::STATE_TABLE_USAGE) {
    usage_.Restore(context_, row);
  } else if (row.table() == v1::STATE_TABLE_WORLDS) {
    auto world = std::make_shared<v1::World>();
    const auto key = ParseGenerationKey(row.key());
    if (!world->ParseFromString(row.value()) || !key.has_value()) {
      context_.Damaged(row);
    } else if (Job* job = Find(key->job_id); job != nullptr) {
      job->worlds[key->generation] = std::move(world);
    }
  } else if (row.table() == v1::STATE_TABLE_MEMBERS) {
    RestoreMember(row);
  }
}

// Rows come in the order of keys, so members come by node rank.
void JobTable::RestoreMember(const v1::StateRow& row) {
  v1::MemberRecord record;
  const auto key = ParseGenerationKey(row.key());
  const auto node_rank =
      key.has_value() ? ParseInteger<size_t>(key->rest) : std::optional<size_t>();
  if (!record.ParseFromString(row.value()) || !node_rank.has_value()) {
    context_.Damaged(row);
    return;
  }
  Job* job = Find(key->job_id);
  if (job == nullptr) return;
  if (record.leaving()) {
    LeavingMember& leaving = job->leaving.emplace_back();
    leaving.generation = key->generation;
    leaving.node_rank = *node_rank;
    leaving.stuck = record.stuck();
    leaving.exited = record.exited();
    if (record.has_stop_by()) {
      leaving.stop_by = context_.now + (FromProto(record.stop_by()) - context_.wall);
    }
    leaving.member.node_id = record.node_id();
    leaving.member.slots = record.slots();
    leaving.member.memory_bytes = record.memory_bytes();
    leaving.member.gpus.assign(record.gpus().begin(), record.gpus().end());
    leaving.member.ended = true;
  }
  if (key->generation != job->view.generation()) return;
  Member& member = job->members.emplace_back();
  member.node_id = record.node_id();
  job->member_by_node[member.node_id] = job->members.size() - 1;
  member.first_rank = job->view.ranks_size();
  member.rank_count = record.ranks_size();
  member.slots = record.slots();
  member.memory_bytes = record.memory_bytes();
  member.prepared = true;
  member.ended = record.ended();
  member.newcomer = record.newcomer();
  member.started = true;
  for (v1::RankStatus& rank : *record.mutable_ranks()) {
    const bool lives_on = !IsFresh(rank.assignment(), key->generation);
    member.started &= lives_on ? rank.joined() : rank.state() != v1::RANK_STATE_ASSIGNED;
    for (const uint32_t gpu : rank.assignment().gpus()) member.gpus.push_back(gpu);
    *job->view.add_ranks() = std::move(rank);
  }
  if (!member.ended) ++job->members_alive;
  if (member.started) ++job->members_started;
}

void JobTable::OnRestored() {
  std::map<int32_t, uint64_t> earliest;
  for (const auto& [id, job] : jobs_) {
    if (!job.queued() || !job.turn().has_value()) continue;
    const auto first = earliest.try_emplace(job.view.spec().priority(), job.turn()->begin).first;
    first->second = std::min(first->second, job.turn()->begin);
  }
  for (const auto& [id, job] : jobs_) {
    const auto turn = job.turn();
    if (turn.has_value() && (job.active() || job.view.has_started_at()))
      turns_.Start(job.view.spec().priority(), job.view.submitter(), *turn,
                   earliest.contains(job.view.spec().priority())
                       ? earliest.at(job.view.spec().priority())
                       : turn->begin);
  }
  // Deadlines are this term's own: the steady clock of the last one is gone. In the order of
  // submission, for jobs of an older coordinator, which have no turns.
  for (const auto& [sequence, known] : by_sequence_) {
    Job& job = *known;
    job.members_prepared = job.members.size();
    CountBytes(job);
    const JobPhase phase = job.phase();
    if (job.ended()) continue;
    if (!job.record.has_gpus_per_proc() && job.view.has_started_at() && job.view.ranks_size() > 0) {
      // A row of an older coordinator.
      job.record.set_gpus_per_proc(job.view.ranks(0).assignment().gpus_size());
    }
    // What a start changes of a job is written, and nothing else: all of them can be large.
    const bool was_changed = changed_.contains(job.id());
    const v1::JobState state = job.view.state();
    const std::string before = RecordWithoutView(job).SerializeAsString();
    job.view.set_state(v1::JOB_STATE_UNSPECIFIED);
    Enter(job, phase, job.view.reason());
    if (!was_changed && job.view.state() == state &&
        RecordWithoutView(job).SerializeAsString() == before) {
      changed_.erase(job.id());
    }
  }
}

// The steady clock of the last term is gone: its times are read off the wall clock.
void JobTable::TakeRecord(Job& job, v1::JobRecord record) {
  constexpr std::chrono::nanoseconds kZero(0);
  const auto ago = [&](const google::protobuf::Timestamp& at) {
    return std::max(context_.wall - FromProto(at), kZero);
  };
  job.running_since = context_.now;
  if (record.has_generation_since()) job.running_since -= ago(record.generation_since());
  if (record.has_not_before()) {
    const auto left = FromProto(record.not_before()) - context_.wall;
    job.not_before =
        context_.now + std::clamp<std::chrono::nanoseconds>(left, kZero, kLongestBackoff);
  }
  if (record.has_queued_since()) job.queued_since = context_.now - ago(record.queued_since());
  job.view = std::move(*record.mutable_job());
  // A record of an older coordinator has the values in the job.
  if (record.env().empty()) *record.mutable_env() = TakeEnvironment(*job.view.mutable_spec());
  auto& avoided = *record.mutable_avoided_nodes();
  std::sort(avoided.begin(), avoided.end());
  // A record of an older coordinator also has nodes that could not prepare once.
  const auto failed_twice = [&record](const std::string& node) {
    const auto failures = record.failures_of_nodes().find(node);
    return failures != record.failures_of_nodes().end() && failures->second >= 2;
  };
  avoided.erase(std::remove_if(avoided.begin(), avoided.end(), std::not_fn(failed_twice)),
                avoided.end());
  const int64_t beyond = record.has_step_beyond() ? record.step_beyond() : -1;
  job.tally.highest_step =
      record.has_reached_step() ? record.reached_step() : std::max(record.progress_step(), beyond);
  if (!job.view.hang().empty()) job.tally.hung_generation = job.view.generation();
  ClearTimesAndView(record);
  job.record = std::move(record);
}

v1::JobRecord JobTable::RecordWithoutView(const Job& job) const {
  v1::JobRecord record = job.record;
  if (job.active()) *record.mutable_generation_since() = WallOf(job.running_since);
  if (job.queued_since.has_value()) *record.mutable_queued_since() = WallOf(*job.queued_since);
  if (job.not_before > context_.now) *record.mutable_not_before() = WallOf(job.not_before);
  const v1::HeldTime held = context_.held_times.Of(job.id(), context_.wall);
  if (held.has_as_of()) *record.mutable_held_time() = held;
  if (job.tally.highest_step >= 0) record.set_reached_step(job.tally.highest_step);
  return record;
}

google::protobuf::Timestamp JobTable::WallOf(SteadyNanos at) const {
  return ToProtoTimestamp(context_.wall + (at - context_.now));
}

void JobTable::WriteJob(Job& job) {
  v1::JobRecord record = RecordWithoutView(job);
  // Copied without the ranks, of which there may be thousands.
  google::protobuf::RepeatedPtrField<v1::RankStatus> ranks;
  ranks.Swap(job.view.mutable_ranks());
  *record.mutable_job() = job.view;
  ranks.Swap(job.view.mutable_ranks());
  if (job.former_progress && !record.job().has_progress()) {
    *record.mutable_job()->mutable_progress() = *job.former_progress;
  }
  context_.Put(v1::STATE_TABLE_JOBS, job.id(), record);
}

// The row of a member may hold it as leaving too.
void JobTable::AddLeaving(const LeavingMember& leaving, v1::MemberRecord& record) const {
  record.set_leaving(true);
  record.set_stuck(leaving.stuck);
  record.set_exited(leaving.exited);
  if (leaving.stop_by.has_value()) *record.mutable_stop_by() = WallOf(*leaving.stop_by);
  record.mutable_gpus()->Add(leaving.member.gpus.begin(), leaving.member.gpus.end());
}

void JobTable::WriteMember(const Job& job, size_t index) {
  const Member& member = job.members[index];
  v1::MemberRecord record;
  record.set_node_id(member.node_id);
  record.set_ended(member.ended);
  record.set_newcomer(member.newcomer);
  record.set_slots(member.slots);
  record.set_memory_bytes(member.memory_bytes);
  for (int i = 0; i < member.rank_count; ++i) {
    v1::RankStatus& rank = *record.add_ranks();
    rank = job.view.ranks(member.first_rank + i);
    rank.clear_progress();
  }
  for (const LeavingMember& leaving : job.leaving) {
    if (leaving.generation != job.view.generation() || leaving.node_rank != index) continue;
    AddLeaving(leaving, record);
  }
  context_.Put(v1::STATE_TABLE_MEMBERS, MemberKey(job, job.view.generation(), index), record);
}

void JobTable::WriteLeaving(const Job& job, const LeavingMember& leaving) {
  v1::MemberRecord record;
  record.set_node_id(leaving.member.node_id);
  record.set_ended(true);
  record.set_slots(leaving.member.slots);
  record.set_memory_bytes(leaving.member.memory_bytes);
  AddLeaving(leaving, record);
  context_.Put(v1::STATE_TABLE_MEMBERS, MemberKey(job, leaving.generation, leaving.node_rank),
               record);
}

void JobTable::ForgetEnded() {
  const v1::Retention& keep = context_.retention;
  for (auto next = ended_.begin(); next != ended_.end();) {
    const auto [ended_at, sequence] = *next;
    const bool too_old =
        keep.has_ended_job_age() && ended_at + FromProto(keep.ended_job_age()) <= context_.wall;
    // While the coordinator was down nobody could ask.
    const bool too_young =
        std::max(ended_at, context_.started_at) + FromProto(keep.ended_job_least_age()) >
        context_.wall;
    const bool too_many = ended_.size() > keep.ended_jobs() || kept_.IsCrowded(keep.job_bytes());
    if ((!too_many || too_young) && !too_old) return;
    const Job& job = *by_sequence_.at(sequence);
    const std::string id = job.id();
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
    context_.private_jobs.erase(id);
    kept_.Change(job.view.submitter(), job.kept_bytes, 0, -static_cast<ptrdiff_t>(job.kept_bytes));
    by_request_.erase(job.record.request_id());
    by_sequence_.erase(sequence);
    jobs_.erase(id);
  }
}

void JobTable::WriteChanged() {
  for (const auto& [id, index] : changed_members_) {
    const Job* job = Find(id);
    if (job == nullptr || index >= job->members.size()) continue;
    watchers_.RanksChanged(*job, job->members[index].first_rank, job->members[index].rank_count);
  }
  for (const std::string& id : changed_) {
    Job* job = Find(id);
    if (job == nullptr) continue;
    job->view.set_revision(job->view.revision() + 1);
    WriteJob(*job);
    Tell(*job);
    progressed_.erase(id);
  }
  changed_.clear();
  for (const std::string& id : std::exchange(progressed_, {})) {
    Job* job = Find(id);
    if (job == nullptr) continue;
    job->view.set_revision(job->view.revision() + 1);
    Tell(*job);
  }
  for (const auto& [id, index] : std::exchange(changed_members_, {})) {
    const Job* job = Find(id);
    if (job == nullptr || index >= job->members.size()) continue;
    WriteMember(*job, index);
  }
  for (const std::string& id : watchers_.PopDue()) {
    if (const Job* job = Find(id); job != nullptr) Tell(*job);
  }
  ForgetEnded();
}

}  // namespace meshrun::coordinator
