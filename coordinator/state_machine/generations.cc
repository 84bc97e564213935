#include "coordinator/state_machine/generations.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "coordinator/state_machine/refusals.h"
#include "core/hash.h"
#include "core/mesh_messages.h"
#include "core/progress.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

void AddMeshGroups(v1::Job& job, const std::vector<Axis>& mesh) {
  for (size_t axis = 0; axis < mesh.size(); ++axis) {
    for (int64_t rank = 0; rank < job.world_size(); ++rank) {
      if (MeshCoordinates(mesh, rank)[axis] != 0) continue;
      v1::GroupInfo& group = *job.add_groups();
      group.set_name(mesh[axis].name);
      for (const int member : AxisGroup(mesh, axis, rank)) group.add_ranks(member);
    }
  }
}

// Why the next generation follows this one, for metrics.
std::string WhyGeneration(const Job& job) {
  if (job.view.generation() == 0) return "first";
  if (!job.record.refusals().empty()) return "prepare_failed";
  if (!job.failed() || job.view.failure().cause() == v1::FAILURE_CAUSE_MOVED) return "planned";
  std::string cause = v1::FailureCause_Name(job.view.failure().cause());
  cause.erase(0, std::string_view("FAILURE_CAUSE_").size());
  std::transform(cause.begin(), cause.end(), cause.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return cause;
}

// A rank that lives on registers in the next generation within this time.
constexpr std::chrono::seconds kJoinTimeout(30);

}  // namespace

std::string WorldDigest(const v1::World& world) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    world.SerializeToCodedStream(&coded);
  }
  return Sha256(bytes);
}

void Generations::Begin(Job& job, const Placement& placement, const SurvivingRanks& survivors) {
  v1::Job& view = job.view;
  const uint64_t previous = view.generation();
  context_.tallies.OnGeneration(WhyGeneration(job));
  // Later it waits for other reasons: it was preempted, or pauses before a restart.
  if (previous == 0 && job.queued_since.has_value()) {
    context_.tallies.OnPlaced(context_.now - *job.queued_since);
  }
  jobs_.SetPhase(job, JobPhase::kAdmitted, "");
  view.set_generation(previous + 1);
  view.set_world_size(placement.world_size);
  view.clear_ranks();
  view.clear_groups();
  view.clear_stragglers();
  view.clear_hang();
  view.clear_master_addr();
  view.clear_master_port();
  std::set<std::string> has_run;
  for (const Member& member : job.members) {
    if (!survivors.empty() && !member.newcomer) has_run.insert(member.node_id);
  }
  job.members.clear();
  job.member_by_node.clear();
  job.members_alive = placement.nodes.size();
  job.members_prepared = 0;
  job.members_started = 0;
  job.quiesced.clear();
  job.stepped.clear();
  job.record.clear_longest_step();
  SetAxes(placement.mesh, view.mutable_mesh());
  auto world = std::make_shared<v1::World>();
  *world->mutable_mesh() = view.mesh();
  for (const PlacedNode& placed : placement.nodes) {
    const auto found = survivors.find(placed.node_id);
    AddMember(job, placed, found == survivors.end() ? nullptr : &found->second, world.get());
    job.members.back().newcomer = !survivors.empty() && !has_run.contains(placed.node_id);
  }
  AddMeshGroups(view, placement.mesh);
  job.world_digest = WorldDigest(*world);
  job.worlds[view.generation()] = std::move(world);
  jobs_.NewGeneration(job, previous);
  jobs_.SetPhase(
      job, JobPhase::kRendezvous,
      fmt::format("{} on {} {} being prepared", Count(placement.world_size, "rank"),
                  Count(placement.nodes.size(), "node"), placement.world_size == 1 ? "is" : "are"));
  context_.Record(
      "JobAdmitted", job.id(), "",
      fmt::format("generation {}: {} on {}", view.generation(), Count(placement.world_size, "rank"),
                  Count(placement.nodes.size(), "node")));
  for (const Member& member : job.members) commands_.Prepare(job, member);
}

