#include "coordinator/state_machine/roll_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "coordinator/state_machine/callers.h"
#include "coordinator/state_store/meta_keys.h"
#include "core/proto_time.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// Workers that have lost their coordinator try again at least once a second.
constexpr std::chrono::seconds kToConnect(2);
// Ranks go on without a coordinator for five minutes, unless their worker was told otherwise.
constexpr std::chrono::seconds kLongest(60);
// A term rises by one with each start: no real one is further above that of the copy.
constexpr uint64_t kMostTerms = uint64_t{1} << 32;
constexpr size_t kLongestJobId = 128;

v1::RestoreEvent WithoutRows(const v1::RestoreEvent& restore) {
  v1::RestoreEvent out;
  out.set_term(restore.term());
  *out.mutable_lease() = restore.lease();
  *out.mutable_heartbeat_interval() = restore.heartbeat_interval();
  out.set_cluster_id(restore.cluster_id());
  return out;
}

v1::StateRow ErasedMetaRow(std::string_view key) {
  v1::StateRow row = MetaRow(key, "");
  row.set_erased(true);
  return row;
}

}  // namespace

RollCall::RollCall(const v1::RestoreEvent& restore)
    : restore_(WithoutRows(restore)), highest_term_(restore.term()) {}

void RollCall::Restore(const v1::RestoreEvent& part, SteadyNanos now) {
  if (!part.more()) {
    earliest_ = now + FromProto(restore_.lease()) + kToConnect;
    latest_ = std::max<SteadyNanos>(earliest_, now + kLongest);
  }
  for (const v1::StateRow& row : part.rows()) {
    if (row.table() == v1::STATE_TABLE_META && row.key() == kCopyKey) name_ = row.value();
    v1::NodeRecord node;
    if (row.table() == v1::STATE_TABLE_NODES && node.ParseFromString(row.value()) &&
        node.node().state() != v1::NODE_STATE_LOST) {
      expected_.insert(row.key());
    }
    if (!IsReconciled(row.table())) continue;
    v1::StateRow& kept = copy_.emplace_back(row);
    if (row.table() == v1::STATE_TABLE_VALUES || row.table() == v1::STATE_TABLE_REQUESTS)
      kept.clear_value();
  }
}

bool RollCall::AllHaveAnswered() const {
  for (const std::string& node_id : expected_) {
    if (!nodes_.contains(node_id)) return false;
  }
  for (const auto& [node_id, node] : nodes_) {
    for (const v1::RunningGeneration& running : node.hello.running()) {
      const bool counts = running.started() && !running.ended() && !running.stopping();
      if (counts && !node.details.contains({running.job_id(), running.generation()})) return false;
    }
  }
  return true;
}

Actions RollCall::Step(const v1::StateEvent& event, absl::Status allowed) {
  Actions actions;
  if (done_) return actions;
  const SteadyNanos now(event.now_nanos());
  if (event.has_session_message() && !allowed.ok()) {
    actions.list.push_back(CloseSession{event.session_message().session_id(), std::move(allowed)});
  } else if (event.has_session_message()) {
    OnMessage(event.session_message(), &actions);
  } else if (event.has_session_closed()) {
    sessions_.erase(event.session_closed().session_id());
  } else if (event.call_id() != 0) {
    actions.list.push_back(
        ReplyToCall{event.call_id(),
                    absl::UnavailableError(
                        fmt::format("the coordinator's state is a copy, and it asks the hosts what "
                                    "they run: it takes calls in {}",
                                    FormatDuration(std::max(deadline() - now, SteadyNanos(0))))),
                    nullptr});
  }
  if (now < deadline() || !event.end_of_batch()) return actions;
  done_ = true;
  RollCallResult result = Reconcile(copy_, nodes_, FromProto(event.wall()));
  actions.rows = std::move(result.rows);
  // With the rows, or not at all.
  actions.rows.push_back(ErasedMetaRow(kOutdatedKey));
  actions.rows.push_back(ErasedMetaRow(kCopyKey));
  if (!name_.empty()) {
    actions.rows.push_back(MetaRow(std::string(kConfirmedPrefix) + name_, ""));
  }
  actions.rows.push_back(MetaRow("term", fmt::to_string(highest_term_ + 1)));
  actions.list.push_back(BeginAnew{highest_term_ + 1, "StateRestored", std::move(result.summary)});
  return actions;
}

