// What the workers say in their sessions.
#include <fmt/format.h>

#include <utility>

#include "coordinator/state_machine/callers.h"
#include "coordinator/state_machine/state_machine.h"
#include "coordinator/state_store/meta_keys.h"
#include "core/proto_time.h"

namespace meshrun::coordinator {

// Workers repeat it without end: people are told once. One worker may be wrong, or lie. Where most
// of those that this state knows say the same, nothing may be decided from it any more.
void StateMachine::OnHigherTerm(uint64_t session_id, const v1::OpenSessionRequest& message,
                                const Node* node) {
  Context& context = parts_->context;
  const uint64_t its_term = message.fence().term();
  const std::string why = fmt::format(
      "this coordinator is in term {}, and {} knows term {}: another one has taken over, or this "
      "one's state is an old copy, and it must be started with --restored",
      context.term, node != nullptr ? node->record.name() : message.hello().name(), its_term);
  context.Close(session_id, absl::UnavailableError(why));
  if (!std::exchange(parts_->higher_term_recorded, true)) {
    context.Warn(why);
    context.Record("HigherTerm", "", "", why);
  }
  if (node == nullptr || node->lost()) return;
  parts_->nodes_of_higher_term.insert(node->id());
  if (parts_->nodes_of_higher_term.size() * 2 <= parts_->nodes.Present(false).size()) return;
  parts_->outdated = fmt::format("this state is outdated: {}", why);
  context.Put(v1::STATE_TABLE_META, std::string(kOutdatedKey), parts_->outdated);
  context.Warn(parts_->outdated);
}

Actions StateMachine::Refuse(const v1::StateEvent& event) const {
  Actions actions;
  const absl::Status why = absl::UnavailableError(outdated_);
  if (event.has_session_message()) {
    actions.list.push_back(CloseSession{event.session_message().session_id(), why});
  } else if (event.call_id() != 0) {
    actions.list.push_back(ReplyToCall{event.call_id(), why, nullptr});
  }
  return actions;
}

void StateMachine::OnHello(uint64_t session_id, const v1::OpenSessionRequest& message,
                           const v1::Caller& caller) {
  Context& context = parts_->context;
  if (absl::Status status = CheckCluster(context.cluster_id, message.hello()); !status.ok()) {
    context.Close(session_id, std::move(status));
    return;
  }
  const Node* const known = parts_->nodes.Find(message.hello().node_id());
  if (message.fence().term() > context.term) {
    OnHigherTerm(session_id, message, known);
    return;
  }
  const bool is_anew =
      known != nullptr && known->record.incarnation() < message.fence().incarnation();
  const bool comes_back =
      known != nullptr && known->record.incarnation() == message.fence().incarnation();
  auto node = parts_->nodes.Register(session_id, message.fence().incarnation(), message.hello());
  if (!node.ok()) {
    context.Close(session_id, node.status());
    return;
  }
  parts_->nodes_of_higher_term.erase((*node)->id());
  parts_->certificates.OnHello(**node, caller);
  if (comes_back) parts_->audit.IsRepeated();
  // What was wrong there may be mended.
  if (is_anew) parts_->jobs.ForgiveNode((*node)->id());
  v1::OpenSessionResponse response;
  response.mutable_fence()->set_incarnation(message.fence().incarnation());
  *response.mutable_welcome()->mutable_lease() = ToProtoDuration(context.lease);
  *response.mutable_welcome()->mutable_heartbeat_interval() = ToProtoDuration(context.heartbeat);
  response.mutable_welcome()->set_cluster_id(context.cluster_id);
  context.Send(session_id, std::move(response));
  parts_->generations.OnNodeReturned(**node, message.hello());
  if (message.hello().draining()) parts_->queue.OnWorkerStopping(**node);
  for (const v1::RunningGeneration& running : message.hello().running()) {
    parts_->queue.OnRanksJoined(running.job_id());
  }
}

void StateMachine::OnSessionMessage(const v1::SessionMessage& event, const v1::Caller& caller) {
  Context& context = parts_->context;
  Generations& generations = parts_->generations;
  const v1::OpenSessionRequest& message = event.message();
  const v1::Fence& fence = message.fence();
  if (message.has_hello()) {
    OnHello(event.session_id(), message, caller);
    return;
  }
  Node* node = parts_->nodes.Renew(event.session_id());
  if (node == nullptr) {
    context.Close(event.session_id(),
                  absl::InvalidArgumentError("the first message of a session is Hello"));
    return;
  }
  if (fence.term() > context.term) {
    OnHigherTerm(event.session_id(), message, node);
    return;
  }
  if (fence.term() < context.term || fence.incarnation() != node->record.incarnation()) {
    context.Warn(
        fmt::format("message {} of {} ignored: it has term {} incarnation {}, and the current ones "
                    "are {} and {}",
                    static_cast<int>(message.message_case()), node->record.name(), fence.term(),
                    fence.incarnation(), context.term, node->record.incarnation()));
    return;
  }
  switch (message.message_case()) {
    case v1::OpenSessionRequest::kHeartbeat: {
      v1::OpenSessionResponse reply;
      reply.mutable_fence()->set_incarnation(fence.incarnation());
      reply.mutable_heartbeat_reply()->set_sequence(message.heartbeat().sequence());
      reply.mutable_heartbeat_reply()->set_received_at_nanos(context.now.count());
      context.Send(event.session_id(), std::move(reply));
      if (message.heartbeat().draining() && !node->draining) {
        parts_->nodes.Drain(*node);
        parts_->queue.OnWorkerStopping(*node);
      }
      break;
    }
    case v1::OpenSessionRequest::kPrepareResult:
      generations.OnPrepareResult(*node, fence, message.prepare_result());
      break;
    case v1::OpenSessionRequest::kRanksStarted:
      generations.OnRanksStarted(*node, fence, message.ranks_started());
      break;
    case v1::OpenSessionRequest::kRanksJoined:
      generations.OnRanksJoined(*node, fence, message.ranks_joined());
      parts_->queue.OnRanksJoined(fence.job_id());
      break;
    case v1::OpenSessionRequest::kRanksQuiesced:
      generations.OnRanksQuiesced(*node, fence, message.ranks_quiesced());
      break;
    case v1::OpenSessionRequest::kHostHealth:
      parts_->nodes.SetProblems(*node, message.host_health());
      if (node->record.problems().empty()) parts_->jobs.ForgiveNode(node->id());
      break;
    case v1::OpenSessionRequest::kGenerationDetails:  // for a roll call alone
      break;
    case v1::OpenSessionRequest::kLogsRemoved:
      parts_->nodes.OnLogsRemoved(*node, message.logs_removed());
      break;
    case v1::OpenSessionRequest::kRankExit:
      generations.OnRankExit(*node, fence, message.rank_exit());
      break;
    case v1::OpenSessionRequest::kGenerationEnded:
      generations.OnEnded(*node, fence);
      break;
    case v1::OpenSessionRequest::kProgressReport:
      if (const auto steps = generations.OnProgress(*node, fence, message.progress_report())) {
        parts_->hangs.OnProgress(*steps);
        parts_->stragglers.OnProgress(*steps);
      }
      break;
    case v1::OpenSessionRequest::kWaitReport:
      generations.OnWaitReport(*node, fence, message.wait_report());
      break;
    case v1::OpenSessionRequest::kWaitWithdrawn:
      generations.OnWaitWithdrawn(*node, fence, message.wait_withdrawn());
      break;
    case v1::OpenSessionRequest::kGoodbye:
      context.Record("NodeLeft", "", node->id(), node->record.name() + " said goodbye");
      node->draining = true;
      parts_->nodes.Lose(*node, absl::OkStatus());
      generations.OnNodeLost(*node, node->record.name() + " left: its worker was stopped",
                             /*stopped=*/true);
      break;
    case v1::OpenSessionRequest::kHello:
    case v1::OpenSessionRequest::MESSAGE_NOT_SET:
      break;
  }
}

}  // namespace meshrun::coordinator