// One host and its ranks. Those of `survivors` that live on keep their processes and GPUs; the
// others are started anew with the same GPUs.
void Generations::AddMember(Job& job, const PlacedNode& placed,
                            const std::vector<v1::RankStatus>* survivors, v1::World* world) {
  Node& node = *nodes_.Find(placed.node_id);
  Member& member = job.members.emplace_back();
  job.member_by_node[placed.node_id] = job.members.size() - 1;
  member.node_id = placed.node_id;
  member.first_rank = job.view.ranks_size();
  member.rank_count = static_cast<int>(placed.procs);
  member.slots = placed.slots;
  member.memory_bytes = placed.memory_bytes;
  for (int local = 0; local < member.rank_count; ++local) {
    v1::RankStatus& status = *job.view.add_ranks();
    v1::RankAssignment& rank = *status.mutable_assignment();
    if (survivors != nullptr) {
      *rank.mutable_gpus() = (*survivors)[local].assignment().gpus();
    } else if (!placed.gpus.empty()) {
      rank.mutable_gpus()->Add(placed.gpus[local].begin(), placed.gpus[local].end());
    }
    member.gpus.insert(member.gpus.end(), rank.gpus().begin(), rank.gpus().end());
    rank.set_rank(member.first_rank + local);
    rank.set_local_rank(local);
    rank.set_node_rank(static_cast<int>(job.members.size()) - 1);
    rank.set_node_id(member.node_id);
    for (const int64_t c : MeshCoordinates(AxesOf(job.view.mesh()), rank.rank())) {
      rank.add_mesh_coordinates(c);
    }
    rank.set_process_generation(job.view.generation());
    rank.set_process_rank(rank.rank());
    status.set_state(v1::RANK_STATE_ASSIGNED);
    if (survivors != nullptr && LivesOn((*survivors)[local])) {
      const v1::RankStatus& before = (*survivors)[local];
      rank.set_process_generation(before.assignment().process_generation());
      rank.set_process_rank(before.assignment().process_rank());
      status.set_state(v1::RANK_STATE_RUNNING);
      status.set_pid(before.pid());
      status.set_in_process(true);
      *status.mutable_progress() = before.progress();
    }
    status.set_node_name(node.record.name());
    *world->add_ranks() = rank;
  }
  v1::NodeAddresses& addresses = *world->add_addresses();
  addresses.set_node_id(member.node_id);
  *addresses.mutable_addresses() = node.record.addresses();
  nodes_.Hold(node, job.id(), member.slots, member.memory_bytes, member.gpus);
}

Generations::Target Generations::Resolve(const Node& node, const v1::Fence& fence,
                                         std::string_view what) {
  Job* job = jobs_.Find(fence.job_id());
  Member* member = job == nullptr ? nullptr : job->FindLiveMember(node.id());
  if (member != nullptr && fence.generation() == job->view.generation()) return {job, member};
  context_.Warn(fmt::format(
      "{} of {} for job '{}' generation {} ignored: {}", what, node.record.name(), fence.job_id(),
      fence.generation(),
      job == nullptr ? "no such job"
                     : fmt::format("the job is {} in generation {}", StateName(job->view.state()),
                                   job->view.generation())));
  return {};
}

void Generations::OnPrepareResult(Node& node, const v1::Fence& fence,
                                  const v1::PrepareResult& result) {
  if (result.draining()) nodes_.Drain(node);
  const auto [job, member] = Resolve(node, fence, "PrepareResult");
  if (job == nullptr && result.ok()) ForgetPrepared(node, fence);
  if (job == nullptr || job->view.state() != v1::JOB_STATE_RENDEZVOUS) return;
  if (!result.ok()) {
    OnPrepareFailed(*job, node, result);
    return;
  }
  if (member->prepared) return;
  nodes_.ClearRefusals(node);
  member->prepared = true;
  member->master_port = result.master_port();
  if (++job->members_prepared == job->members.size()) Commit(*job);
}

// The Prepare reached the host beside a newer session, which knew nothing of it yet.
void Generations::ForgetPrepared(const Node& node, const v1::Fence& fence) {
  if (Job* const job = jobs_.Find(fence.job_id()); job != nullptr) {
    const bool leaves =
        std::any_of(job->leaving.begin(), job->leaving.end(),
                    [&](const auto& leaving) { return leaving.member.node_id == node.id(); });
    if (leaves || job->FindLiveMember(node.id()) != nullptr) return;
  }
  commands_.Forget(fence.job_id(), fence.generation(), node);
}

