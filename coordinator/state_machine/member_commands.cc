#include "coordinator/state_machine/member_commands.h"

#include <csignal>
#include <map>
#include <utility>

#include "core/proto_time.h"

namespace meshrun::coordinator {

void MemberCommands::Prepare(const Job& job, const Member& member) {
  const Node& node = *nodes_.Find(member.node_id);
  if (node.session_id == 0) return;
  v1::OpenSessionResponse message = MessageTo(node, job.id(), job.view.generation());
  v1::Prepare& prepare = *message.mutable_prepare();
  *prepare.mutable_spec() = job.view.spec();
  *prepare.mutable_spec()->mutable_env() = job.record.env();
  prepare.set_submitter(job.view.submitter());
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

void MemberCommands::Start(const Job& job, const Member& member) {
  const Node& node = *nodes_.Find(member.node_id);
  if (node.session_id == 0) return;
  v1::OpenSessionResponse message = MessageTo(node, job.id(), job.view.generation());
  message.mutable_start()->set_master_addr(job.view.master_addr());
  if (const auto world = job.worlds.find(job.view.generation()); world != job.worlds.end()) {
    for (const v1::NodeAddresses& host : world->second->addresses()) {
      if (host.node_id() != job.members.front().node_id) continue;
      *message.mutable_start()->mutable_master_addresses() = host.addresses();
    }
  }
  message.mutable_start()->set_master_port(job.view.master_port());
  context_.Send(node.session_id, std::move(message));
}

void MemberCommands::Stop(const Job& job, const Member& member, std::chrono::nanoseconds grace) {
  const Node* node = nodes_.Find(member.node_id);
  if (node == nullptr || node->session_id == 0 || member.ended) return;
  v1::OpenSessionResponse message = MessageTo(*node, job.id(), job.view.generation());
  *message.mutable_stop()->mutable_grace() = ToProtoDuration(grace);
  message.mutable_stop()->set_reason(job.view.reason());
  message.mutable_stop()->set_first_signal(job.record.cancel_signal());
  context_.Send(node->session_id, std::move(message));
}

void MemberCommands::Forget(const std::string& job_id, uint64_t generation, const Node& node) {
  if (node.session_id == 0) return;
  v1::OpenSessionResponse message = MessageTo(node, job_id, generation);
  message.mutable_forget();
  context_.Send(node.session_id, std::move(message));
}

void MemberCommands::RepeatPauses(Job& job, const Member& member) {
  const Node& node = *nodes_.Find(member.node_id);
  if (node.session_id == 0 || member.ended) return;
  std::map<int, v1::SignalRanks> by_signal;
  const auto add = [&](int signal, int rank) {
    if (job.view.ranks(rank).state() == v1::RANK_STATE_EXITED) return;
    by_signal[signal].set_signal(signal);
    by_signal[signal].add_ranks(rank);
  };
  for (const int rank : job.record.paused_ranks()) {
    if (member.Has(rank)) add(SIGSTOP, rank);
  }
  for (auto& [rank, at] : job.told_to_go_on) {
    if (!member.Has(rank)) continue;
    // A message of the worker that came a moment later may have been under way before.
    if (at + context_.lease < node.heard_before) continue;
    add(SIGCONT, rank);
    at = context_.now;  // this one may be lost, too
  }
  for (auto& [signal, ranks] : by_signal) {
    v1::OpenSessionResponse message = MessageTo(node, job.id(), job.view.generation());
    *message.mutable_signal_ranks() = std::move(ranks);
    context_.Send(node.session_id, std::move(message));
  }
}

void MemberCommands::Quiesce(const Job& job, const Member& member) {
  const Node& node = *nodes_.Find(member.node_id);
  if (node.session_id == 0 || member.ended) return;
  v1::OpenSessionResponse message = MessageTo(node, job.id(), job.view.generation());
  message.mutable_quiesce()->set_reason(job.view.reason());
  message.mutable_quiesce()->set_save(job.record.save_asked());
  *message.mutable_quiesce()->mutable_deadline() = ToProtoDuration(kQuiesceTimeout);
  context_.Send(node.session_id, std::move(message));
}

}  // namespace meshrun::coordinator
