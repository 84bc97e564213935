#include "coordinator/state_machine/reconcile.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "coordinator/state_machine/job_phase.h"
#include "coordinator/state_machine/jobs.h"
#include "core/env_entries.h"
#include "core/job_spec.h"
#include "core/parse_integer.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// A job is started again at most so often while a copy grows old, as far as we can know.
constexpr uint64_t kFormerGenerations = 1000;

using GenerationKeyOf = std::pair<std::string, uint64_t>;

// One generation, as its hosts describe it.
struct Running {
  // By node rank.
  std::map<int, std::pair<std::string, const v1::GenerationDetails*>> members;
  std::set<int> ranks;

  const v1::Prepare& prepare() const { return members.begin()->second.second->prepare(); }
  const v1::Start& start() const { return members.begin()->second.second->start(); }
  bool is_complete() const {
    return members.size() == prepare().node_count() && ranks.size() == prepare().world_size();
  }
};

bool IsOfAGeneration(v1::StateTable table) {
  return table == v1::STATE_TABLE_MEMBERS || table == v1::STATE_TABLE_VALUES ||
         table == v1::STATE_TABLE_REQUESTS;
}

// The copy as a table that is changed.
class Table {
 public:
  explicit Table(const std::vector<v1::StateRow>& rows) {
    for (const v1::StateRow& row : rows) {
      if (row.table() == v1::STATE_TABLE_JOBS) {
        v1::JobRecord record;
        if (!record.ParseFromString(row.value())) continue;
        last_sequence_ = std::max(last_sequence_, record.submit_sequence());
        jobs[row.key()] = std::move(record);
      } else if (row.table() == v1::STATE_TABLE_NODES) {
        v1::NodeRecord record;
        if (record.ParseFromString(row.value())) nodes[row.key()] = std::move(record);
      } else if (const auto key = ParseGenerationKey(row.key());
                 key.has_value() && IsOfAGeneration(row.table())) {
        of_generation_[{key->job_id, key->generation}].push_back(&row);
      }
    }
  }

  void Put(v1::StateTable table, const std::string& key, const google::protobuf::Message& value) {
    v1::StateRow& row = changes.emplace_back();
    row.set_table(table);
    row.set_key(key);
    row.set_value(value.SerializeAsString());
  }
  // Its members and its store. The table of its ranks stays: logs are found by it.
  void EraseGeneration(const std::string& job_id, uint64_t generation) {
    const auto found = of_generation_.find({job_id, generation});
    if (found == of_generation_.end()) return;
    for (const v1::StateRow* const row : found->second) {
      v1::StateRow& erased = changes.emplace_back();
      erased.set_table(row->table());
      erased.set_key(row->key());
      erased.set_erased(true);
    }
  }
  uint64_t NextSequence() { return ++last_sequence_; }
  // Rows of the members of a generation, with their keys.
  std::vector<std::pair<std::string, v1::MemberRecord>> MembersOf(const v1::Job& job) const {
    std::vector<std::pair<std::string, v1::MemberRecord>> out;
    const auto found = of_generation_.find({job.job_id(), job.generation()});
    if (found == of_generation_.end()) return out;
    for (const v1::StateRow* const row : found->second) {
      v1::MemberRecord member;
      if (row->table() == v1::STATE_TABLE_MEMBERS && member.ParseFromString(row->value()))
        out.emplace_back(row->key(), std::move(member));
    }
    return out;
  }

  std::map<std::string, v1::JobRecord> jobs;
  std::map<std::string, v1::NodeRecord> nodes;
  std::vector<v1::StateRow> changes;

 private:
  uint64_t last_sequence_ = 0;
  std::map<GenerationKeyOf, std::vector<const v1::StateRow*>> of_generation_;
};

void SetPhase(JobPhase phase, v1::JobRecord* record) {
  const PhaseOnDisk& on_disk = OnDisk(phase);
  record->mutable_job()->set_state(on_disk.state);
  record->set_survivors_wait(on_disk.survivors_wait);
  record->set_quiesce_asked(on_disk.quiesce_asked);
}