void Generations::OnPrepareFailed(Job& job, Node& node, const v1::PrepareResult& result) {
  const std::string message = fmt::format("{}: {}", node.record.name(), result.error());
  context_.Record("PrepareFailed", job.id(), node.id(), message);
  const bool stopping = node.draining && !result.bad_command();
  if (!stopping) {
    NoteRefusal(job, node.id(), result);
    jobs_.Changed(job);
  }
  if (HasSurvivors(job)) {
    if (stopping) {
      SurvivorsWait(job, /*asked=*/false, message);
    } else {
      // Started anew the job may get along without this host, and it does not ask for it for ever.
      CountFailure(job, node);
      RecordFailure(job, v1::FAILURE_CAUSE_MOVED, message, &node, nullptr);
      Quiesce(job, job.kill_grace(), message);
    }
    return;
  }
  Abandon(job);
  if (stopping) {
    Requeue(job, message);
    return;
  }
  const AfterRefusal after = After(job, node.id(), result, nodes_.Taking());
  if (!after.again_in.has_value()) {
    const Node* const other = nodes_.Find(after.agrees);
    FailJob(
        job,
        result.bad_command() ? v1::FAILURE_CAUSE_BAD_COMMAND : v1::FAILURE_CAUSE_PREPARE_FAILED,
        other != nullptr ? fmt::format("{}; so says {}", message, other->record.name()) : message,
        &node);
    return;
  }
  const std::string note = fmt::format("could not be prepared on {}{}", message,
                                       after.others ? "; another host is to take it" : "");
  job.not_before = context_.now + *after.again_in;
  job.record.set_queue_note(note);
  jobs_.SetPhase(job, job.phase_in_queue(), note);
}

// Phase two. The state and the Start messages leave in one batch: the state is durable first.
void Generations::Commit(Job& job) {
  const Member& first = job.members.front();
  job.view.set_master_addr(nodes_.Find(first.node_id)->address());
  job.view.set_master_port(first.master_port);
  if (!job.view.has_started_at()) *job.view.mutable_started_at() = ToProtoTimestamp(context_.wall);
  if (!job.record.has_gpus_per_proc()) {
    job.record.set_gpus_per_proc(job.view.ranks(0).assignment().gpus_size());
  }
  // Others could prepare it: now it is known that these hosts are to blame. One user's programs
  // count once, since other users' may be there.
  for (const v1::PrepareRefusal& refusal : job.record.refusals()) {
    Node* const refuser = nodes_.Find(refusal.node_id());
    if (refuser == nullptr || job.FindMember(refusal.node_id()) != nullptr) continue;
    nodes_.CountRefusal(*refuser, refusal.bad_command() ? "of " + job.view.submitter() : job.id(),
                        // It may quote what is private.
                        job.view.spec().private_() ? "(private)" : refusal.error());
  }
  job.record.clear_refusals();
  jobs_.Changed(job);
  for (Member& member : job.members) {
    if (std::exchange(member.newcomer, false)) jobs_.Changed(job, member);
  }
  job.record.clear_lost_in_rendezvous();
  job.running_since = context_.now;
  jobs_.SetPhase(job, JobPhase::kRunning, "");
  if (HasSurvivors(job)) jobs_.SetDeadline(job, context_.now + kJoinTimeout);
  context_.Record(
      "GenerationStarted", job.id(), "",
      fmt::format("generation {} runs {} on {}", job.view.generation(),
                  Count(job.view.world_size(), "rank"), Count(job.members.size(), "node")));
  for (const Member& member : job.members) commands_.Start(job, member);
}

// Ends a generation that never started: nothing runs, so nothing is waited for.
void Generations::Abandon(Job& job) {
  for (Member& member : job.members) {
    if (member.ended) continue;
    commands_.Forget(job.id(), job.view.generation(), *nodes_.Find(member.node_id));
    EndMember(job, member, MemberEnd::kEnded);
  }
  EndGeneration(job, "the generation was not started");
}

// After a failure that neither the job nor a host that it avoids has caused.
void Generations::Requeue(Job& job, std::string reason) {
  jobs_.SetPhase(job, job.phase_in_queue(), "to be placed again: " + std::move(reason));
}

void Generations::OnRanksStarted(Node& node, const v1::Fence& fence,
                                 const v1::RanksStarted& started) {
  const auto [job, member] = Resolve(node, fence, "RanksStarted");
  if (job == nullptr) return;
  for (const auto& [rank, pid] : started.pids()) {
    if (!member->Has(rank)) continue;
    v1::RankStatus& status = *job->view.mutable_ranks(rank);
    status.set_pid(pid);
    if (status.state() == v1::RANK_STATE_ASSIGNED) status.set_state(v1::RANK_STATE_RUNNING);
  }
  CountStarted(*job, *member);
  jobs_.Changed(*job, *member);
}

