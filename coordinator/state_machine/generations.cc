#include "coordinator/state_machine/generations.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <cstring>

#include "core/exit_codes.h"
#include "core/hash.h"
#include "core/mesh_messages.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// Maps in a fixed order: the same table has the same digest on every host.
std::string Digest(const v1::World& world) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    world.SerializeToCodedStream(&coded);
  }
  return Sha256(bytes);
}

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

}  // namespace

void Generations::Begin(Job& job, const Placement& placement) {
  v1::Job& view = job.view;
  const uint64_t previous = view.generation();
  jobs_.SetState(job, v1::JOB_STATE_ADMITTED, "");
  view.set_generation(previous + 1);
  view.set_world_size(placement.world_size);
  view.clear_ranks();
  view.clear_groups();
  view.clear_master_addr();
  view.clear_master_port();
  job.members.clear();
  job.member_by_node.clear();
  job.members_alive = placement.nodes.size();
  job.members_prepared = 0;
  SetAxes(placement.mesh, view.mutable_mesh());
  auto world = std::make_shared<v1::World>();
  *world->mutable_mesh() = view.mesh();
  for (const PlacedNode& placed : placement.nodes) {
    Node& node = *nodes_.Find(placed.node_id);
    Member& member = job.members.emplace_back();
    job.member_by_node[placed.node_id] = job.members.size() - 1;
    member.node_id = placed.node_id;
    member.first_rank = view.ranks_size();
    member.rank_count = static_cast<int>(placed.procs);
    member.slots = placed.slots;
    member.memory_bytes = placed.memory_bytes;
    for (int local = 0; local < member.rank_count; ++local) {
      v1::RankStatus& status = *view.add_ranks();
      v1::RankAssignment& rank = *status.mutable_assignment();
      rank.set_rank(member.first_rank + local);
      rank.set_local_rank(local);
      rank.set_node_rank(static_cast<int>(job.members.size()) - 1);
      rank.set_node_id(member.node_id);
      if (!placed.gpus.empty()) {
        for (const uint32_t gpu : placed.gpus[local]) {
          rank.add_gpus(gpu);
          member.gpus.push_back(gpu);
        }
      }
      for (const int64_t c : MeshCoordinates(placement.mesh, rank.rank()))
        rank.add_mesh_coordinates(c);
      status.set_state(v1::RANK_STATE_ASSIGNED);
      status.set_node_name(node.record.name());
      *world->add_ranks() = rank;
    }
    (*world->mutable_addresses())[member.node_id] = node.record.address();
    nodes_.Hold(node, job.id(), member.slots, member.memory_bytes, member.gpus);
  }
  AddMeshGroups(view, placement.mesh);
  job.world_digest = Digest(*world);
  job.worlds[view.generation()] = std::move(world);
  jobs_.NewGeneration(job, previous);
  jobs_.SetState(job, v1::JOB_STATE_RENDEZVOUS,
                 fmt::format("{} ranks on {} nodes are being prepared", placement.world_size,
                             placement.nodes.size()));
  context_.Record("JobAdmitted", job.id(), "",
                  fmt::format("generation {}: {} ranks on {} nodes", view.generation(),
                              placement.world_size, placement.nodes.size()));
  for (const Member& member : job.members) SendPrepare(job, member);
}

Generations::Target Generations::Resolve(const Node& node, const v1::Fence& fence,
                                         std::string_view what) {
  Job* job = jobs_.Find(fence.job_id());
  Member* member = job == nullptr ? nullptr : job->FindMember(node.id());
  if (job != nullptr && job->active() && member != nullptr && !member->ended &&
      fence.generation() == job->view.generation()) {
    return {job, member};
  }
  context_.Warn(fmt::format(
      "{} of {} for job '{}' generation {} ignored: {}", what, node.record.name(), fence.job_id(),
      fence.generation(),
      job == nullptr ? "no such job"
                     : fmt::format("the job is {} in generation {}", StateName(job->view.state()),
                                   job->view.generation())));
  return {};
}

v1::OpenSessionResponse Generations::Envelope(const Job& job, const Node& node) const {
  v1::OpenSessionResponse message;
  message.mutable_fence()->set_job_id(job.id());
  message.mutable_fence()->set_generation(job.view.generation());
  message.mutable_fence()->set_incarnation(node.record.incarnation());
  return message;
}