std::map<GenerationKeyOf, Running> GenerationsOf(const std::map<std::string, RollCallNode>& nodes) {
  std::map<GenerationKeyOf, Running> out;
  for (const auto& [node_id, node] : nodes) {
    for (const v1::RunningGeneration& running : node.hello.running()) {
      const GenerationKeyOf key = {running.job_id(), running.generation()};
      const auto details = node.details.find(key);
      if (running.ended() || !running.started() || running.stopping() ||
          details == node.details.end()) {
        continue;
      }
      Running& generation = out[key];
      const v1::Prepare& prepare = details->second.prepare();
      generation.members[prepare.ranks(0).node_rank()] = {node_id, &details->second};
      for (const v1::RankAssignment& rank : prepare.ranks()) generation.ranks.insert(rank.rank());
    }
  }
  return out;
}

// A job that the copy does not know, as far as its hosts do.
v1::JobRecord NewRecord(const std::string& job_id, const v1::Prepare& prepare, WallNanos wall,
                        Table* table) {
  v1::JobRecord record;
  v1::Job& job = *record.mutable_job();
  job.set_job_id(job_id);
  *job.mutable_spec() = prepare.spec();
  for (const v1::EnvEntry& entry : prepare.spec().env()) {
    const size_t end = job_id.rfind('_');
    if (entry.name() != "MESHRUN_ARRAY_ID" || end == std::string::npos ||
        entry.value() != job_id.substr(0, end)) {
      continue;
    }
    const auto index = ParseInteger<uint32_t>(job_id.substr(end + 1));
    if (!index.has_value()) continue;
    job.set_array_id(entry.value());
    job.set_array_index(*index);
    for (const auto& [id, other] : table->jobs) {
      if (other.job().array_id() == entry.value())
        job.set_array_at_once(other.job().array_at_once());
    }
  }
  *record.mutable_env() = TakeEnvironment(*job.mutable_spec());
  job.set_submitter(prepare.submitter());
  *job.mutable_submitted_at() = ToProtoTimestamp(wall);
  record.set_submit_sequence(table->NextSequence());
  record.set_progress_step(-1);
  return record;
}

// Writes that the generation runs.
void GoOn(const GenerationKeyOf& key, const Running& running,
          const std::map<std::string, RollCallNode>& nodes, WallNanos wall, Table* table) {
  const auto& [job_id, generation] = key;
  const v1::Prepare& prepare = running.prepare();
  auto known = table->jobs.find(job_id);
  if (known == table->jobs.end())
    known = table->jobs.emplace(job_id, NewRecord(job_id, prepare, wall, table)).first;
  v1::JobRecord& record = known->second;
  v1::Job& job = *record.mutable_job();
  if (job.generation() != 0) table->EraseGeneration(job_id, job.generation());
  SetPhase(JobPhase::kRunning, &record);
  record.set_held(false);
  record.clear_queue_note();
  record.clear_stop_intent();
  record.clear_stop_reason();
  record.clear_not_before();
  record.clear_queued_since();
  record.clear_waits_for();
  job.clear_reason();
  // What the former generation had.
  record.clear_longest_step();
  record.clear_finished_generation();
  job.clear_stragglers();
  job.clear_hang();
  record.clear_paused_ranks();
  job.clear_paused_since();
  job.clear_groups();
  job.set_generation(generation);
  job.set_world_size(prepare.world_size());
  job.set_restarts(std::max(job.restarts(), prepare.restarts()));
  *job.mutable_mesh() = prepare.mesh();
  job.set_master_addr(running.start().master_addr());
  job.set_master_port(running.start().master_port());
  if (!job.has_started_at()) *job.mutable_started_at() = ToProtoTimestamp(wall);
  if (!job.has_running_since()) *job.mutable_running_since() = ToProtoTimestamp(wall);
  *record.mutable_generation_since() = ToProtoTimestamp(wall);
  v1::World world;
  *world.mutable_mesh() = prepare.mesh();
  for (const auto& [node_rank, member] : running.members) {
    const auto& [node_id, details] = member;
    v1::MemberRecord row;
    row.set_node_id(node_id);
    for (const v1::RankAssignment& rank : details->prepare().ranks()) {
      v1::RankStatus& status = *row.add_ranks();
      *status.mutable_assignment() = rank;
      status.set_state(v1::RANK_STATE_RUNNING);
      status.set_node_name(nodes.at(node_id).hello.name());
      *world.add_ranks() = rank;
    }
    const auto count = static_cast<uint32_t>(row.ranks_size());
    row.set_slots(count * CpusPerProc(job.spec()));
    row.set_memory_bytes(count * job.spec().memory_bytes());
    table->Put(
        v1::STATE_TABLE_MEMBERS,
        GenerationKey(job_id, generation) + "/" + KeyNumber(static_cast<uint64_t>(node_rank)), row);
    v1::NodeAddresses& addresses = *world.add_addresses();
    addresses.set_node_id(node_id);
    *addresses.mutable_addresses() = nodes.at(node_id).hello.addresses();
  }
  table->Put(v1::STATE_TABLE_WORLDS, GenerationKey(job_id, generation), world);
  table->Put(v1::STATE_TABLE_JOBS, job_id, record);
}