void Generations::CountStarted(Job& job, Member& member) {
  if (std::exchange(member.started, true)) return;
  if (++job.members_started == job.members.size() && job.view.state() == v1::JOB_STATE_RUNNING) {
    context_.tallies.OnStarted(context_.now - job.running_since);
  }
}

void Generations::OnRanksJoined(Node& node, const v1::Fence& fence, const v1::RanksJoined& joined) {
  const auto [job, member] = Resolve(node, fence, "RanksJoined");
  if (job == nullptr) return;
  for (const int rank : joined.ranks()) {
    if (member->Has(rank)) job->view.mutable_ranks(rank)->set_joined(true);
  }
  for (const int rank : joined.in_process()) {
    if (member->Has(rank)) job->view.mutable_ranks(rank)->set_in_process(true);
  }
  if (!joined.ranks().empty()) CountStarted(*job, *member);
  jobs_.Changed(*job, *member);
}

std::optional<StepChange> Generations::OnProgress(Node& node, const v1::Fence& fence,
                                                  const v1::ProgressReport& report) {
  const auto [job, member] = Resolve(node, fence, "ProgressReport");
  if (job == nullptr) return std::nullopt;
  StepChange change{job, -1, false, {}};
  int lowest = job->view.world_size();
  for (const auto& [rank, progress] : report.progress()) {
    if (!member->Has(rank)) continue;
    v1::Progress& known = *job->view.mutable_ranks(rank)->mutable_progress();
    if (IsEarlier(progress, known)) {
      // Its host tells all again to a session that is new.
      MergeProgress(progress, &known);
      continue;
    }
    if (progress.has_step() && (!known.has_step() || known.step() != progress.step())) {
      // A rank that lives on may go on from an earlier step than it had come to.
      const bool is_first = job->stepped.insert(rank).second;
      change.fell |= !is_first && known.has_step() && known.step() > progress.step();
      change.highest = std::max(change.highest, progress.step());
    }
    MergeProgress(progress, &known);
    change.ranks.push_back(rank);
    lowest = std::min(lowest, rank);
  }
  const int64_t reached = job->tally.highest_step;
  if (change.highest >= 0 && job->view.state() == v1::JOB_STATE_RUNNING) {
    context_.tallies.OnStep(job->tally, job->view.generation(),
                            static_cast<uint32_t>(job->view.world_size()), change.highest,
                            change.fell, jobs_.run_clock().Used(job->view));
  } else if (!change.fell) {
    context_.tallies.OnReached(job->tally, change.highest);
  }
  // Ranks count anew: what the next coordinator takes for reached begins there too.
  if (job->tally.highest_step < reached) jobs_.Changed(*job);
  const v1::Progress* shown = nullptr;
  for (int rank = 0; rank <= lowest && rank < job->view.ranks_size(); ++rank) {
    if (!job->view.ranks(rank).has_progress()) continue;
    *job->view.mutable_progress() = job->view.ranks(rank).progress();
    job->former_progress.reset();
    if (rank == lowest) shown = &report.progress().at(rank);
    break;
  }
  // Reports are not durable; this much of them decides about restarts.
  const int64_t before = job->record.progress_step();
  if (change.highest > before && job->step_beyond() <= before) {
    job->record.set_step_beyond(change.highest);
    jobs_.Changed(*job);
  }
  jobs_.Progressed(*job, shown);
  if (job->view.state() != v1::JOB_STATE_RUNNING) return std::nullopt;
  return change;
}

void Generations::OnWaitReport(Node& node, const v1::Fence& fence, const v1::WaitReport& report) {
  const auto [job, member] = Resolve(node, fence, "WaitReport");
  if (job != nullptr) blocked_.Report(*job, *member, report);
}

void Generations::OnWaitWithdrawn(Node& node, const v1::Fence& fence,
                                  const v1::WaitWithdrawn& withdrawn) {
  const auto [job, member] = Resolve(node, fence, "WaitWithdrawn");
  if (job != nullptr) blocked_.Withdraw(*job, *member, withdrawn);
}

}  // namespace meshrun::coordinator