void Generations::SendPrepare(const Job& job, const Member& member) {
  const Node& node = *nodes_.Find(member.node_id);
  if (node.session_id == 0) return;
  v1::OpenSessionResponse message = Envelope(job, node);
  v1::Prepare& prepare = *message.mutable_prepare();
  *prepare.mutable_spec() = job.view.spec();
  for (int i = 0; i < member.rank_count; ++i) {
    *prepare.add_ranks() = job.view.ranks(member.first_rank + i).assignment();
  }
  prepare.set_world_size(job.view.world_size());
  prepare.set_node_count(job.members.size());
  *prepare.mutable_mesh() = job.view.mesh();
  prepare.set_world_digest(job.world_digest);
  prepare.set_restarts(job.view.restarts());
  context_.Send(node.session_id, std::move(message));
}

void Generations::SendStart(const Job& job, const Member& member) {
  const Node& node = *nodes_.Find(member.node_id);
  if (node.session_id == 0) return;
  v1::OpenSessionResponse message = Envelope(job, node);
  message.mutable_start()->set_master_addr(job.view.master_addr());
  message.mutable_start()->set_master_port(job.view.master_port());
  context_.Send(node.session_id, std::move(message));
}

void Generations::SendStop(const Job& job, const Member& member, std::chrono::nanoseconds grace) {
  const Node* node = nodes_.Find(member.node_id);
  if (node == nullptr || node->session_id == 0 || member.ended) return;
  v1::OpenSessionResponse message = Envelope(job, *node);
  *message.mutable_stop()->mutable_grace() = ToProtoDuration(grace);
  message.mutable_stop()->set_reason(job.view.reason());
  context_.Send(node->session_id, std::move(message));
}

void Generations::SendForget(const std::string& job_id, uint64_t generation, const Node& node) {
  if (node.session_id == 0) return;
  v1::OpenSessionResponse message;
  message.mutable_fence()->set_job_id(job_id);
  message.mutable_fence()->set_generation(generation);
  message.mutable_fence()->set_incarnation(node.record.incarnation());
  message.mutable_forget();
  context_.Send(node.session_id, std::move(message));
}

void Generations::OnPrepareResult(Node& node, const v1::Fence& fence,
                                  const v1::PrepareResult& result) {
  if (result.draining()) nodes_.Drain(node);
  const auto [job, member] = Resolve(node, fence, "PrepareResult");
  if (job == nullptr || job->view.state() != v1::JOB_STATE_RENDEZVOUS) return;
  if (result.ok()) {
    if (member->prepared) return;
    member->prepared = true;
    member->master_port = result.master_port();
    if (++job->members_prepared == job->members.size()) Commit(*job);
    return;
  }
  const std::string message = fmt::format("{}: {}", node.record.name(), result.error());
  context_.Record("PrepareFailed", job->id(), node.id(), message);
  if (node.draining && !result.bad_command()) {
    Abandon(*job);
    Requeue(*job, message);
    return;
  }
  const v1::FailureCause cause =
      result.bad_command() ? v1::FAILURE_CAUSE_BAD_COMMAND : v1::FAILURE_CAUSE_PREPARE_FAILED;
  const bool try_again = !result.bad_command() && job->avoided_nodes.empty();
  Abandon(*job);
  if (try_again) {
    job->avoided_nodes.insert(node.id());
    PlacementRequest request{job->view.spec(), {}, {}};
    for (const v1::Node* other : nodes_.Present(/*healthy_only=*/true)) {
      if (other->node_id() != node.id()) request.nodes.push_back(other);
    }
    if (Place(request).placement.has_value()) {
      jobs_.SetState(*job, job->state_in_queue(), "to be placed again without " + message);
      return;
    }
  }
  v1::Failure& failure = *job->view.mutable_failure();
  failure.Clear();
  failure.set_cause(cause);
  failure.set_message(message);
  failure.set_rank(-1);
  failure.set_node_id(node.id());
  failure.set_node_name(node.record.name());
  failure.set_generation(job->view.generation());
  Finish(*job, v1::JOB_STATE_FAILED, message);
}