// Nobody runs it, and nobody knows what has become of it.
void HoldBack(v1::JobRecord* record, WallNanos wall, Table* table) {
  v1::Job& job = *record->mutable_job();
  if (job.generation() != 0) table->EraseGeneration(job.job_id(), job.generation());
  job.clear_running_since();
  const bool finished =
      record->finished_generation() != 0 && record->finished_generation() == job.generation();
  if (finished || record->cancel_requested()) {
    SetPhase(finished ? JobPhase::kSucceeded : JobPhase::kCancelled, record);
    job.set_reason(finished ? "" : record->cancel_reason());
    *job.mutable_finished_at() = ToProtoTimestamp(wall);
  } else {
    SetPhase(job.has_started_at() ? JobPhase::kWaiting : JobPhase::kQueued, record);
    job.clear_reason();
    record->set_held(true);
    record->set_queue_note(
        "it may have run and ended since the copy of the state was made: look first");
  }
  job.set_generation(job.generation() + kFormerGenerations);
  record->clear_stop_intent();
  record->clear_stop_reason();
  record->clear_generation_since();
  record->clear_queued_since();
  table->Put(v1::STATE_TABLE_JOBS, job.job_id(), *record);
}

// A host of the generation that goes on elsewhere, and that names it no more: its ranks ended well
// after the copy, since otherwise the others would have been told to end.
void EndWell(const v1::Job& job, const std::map<std::string, RollCallNode>& nodes, Table* table) {
  for (auto& [key, member] : table->MembersOf(job)) {
    const auto node = nodes.find(member.node_id());
    if (member.ended() || node == nodes.end()) continue;
    const auto& running = node->second.hello.running();
    const bool names_it =
        std::any_of(running.begin(), running.end(), [&job](const v1::RunningGeneration& each) {
          return each.job_id() == job.job_id() && each.generation() == job.generation();
        });
    if (names_it) continue;
    member.set_ended(true);
    for (v1::RankStatus& rank : *member.mutable_ranks()) {
      if (rank.state() == v1::RANK_STATE_EXITED) continue;
      rank.set_state(v1::RANK_STATE_EXITED);
      rank.mutable_exit()->set_rank(rank.assignment().rank());
      rank.set_end("ended after the copy of the state was made");
    }
    table->Put(v1::STATE_TABLE_MEMBERS, key, member);
  }
}

bool HasSilentHost(const v1::Job& job, const std::map<std::string, RollCallNode>& nodes,
                   const Table& table) {
  const auto members = table.MembersOf(job);
  return std::any_of(members.begin(), members.end(), [&](const auto& entry) {
    const auto node = table.nodes.find(entry.second.node_id());
    return !entry.second.ended() && !nodes.contains(entry.second.node_id()) &&
           node != table.nodes.end() && node->second.node().state() != v1::NODE_STATE_LOST;
  });
}

// A node that runs something the copy says goes on must not be lost there.
void Present(const std::string& node_id, const RollCallNode& node, WallNanos wall, Table* table) {
  v1::NodeRecord& record = table->nodes[node_id];
  v1::Node& view = *record.mutable_node();
  if (!view.node_id().empty() && view.state() != v1::NODE_STATE_LOST) return;
  view.set_node_id(node_id);
  view.set_name(node.hello.name());
  *view.mutable_addresses() = node.hello.addresses();
  *view.mutable_resources() = node.hello.resources();
  view.set_state(v1::NODE_STATE_HEALTHY);
  view.set_incarnation(node.incarnation);
  view.set_version(node.hello.version());
  view.set_machine_id(node.hello.machine_id());
  view.clear_lost_at();
  if (!view.has_registered_at()) *view.mutable_registered_at() = ToProtoTimestamp(wall);
  *view.mutable_last_seen_at() = ToProtoTimestamp(wall);
  if (node.hello.has_fence_after()) *record.mutable_fence_after() = node.hello.fence_after();
  table->Put(v1::STATE_TABLE_NODES, node_id, record);
}

}  // namespace