absl::Status RollCall::CheckHello(const v1::OpenSessionRequest& message) const {
  const v1::Hello& hello = message.hello();
  if (message.fence().term() > restore_.term() + kMostTerms) {
    return absl::FailedPreconditionError(fmt::format(
        "{} says that it knows term {}, and the copy is of term {}: its state is damaged",
        hello.name(), message.fence().term(), restore_.term()));
  }
  if (const auto known = nodes_.find(hello.node_id()); known != nodes_.end()) {
    const v1::Hello& other = known->second.hello;
    if (other.name() != hello.name()) {
      return absl::PermissionDeniedError(
          fmt::format("node id {} is '{}'", hello.node_id(), other.name()));
    }
    const auto order = [](uint64_t incarnation, const v1::Hello& said) {
      return std::tuple(incarnation, said.session_number(), said.attempt());
    };
    if (order(message.fence().incarnation(), hello) < order(known->second.incarnation, other))
      return absl::AbortedError("a newer session of this node has answered");
  }
  return CheckCluster(restore_.cluster_id(), hello);
}

// Only what the host has named, and what can be a generation.
void RollCall::TakeDetails(const std::string& node_id, const v1::OpenSessionRequest& message) {
  RollCallNode& node = nodes_.at(node_id);
  const std::pair<std::string, uint64_t> key = {message.fence().job_id(),
                                                message.fence().generation()};
  const auto& running = node.hello.running();
  const bool is_named =
      std::any_of(running.begin(), running.end(), [&key](const v1::RunningGeneration& each) {
        return each.job_id() == key.first && each.generation() == key.second;
      });
  const v1::Prepare& prepare = message.generation_details().prepare();
  const bool is_sane =
      !key.first.empty() && key.first.size() <= kLongestJobId && key.first[0] != '.' &&
      key.first.find('/') == std::string::npos && key.second > 0 && !prepare.ranks().empty() &&
      std::all_of(
          prepare.ranks().begin(), prepare.ranks().end(), [&](const v1::RankAssignment& rank) {
            return rank.rank() >= 0 && static_cast<uint32_t>(rank.rank()) < prepare.world_size() &&
                   rank.node_rank() == prepare.ranks(0).node_rank() && rank.node_rank() >= 0 &&
                   static_cast<uint32_t>(rank.node_rank()) < prepare.node_count() &&
                   rank.node_id() == node_id;
          });
  if (is_named && is_sane) node.details[key] = message.generation_details();
}

void RollCall::OnMessage(const v1::SessionMessage& event, Actions* actions) {
  const v1::OpenSessionRequest& message = event.message();
  const v1::Fence& fence = message.fence();
  v1::OpenSessionResponse reply;
  absl::Status status = absl::OkStatus();
  if (message.has_hello()) {
    status = CheckHello(message);
  } else if (!sessions_.contains(event.session_id())) {
    status = absl::InvalidArgumentError("the first message of a session is Hello");
  }
  if (!status.ok()) {
    actions->list.push_back(CloseSession{event.session_id(), std::move(status)});
    return;
  }
  if (message.has_hello()) {
    highest_term_ = std::max(highest_term_, fence.term());
    RollCallNode& node = nodes_[message.hello().node_id()];
    node.hello = message.hello();
    node.incarnation = fence.incarnation();
    // A worker hears nobody of a lower term than it knows.
    sessions_[event.session_id()] = {message.hello().node_id(),
                                     std::max(restore_.term(), fence.term())};
    v1::Welcome& welcome = *reply.mutable_welcome();
    *welcome.mutable_lease() = restore_.lease();
    *welcome.mutable_heartbeat_interval() = restore_.heartbeat_interval();
    welcome.set_cluster_id(restore_.cluster_id());
    welcome.set_roll_call(true);
  } else if (message.has_heartbeat()) {
    reply.mutable_heartbeat_reply()->set_sequence(message.heartbeat().sequence());
  } else {
    if (message.has_generation_details())
      TakeDetails(sessions_.at(event.session_id()).first, message);
    return;
  }
  reply.mutable_fence()->set_term(sessions_.at(event.session_id()).second);
  reply.mutable_fence()->set_incarnation(fence.incarnation());
  actions->list.push_back(SendToSession{event.session_id(), std::move(reply)});
}

}  // namespace meshrun::coordinator