// Phase two. The state and the Start messages leave in one batch: the state is durable first.
void Generations::Commit(Job& job) {
  const Member& first = job.members.front();
  job.view.set_master_addr(nodes_.Find(first.node_id)->record.address());
  job.view.set_master_port(first.master_port);
  if (!job.view.has_started_at()) *job.view.mutable_started_at() = ToProtoTimestamp(context_.wall);
  job.avoided_nodes.clear();
  jobs_.SetState(job, v1::JOB_STATE_RUNNING, "");
  context_.Record("GenerationStarted", job.id(), "",
                  fmt::format("generation {} runs {} ranks on {} nodes", job.view.generation(),
                              job.view.world_size(), job.members.size()));
  for (const Member& member : job.members) SendStart(job, member);
}

// Ends a generation that never started: nothing runs, so nothing is waited for.
void Generations::Abandon(Job& job) {
  for (Member& member : job.members) {
    if (member.ended) continue;
    SendForget(job.id(), job.view.generation(), *nodes_.Find(member.node_id));
    EndMember(job, member, /*lost=*/false);
  }
  EndGeneration(job, "the generation was not started");
}

// After a failure that neither the job nor a host that it avoids has caused.
void Generations::Requeue(Job& job, std::string reason) {
  job.avoided_nodes.clear();
  jobs_.SetState(job, job.state_in_queue(), "to be placed again: " + std::move(reason));
}

void Generations::OnRanksStarted(Node& node, const v1::Fence& fence,
                                 const v1::RanksStarted& started) {
  const auto [job, member] = Resolve(node, fence, "RanksStarted");
  if (job == nullptr) return;
  for (const auto& [rank, pid] : started.pids()) {
    if (rank < member->first_rank || rank >= member->first_rank + member->rank_count) continue;
    v1::RankStatus& status = *job->view.mutable_ranks(rank);
    status.set_pid(pid);
    if (status.state() == v1::RANK_STATE_ASSIGNED) status.set_state(v1::RANK_STATE_RUNNING);
  }
  jobs_.Changed(*job, *member);
}

void Generations::OnRankExit(Node& node, const v1::Fence& fence, const v1::RankExit& exit) {
  const auto [job, member] = Resolve(node, fence, "RankExit");
  if (job == nullptr) return;
  if (exit.rank() < member->first_rank || exit.rank() >= member->first_rank + member->rank_count) {
    context_.Warn(fmt::format("RankExit of {}: rank {} of job {} does not live there",
                              node.record.name(), exit.rank(), job->id()));
    return;
  }
  TakeExit(*job, node, exit);
  jobs_.Changed(*job, *member);
}

void Generations::TakeExit(Job& job, const Node& node, const v1::RankExit& exit) {
  v1::RankStatus& status = *job.view.mutable_ranks(exit.rank());
  if (status.state() == v1::RANK_STATE_EXITED) return;
  status.set_state(v1::RANK_STATE_EXITED);
  *status.mutable_exit() = exit;
  // After the first failure or a cancel every further death is a consequence, whatever its cause.
  if (job.view.state() == v1::JOB_STATE_QUIESCING && !ExitedCleanly(exit)) {
    status.mutable_exit()->set_teardown(true);
  }
  status.set_end(DescribeEnd(exit));
  const std::string text = RankEndSentence(exit, node.record.name());
  store_.OnRankGone(job, exit.rank(), text);
  if (ExitedCleanly(exit)) {
    blocked_.OnRankLeft(job, exit.rank());
  } else {
    blocked_.OnRankLost(job, exit.rank(), PeerEndSentence(exit, node.record.name()));
  }
  // A rank that its worker stopped has not finished, however it ended.
  if (job.view.state() != v1::JOB_STATE_RUNNING || (ExitedCleanly(exit) && !exit.teardown()))
    return;
  if (exit.teardown()) {
    Fail(job, v1::FAILURE_CAUSE_NODE_LOST,
         fmt::format("the worker on {} stopped its ranks", node.record.name()), &node, &exit);
    return;
  }
  Fail(job, exit.signal() != 0 ? v1::FAILURE_CAUSE_RANK_SIGNALED : v1::FAILURE_CAUSE_RANK_EXITED,
       text, &node, &exit);
}