bool IsReconciled(v1::StateTable table) {
  return table == v1::STATE_TABLE_JOBS || table == v1::STATE_TABLE_NODES || IsOfAGeneration(table);
}

RollCallResult Reconcile(const std::vector<v1::StateRow>& copy,
                         const std::map<std::string, RollCallNode>& nodes, WallNanos wall) {
  Table table(copy);
  const std::map<GenerationKeyOf, Running> running = GenerationsOf(nodes);
  // The last generation of each job that is whole, and those that hosts name at all: one that has
  // ended tells how.
  std::map<std::string, const std::pair<const GenerationKeyOf, Running>*> whole;
  std::set<GenerationKeyOf> named;
  std::set<GenerationKeyOf> alive;
  for (const auto& [node_id, node] : nodes) {
    for (const v1::RunningGeneration& each : node.hello.running()) {
      if (each.stopping() && !each.ended()) continue;
      named.insert({each.job_id(), each.generation()});
      if (!each.ended()) alive.insert({each.job_id(), each.generation()});
    }
  }
  for (const auto& entry : running) {
    if (entry.second.is_complete()) whole[entry.first.first] = &entry;
  }
  int go_on = 0;
  int unknown = 0;
  int held = 0;
  std::set<std::string> settled;
  for (const auto& [job_id, entry] : whole) {
    const auto known = table.jobs.find(job_id);
    if (known != table.jobs.end() &&
        (HasEnded(known->second.job().state()) ||
         known->second.job().submitter() != entry->second.prepare().submitter())) {
      continue;
    }
    settled.insert(job_id);
    ++go_on;
    unknown += known == table.jobs.end();
    for (const auto& [node_rank, member] : entry->second.members)
      Present(member.first, nodes.at(member.first), wall, &table);
    const bool is_as_in_the_copy = known != table.jobs.end() &&
                                   known->second.job().generation() == entry->first.second &&
                                   (known->second.job().state() == v1::JOB_STATE_RUNNING ||
                                    known->second.job().state() == v1::JOB_STATE_QUIESCING);
    if (!is_as_in_the_copy) GoOn(entry->first, entry->second, nodes, wall, &table);
  }
  for (auto& [job_id, record] : table.jobs) {
    const v1::Job& job = record.job();
    if (settled.contains(job_id) || HasEnded(job.state())) continue;
    const bool has_ranks =
        job.state() == v1::JOB_STATE_RUNNING || job.state() == v1::JOB_STATE_QUIESCING;
    if (has_ranks && named.contains({job_id, job.generation()})) {
      if (alive.contains({job_id, job.generation()})) EndWell(job, nodes, &table);
      continue;
    }
    if (has_ranks && HasSilentHost(job, nodes, table)) {
      // Its ranks may run there: the host's lease and its fence time decide, as ever.
      record.set_held(true);
      ++held;
      table.Put(v1::STATE_TABLE_JOBS, job_id, record);
      continue;
    }
    held += !record.cancel_requested();
    HoldBack(&record, wall, &table);
  }
  size_t strays = 0;
  for (const GenerationKeyOf& key : alive) {
    const auto job = table.jobs.find(key.first);
    strays += job == table.jobs.end() || job->second.job().generation() != key.second;
  }
  RollCallResult result;
  result.summary = fmt::format(
      "{} hosts answered; {} jobs go on, {} of which the copy did not know as they run; {} are "
      "held, "
      "since they may have ended: 'meshrun ps' shows them; {} generations on hosts are of no job, "
      "or "
      "are not whole, and end",
      nodes.size(), go_on, unknown, held, strays);
  result.rows = std::move(table.changes);
  return result;
}

}  // namespace meshrun::coordinator