void Generations::Fail(Job& job, v1::FailureCause cause, std::string message, const Node* node,
                       const v1::RankExit* exit) {
  v1::Failure& failure = *job.view.mutable_failure();
  failure.Clear();
  failure.set_cause(cause);
  failure.set_message(message);
  failure.set_rank(exit == nullptr ? -1 : exit->rank());
  if (node != nullptr) {
    failure.set_node_id(node->id());
    failure.set_node_name(node->record.name());
    failure.set_planned(cause == v1::FAILURE_CAUSE_NODE_LOST && node->draining);
  }
  if (exit != nullptr) *failure.mutable_exit() = *exit;
  failure.set_generation(job.view.generation());
  context_.Record(exit == nullptr ? "NodeFailed" : "RankFailed", job.id(), failure.node_id(),
                  message);
  Quiesce(job, job.kill_grace(), std::move(message));
}

void Generations::Quiesce(Job& job, std::chrono::nanoseconds grace, std::string reason) {
  jobs_.SetState(job, v1::JOB_STATE_QUIESCING, std::move(reason));
  blocked_.Tell(job);
  for (const Member& member : job.members) SendStop(job, member, grace);
}

void Generations::OnEnded(Node& node, const v1::Fence& fence) {
  const auto [job, member] = Resolve(node, fence, "GenerationEnded");
  SendForget(fence.job_id(), fence.generation(), node);
  if (job == nullptr) return;
  if (job->view.state() == v1::JOB_STATE_RENDEZVOUS) {
    v1::PrepareResult gave_up;
    gave_up.set_error("gave the generation up before its start");
    OnPrepareResult(node, fence, gave_up);
    return;
  }
  for (int i = 0; i < member->rank_count && job->view.state() == v1::JOB_STATE_RUNNING; ++i) {
    const v1::RankStatus& status = job->view.ranks(member->first_rank + i);
    if (status.state() == v1::RANK_STATE_EXITED) continue;
    Fail(*job, v1::FAILURE_CAUSE_NODE_LOST,
         fmt::format("{} says that its ranks have ended, but not how rank {} did",
                     node.record.name(), status.assignment().rank()),
         &node, nullptr);
  }
  EndMember(*job, *member, /*lost=*/false);
  Conclude(*job);
}

void Generations::OnProgress(Node& node, const v1::Fence& fence, const v1::ProgressReport& report) {
  const auto [job, member] = Resolve(node, fence, "ProgressReport");
  if (job == nullptr) return;
  int lowest = job->view.world_size();
  for (const auto& [rank, progress] : report.progress()) {
    if (rank < member->first_rank || rank >= member->first_rank + member->rank_count) continue;
    *job->view.mutable_ranks(rank)->mutable_progress() = progress;
    lowest = std::min(lowest, rank);
  }
  for (int rank = 0; rank <= lowest && rank < job->view.ranks_size(); ++rank) {
    if (!job->view.ranks(rank).has_progress()) continue;
    *job->view.mutable_progress() = job->view.ranks(rank).progress();
    break;
  }
  jobs_.Progressed(*job);
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

void Generations::EndMember(Job& job, Member& member, bool lost) {
  if (member.ended) return;
  member.ended = true;
  --job.members_alive;
  for (int i = 0; lost && i < member.rank_count; ++i) {
    v1::RankStatus& status = *job.view.mutable_ranks(member.first_rank + i);
    if (status.state() == v1::RANK_STATE_EXITED) continue;
    status.set_state(v1::RANK_STATE_LOST);
    status.set_end(fmt::format("lost with {}", status.node_name()));
    store_.OnRankGone(job, member.first_rank + i,
                      fmt::format("rank {} was {}", member.first_rank + i, status.end()));
    blocked_.OnRankLost(job, member.first_rank + i,
                        fmt::format("its host {} was lost", status.node_name()));
  }
  if (Node* node = nodes_.Find(member.node_id); node != nullptr) {
    nodes_.Release(*node, job.id(), member.slots, member.memory_bytes, member.gpus);
  }
  jobs_.Changed(job, member);
}

// What becomes of the job when the last member has ended.
void Generations::Conclude(Job& job) {
  if (job.members_alive > 0 || !job.active()) return;
  EndGeneration(job, "the generation has ended");
  // A planned end costs no restart, but a job with max_restarts 0 fails: its user asked that it
  // never runs twice.
  const uint32_t budget = job.view.spec().max_restarts();
  const bool planned = job.failed() && job.view.failure().planned();
  // By this exit code a rank says that another run would end in the same way.
  const bool hopeless = job.view.failure().cause() == v1::FAILURE_CAUSE_RANK_EXITED &&
                        job.view.failure().exit().exit_code() == kExitDoNotRequeue;
  const bool may_restart = !hopeless && (planned ? budget > 0 : job.view.restarts() < budget);
  if (job.failed() && (!job.cancel_requested || !may_restart)) {
    if (!may_restart) {
      Finish(job, v1::JOB_STATE_FAILED, job.view.failure().message());
      return;
    }
    if (!planned) job.view.set_restarts(job.view.restarts() + 1);
    const std::string reason =
        fmt::format("{} after: {}",
                    planned ? "restart at no charge"
                            : fmt::format("restart {} of {}", job.view.restarts(), budget),
                    job.view.failure().message());
    context_.Record("JobRestarting", job.id(), "", reason);
    jobs_.SetState(job, v1::JOB_STATE_WAITING, reason);
    return;
  }
  if (job.cancel_requested) {
    Finish(job, v1::JOB_STATE_CANCELLED, job.cancel_reason);
    return;
  }
  Finish(job, v1::JOB_STATE_SUCCEEDED, "");
}

void Generations::EndGeneration(Job& job, const std::string& why) {
  store_.EndGeneration(job, why);
  blocked_.EndGeneration(job);
}

void Generations::Finish(Job& job, v1::JobState state, std::string reason) {
  const std::string kind = state == v1::JOB_STATE_SUCCEEDED ? "JobSucceeded"
                           : state == v1::JOB_STATE_FAILED  ? "JobFailed"
                                                            : "JobCancelled";
  context_.Record(kind, job.id(), "", reason);
  jobs_.SetState(job, state, std::move(reason));
}

void Generations::Cancel(Job& job, bool now, const std::string& reason) {
  if (job.ended()) return;
  if (now && !job.cancel_now) {
    job.cancel_now = true;
    jobs_.Changed(job);
  }
  if (!job.cancel_requested) {
    job.cancel_requested = true;
    job.cancel_reason = reason.empty() ? "cancelled by a client" : reason;
    context_.Record("CancelRequested", job.id(), "", job.cancel_reason);
    jobs_.Changed(job);
  }
  if (job.queued()) {
    Finish(job, v1::JOB_STATE_CANCELLED, job.cancel_reason);
  } else if (job.view.state() == v1::JOB_STATE_RENDEZVOUS) {
    Abandon(job);
    Finish(job, v1::JOB_STATE_CANCELLED, job.cancel_reason);
  } else if (job.view.state() == v1::JOB_STATE_RUNNING) {
    Quiesce(job, job.stop_grace(), job.cancel_reason);
  } else if (now) {
    for (const Member& member : job.members) SendStop(job, member, job.stop_grace());
  }
}

void Generations::OnDeadline(Job& job) {
  if (job.queued()) {
    const std::string message =
        fmt::format("not placed within its queue timeout of {}: {}",
                    FormatDuration(FromProto(job.view.spec().queue_timeout())),
                    job.view.reason().empty() ? "no reason known" : job.view.reason());
    v1::Failure& failure = *job.view.mutable_failure();
    failure.Clear();
    failure.set_cause(v1::FAILURE_CAUSE_QUEUE_TIMEOUT);
    failure.set_message(message);
    failure.set_rank(-1);
    failure.set_generation(job.view.generation());
    Finish(job, v1::JOB_STATE_FAILED, message);
    return;
  }
  if (job.view.state() == v1::JOB_STATE_RENDEZVOUS) {
    for (Member& member : job.members) {
      if (member.prepared || member.ended) continue;
      v1::Fence fence;
      fence.set_job_id(job.id());
      fence.set_generation(job.view.generation());
      v1::PrepareResult silence;
      silence.set_error("no answer to Prepare within 30 s");
      OnPrepareResult(*nodes_.Find(member.node_id), fence, silence);
      return;
    }
    return;
  }
  if (job.view.state() != v1::JOB_STATE_QUIESCING) return;
  for (Member& member : job.members) {
    if (member.ended) continue;
    const Node& node = *nodes_.Find(member.node_id);
    context_.Record(
        "MemberStuck", job.id(), node.id(),
        fmt::format("{} did not say that its ranks ended; it is told to kill and forget them",
                    node.record.name()));
    SendForget(job.id(), job.view.generation(), node);
    EndMember(job, member, /*lost=*/true);
  }
  Conclude(job);
}

}  // namespace meshrun::coordinator
