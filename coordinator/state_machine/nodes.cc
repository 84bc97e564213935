#include "coordinator/state_machine/nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/state_machine/placement.h"
#include "core/proto_time.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

// HostHealth.
constexpr size_t kMostProblems = 16;
constexpr size_t kLongestProblem = 1000;
// LogsRemoved.
constexpr size_t kLongestName = 200;

v1::NodeState StateWithSession(const Node& node) {
  if (node.draining || !node.record.drain_reason().empty()) return v1::NODE_STATE_DRAINING;
  return node.record.problems().empty() ? v1::NODE_STATE_HEALTHY : v1::NODE_STATE_UNHEALTHY;
}

}  // namespace

v1::OpenSessionResponse MessageTo(const Node& node, const std::string& job_id,
                                  uint64_t generation) {
  v1::OpenSessionResponse message;
  message.mutable_fence()->set_job_id(job_id);
  message.mutable_fence()->set_generation(generation);
  message.mutable_fence()->set_incarnation(node.record.incarnation());
  return message;
}

absl::StatusOr<Node*> NodeTable::Register(uint64_t session_id, uint64_t incarnation,
                                          const v1::Hello& hello) {
  if (hello.node_id().empty() || hello.name().empty()) {
    return absl::InvalidArgumentError("Hello names no node_id or no name");
  }
  if (hello.resources().slots() == 0) {
    return absl::InvalidArgumentError(
        fmt::format("node {} offers 0 slots: give it at least 1", hello.name()));
  }
  const std::string address = hello.addresses().empty() ? "" : hello.addresses(0);
  const auto [it, is_new] = nodes_.try_emplace(hello.node_id());
  Node& node = it->second;
  v1::Node& record = node.record;
  if (!is_new) {
    if (incarnation < record.incarnation()) {
      return absl::FailedPreconditionError(
          fmt::format("incarnation {} of node {} is over: {} has registered since", incarnation,
                      record.name(), record.incarnation()));
    }
    const bool other_machine = !hello.machine_id().empty() && !record.machine_id().empty() &&
                               hello.machine_id() != record.machine_id();
    if (other_machine && !node.lost()) {
      return absl::AlreadyExistsError(fmt::format(
          "node id {} is that of {} at {}, and the worker {} at {} is another machine: its state "
          "directory is a copy; give each worker one of its own",
          hello.node_id(), record.name(), node.address(), hello.name(), address));
    }
    if (other_machine && !node.jobs.empty() && context_.now < node.fence() &&
        node.fence() != SteadyNanos::max()) {
      // What this machine runs says nothing of the ranks on the other one.
      return absl::UnavailableError(fmt::format(
          "node id {} was that of another machine, {}, whose ranks may compute for {} more: then "
          "{} takes its place",
          hello.node_id(), record.name(), FormatDuration(node.fence() - context_.now),
          hello.name()));
    }
    const bool other_host = address != node.address() || hello.name() != record.name();
    if (node.session_id != 0 && incarnation == record.incarnation() && other_host) {
      return absl::AlreadyExistsError(fmt::format(
          "node id {} is in use by {} at {}, and {} at {} claims it too: give each worker a state "
          "directory of its own",
          hello.node_id(), record.name(), node.address(), hello.name(), address));
    }
    // What such a Hello says of the generations that run there is out of date.
    const bool is_late = hello.session_number() < node.session_number ||
                         (hello.session_number() == node.session_number &&
                          (node.session_confirmed || hello.attempt() < node.attempt));
    if (incarnation == record.incarnation() && hello.session_number() != 0 && is_late &&
        !node.lost()) {
      return absl::AbortedError("a newer Hello of this worker came over another connection");
    }
    if (node.session_id != 0) {
      sessions_.erase(node.session_id);
      context_.Close(node.session_id, absl::AbortedError("a newer session of this node took over"));
    }
  }
  const bool was_away = !is_new && node.session_id == 0;
  const bool was_lost = !is_new && node.lost();
  const bool was_draining = node.draining;
  const bool rebooted = !is_new && incarnation != record.incarnation();
  record.set_node_id(hello.node_id());
  record.set_name(hello.name());
  *record.mutable_addresses() = hello.addresses();
  record.set_machine_id(hello.machine_id());
  *record.mutable_resources() = hello.resources();
  record.set_incarnation(incarnation);
  record.set_version(hello.version());
  *record.mutable_shipped_jobs() = hello.shipped_jobs();
  *record.mutable_labels() = hello.labels();
  record.clear_lost_at();
  if (is_new) *record.mutable_registered_at() = ToProtoTimestamp(context_.wall);
  *record.mutable_last_seen_at() = ToProtoTimestamp(context_.wall);
  node.session_id = session_id;
  node.session_number = hello.session_number();
  node.attempt = hello.attempt();
  node.session_confirmed = false;
  sessions_[session_id] = node.id();
  leases_.Set(node.id(), context_.now + context_.lease);
  fences_.Clear(node.id());
  node.strays.clear();
  node.heard_before = std::exchange(node.last_heard, context_.now);
  node.fence_after.reset();
  if (hello.has_fence_after()) node.fence_after = FromProto(hello.fence_after());
  recovering_.erase(node.id());
  lost_.erase(node.id());
  if (is_new) {
    last_joined_ = context_.now;
    DropReplaced(node);
    context_.Record("NodeJoined", "", node.id(),
                    fmt::format("{} at {} joined with {} and {}", record.name(), node.address(),
                                Count(record.resources().slots(), "slot"),
                                Count(record.resources().gpus_size(), "GPU")));
  } else if (rebooted || was_away) {
    context_.Record("NodeReturned", "", node.id(),
                    fmt::format("{} returned{}", record.name(),
                                rebooted ? fmt::format(" as incarnation {}", incarnation) : ""));
  }
  node.draining = false;
  SetProblems(node, hello.health());
  record.set_state(StateWithSession(node));
  // A lost one has been counted.
  if (rebooted && !was_lost && !was_draining) CountAbsence(node);
  if (hello.draining()) Drain(node);
  Recomposed(node);
  return &node;
}

Node* NodeTable::Renew(uint64_t session_id) {
  const auto it = sessions_.find(session_id);
  if (it == sessions_.end()) return nullptr;
  Node& node = nodes_.at(it->second);
  node.session_confirmed = true;
  leases_.Set(node.id(), context_.now + context_.lease);
  node.last_heard = context_.now;
  *node.record.mutable_last_seen_at() = ToProtoTimestamp(context_.wall);
  return &node;
}

void NodeTable::Disconnect(uint64_t session_id) {
  const auto it = sessions_.find(session_id);
  if (it == sessions_.end()) return;
  Node& node = nodes_.at(it->second);
  sessions_.erase(it);
  node.session_id = 0;
  node.record.set_state(v1::NODE_STATE_SUSPECT);
  context_.Record("NodeSuspect", "", node.id(),
                  fmt::format("the session of {} broke; its lease runs on for at most {}",
                              node.record.name(), FormatDuration(context_.lease)));
  Changed(node);
}

void NodeTable::Drain(Node& node) {
  if (node.draining) return;
  node.draining = true;
  if (node.session_id != 0) node.record.set_state(v1::NODE_STATE_DRAINING);
  context_.Record("NodeDraining", "", node.id(),
                  fmt::format("the worker on {} is stopping", node.record.name()));
  Recomposed(node);
}

void NodeTable::SetDrainReason(Node& node, std::string reason) {
  if (node.record.drain_reason() == reason) return;
  node.record.set_drain_reason(std::move(reason));
  if (!node.record.drain_reason().empty()) {
    context_.Record("NodeDraining", "", node.id(),
                    fmt::format("{} drains: {}", node.record.name(), node.record.drain_reason()));
  }
  if (node.session_id != 0) node.record.set_state(StateWithSession(node));
  Recomposed(node);
}

void NodeTable::SetProblems(Node& node, const v1::HostHealth& health) {
  std::vector<std::string> problems;
  for (const std::string& problem : health.problems()) {
    if (problems.size() == kMostProblems) break;
    problems.emplace_back(Utf8Prefix(problem, kLongestProblem));
  }
  v1::Node& record = node.record;
  if (std::equal(problems.begin(), problems.end(), record.problems().begin(),
                 record.problems().end())) {
    return;
  }
  record.mutable_problems()->Clear();
  record.mutable_problems()->Add(problems.begin(), problems.end());
  if (problems.empty()) {
    context_.Record("NodeHealthy", "", node.id(), record.name() + " takes jobs again");
  } else {
    context_.Record("NodeUnhealthy", "", node.id(),
                    fmt::format("{} takes no jobs: {}", record.name(), fmt::join(problems, "; ")));
  }
  if (node.session_id != 0) record.set_state(StateWithSession(node));
  Recomposed(node);
}

void NodeTable::OnLogsRemoved(const Node& node, const v1::LogsRemoved& logs) {
  const std::string user(Utf8Prefix(logs.submitter(), kLongestName));
  const std::string job(Utf8Prefix(logs.job_id(), kLongestName));
  context_.Record(
      "LogsRemoved", "", node.id(),
      fmt::format("{} has removed logs of {}{} ({}), most of them of job {}: those of ended jobs "
                  "took more than {} there, and {} the most",
                  node.record.name(), Count(logs.generations(), "generation"),
                  user.empty() ? "" : fmt::format(" of {}", user), FormatBytes(logs.bytes()), job,
                  FormatBytes(logs.keep_bytes()), user.empty() ? "these" : "this user's"));
}

void NodeTable::Lose(Node& node, absl::Status why) {
  leases_.Clear(node.id());
  recovering_.erase(node.id());
  if (node.session_id != 0) {
    sessions_.erase(node.session_id);
    context_.Close(std::exchange(node.session_id, 0), std::move(why));
  }
  node.record.set_state(v1::NODE_STATE_LOST);
  lost_.insert(node.id());
  if (node.fence() != SteadyNanos::max()) fences_.Set(node.id(), node.fence());
  *node.record.mutable_lost_at() = ToProtoTimestamp(context_.wall);
  context_.Add(
      EndUploads{node.id(), absl::UnavailableError(fmt::format("{}, which holds the file, is lost",
                                                               node.record.name()))});
  Recomposed(node);
}

Node* NodeTable::ExpireNext() {
  const auto node_id = leases_.PopDue(context_.now);
  if (!node_id.has_value()) return nullptr;
  Node& node = nodes_.at(*node_id);
  node.lost_because =
      fmt::format("{} its lease of {}",
                  node.session_id != 0 ? "silent for"
                  : IsRecovering(node) ? "it did not come back within"
                                       : "its connection broke, and it did not come back within",
                  FormatDuration(context_.lease));
  if (const WallNanos end = FromProto(node.record.certificate_ends_at());
      node.record.has_certificate_ends_at() && end <= context_.wall) {
    node.lost_because += fmt::format("; its certificate {}: renew it with 'meshrun ca renew'",
                                     certificates::DescribeEnd(context_.wall, end));
  }
  const std::string message = fmt::format("{} is lost: {}", node.record.name(), node.lost_because);
  Lose(node, absl::DeadlineExceededError(message));
  context_.Record("NodeLost", "", node.id(), message);
  if (!node.draining) CountAbsence(node);
  return &node;
}

void NodeTable::CountAbsence(Node& node) {
  const size_t most = context_.quarantine.absences();
  const WallNanos window = FromProto(context_.quarantine.window());
  if (most == 0 || (!node.absences.empty() && node.absences.back() == context_.wall)) return;
  node.absences.push_back(context_.wall);
  while (node.absences.size() > most || node.absences.front() + window < context_.wall) {
    node.absences.pop_front();
  }
  Changed(node);
  if (node.absences.size() < most) return;
  Quarantine(node, fmt::format("went away {} times within {}", most, FormatDuration(window)));
}

void NodeTable::CountRefusal(Node& node, const std::string& what, const std::string& error) {
  const size_t most = context_.quarantine.refused_jobs();
  // Where it may not be quarantined, the count stays where it is.
  if (node.refused_jobs.size() < most && node.refused_jobs.insert(what).second) Changed(node);
  if (most == 0 || node.refused_jobs.size() < most) return;
  Quarantine(
      node,
      fmt::format(
          "could not prepare {} jobs that others could, one after another, the last one for: {}",
          node.refused_jobs.size(), error));
}

void NodeTable::ClearRefusals(Node& node) {
  if (std::exchange(node.refused_jobs, {}).empty()) return;
  Changed(node);
}

void NodeTable::Quarantine(Node& node, const std::string& what) {
  if (node.record.drained()) return;
  const auto quarantined = std::count_if(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    return entry.second.record.quarantined();
  });
  if ((static_cast<size_t>(quarantined) + 1) * 2 > nodes_.size()) return;
  node.record.set_quarantined(true);
  node.record.set_drained(true);
  node.record.set_drained_because("quarantined: it " + what);
  context_.Record("NodeQuarantined", "", node.id(),
                  fmt::format("{} {}: it takes no jobs until `meshrun undrain {}`",
                              node.record.name(), what, node.record.name()));
  Recomposed(node);
}

void NodeTable::Undrain(Node& node) {
  node.record.clear_drained();
  node.record.clear_drained_because();
  node.record.clear_drain_deadline();
  node.record.clear_quarantined();
  node.absences.clear();
  node.refused_jobs.clear();
  context_.Record("NodeUndrained", "", node.id(), node.record.name() + " takes jobs again");
  Recomposed(node);
}

void NodeTable::Recomposed(const Node& node) {
  ++composition_;
  context_.placement_due = true;
  Changed(node);
}

Node* NodeTable::NextFenced() {
  const auto node_id = fences_.PopDue(context_.now);
  if (!node_id.has_value()) return nullptr;
  context_.placement_due = true;
  return &nodes_.at(*node_id);
}

std::optional<SteadyNanos> NodeTable::NextDeadline() const {
  const auto lease = leases_.Next(), fence = fences_.Next();
  return lease.has_value() && fence.has_value() ? std::min(lease, fence)
         : lease.has_value()                    ? lease
                                                : fence;
}

Node* NodeTable::Find(const std::string& node_id) {
  const auto it = nodes_.find(node_id);
  return it == nodes_.end() ? nullptr : &it->second;
}

absl::StatusOr<Node*> NodeTable::Lookup(const std::string& name) {
  if (Node* exact = Find(name); exact != nullptr) return exact;
  std::vector<Node*> matches;
  for (auto& [id, node] : nodes_) {
    if (node.record.name() == name) matches.push_back(&node);
  }
  if (matches.size() == 1) return matches.front();
  if (matches.empty()) {
    return absl::NotFoundError(
        fmt::format("no node '{}' among the {} that are known: `meshrun nodes` lists them", name,
                    nodes_.size()));
  }
  return absl::NotFoundError(fmt::format("{} nodes have the name '{}': write an id, {} or {}",
                                         matches.size(), name, matches[0]->id(), matches[1]->id()));
}

void NodeTable::Remove(Node& node, const std::string& why) {
  context_.Record("NodeRemoved", "", node.id(), fmt::format("{}: {}", node.record.name(), why));
  Changed(node);
  fences_.Clear(node.id());
  lost_.erase(node.id());
  nodes_.erase(std::string(node.id()));
}

std::vector<const v1::Node*> NodeTable::Present(bool healthy_only) const {
  std::vector<const v1::Node*> out;
  for (const auto& [id, node] : nodes_) {
    const bool usable = node.record.state() == v1::NODE_STATE_HEALTHY && !node.record.drained();
    if (node.lost() || (healthy_only && !usable)) continue;
    out.push_back(&node.record);
  }
  return out;
}

std::vector<const v1::Node*> NodeTable::Taking() const {
  std::vector<const v1::Node*> out;
  for (const auto& [id, node] : nodes_) {
    const bool away = node.record.state() == v1::NODE_STATE_SUSPECT &&
                      StateWithSession(node) == v1::NODE_STATE_HEALTHY;
    if ((away || node.record.state() == v1::NODE_STATE_HEALTHY) && !node.record.drained()) {
      out.push_back(&node.record);
    }
  }
  return out;
}

size_t NodeTable::draining() const {
  return std::count_if(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    const v1::Node& record = entry.second.record;
    return record.state() == v1::NODE_STATE_DRAINING ||
           (record.state() == v1::NODE_STATE_HEALTHY && record.drained());
  });
}

size_t NodeTable::unhealthy() const {
  return std::count_if(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    return entry.second.record.state() == v1::NODE_STATE_UNHEALTHY;
  });
}

void NodeTable::Hold(Node& node, const std::string& job_id, uint32_t slots, uint64_t memory,
                     const std::vector<uint32_t>& gpus) {
  node.jobs.insert(job_id);
  node.record.set_slots_used(node.record.slots_used() + slots);
  node.record.set_memory_used_bytes(node.record.memory_used_bytes() + memory);
  for (const uint32_t gpu : gpus) node.record.add_gpus_used(gpu);
  context_.held_times.Hold(job_id, slots, gpus.size(), context_.wall);
}

void NodeTable::Release(Node& node, const std::string& job_id, uint32_t slots, uint64_t memory,
                        const std::vector<uint32_t>& gpus) {
  context_.held_times.Release(job_id, slots, gpus.size(), context_.wall);
  if (const auto it = node.jobs.find(job_id); it != node.jobs.end()) node.jobs.erase(it);
  node.record.set_slots_used(node.record.slots_used() - slots);
  node.record.set_memory_used_bytes(node.record.memory_used_bytes() - memory);
  auto& used = *node.record.mutable_gpus_used();
  for (const uint32_t gpu : gpus) {
    const auto it = std::find(used.begin(), used.end(), gpu);
    if (it != used.end()) used.erase(it);
  }
  context_.placement_due = true;
}

void NodeTable::Restore(v1::NodeRecord row) {
  Node& node = nodes_[row.node().node_id()];
  node.record = std::move(*row.mutable_node());
  if (row.has_fence_after()) node.fence_after = FromProto(row.fence_after());
  for (const auto& at : row.absences()) node.absences.push_back(FromProto(at));
  node.refused_jobs.insert(row.refused_jobs().begin(), row.refused_jobs().end());
  node.told_expiry = {FromProto(node.record.certificate_ends_at()),
                      static_cast<certificates::Expiry>(row.told_expiry())};
  // A row of an older coordinator has only the state, which a broken session hides.
  node.draining = row.draining() || (node.record.state() == v1::NODE_STATE_DRAINING &&
                                     node.record.drain_reason().empty());
  // Not before: the last term may have heard it until its end.
  node.last_heard = context_.now;
  node.record.clear_slots_used();
  node.record.clear_memory_used_bytes();
  node.record.clear_gpus_used();
  if (node.lost()) {
    lost_.insert(node.id());
    if (node.fence() != SteadyNanos::max()) fences_.Set(node.id(), node.fence());
    return;
  }
  node.record.set_state(v1::NODE_STATE_SUSPECT);
  leases_.Set(node.id(), context_.now + context_.lease);
  recovering_.insert(node.id());
}

Node* NodeTable::NextForgotten() {
  if (context_.now < next_forget_) return nullptr;
  const SteadyNanos age = FromProto(context_.retention.lost_node_age());
  for (auto& [id, node] : nodes_) {
    const auto& since =
        node.record.has_lost_at() ? node.record.lost_at() : node.record.last_seen_at();
    // A person's drain is kept until somebody ends it, or removes the node.
    if (node.quiet(context_.now) && (!node.record.drained() || node.record.quarantined()) &&
        FromProto(since) + age <= context_.wall) {
      return &node;
    }
  }
  next_forget_ = context_.now + std::min<SteadyNanos>(age, std::chrono::minutes(1));
  return nullptr;
}

void NodeTable::WriteChanged() {
  for (const std::string& node_id : std::exchange(changed_, {})) {
    const auto it = nodes_.find(node_id);
    if (it == nodes_.end()) {
      context_.Erase(v1::STATE_TABLE_NODES, node_id);
      continue;
    }
    v1::NodeRecord row;
    *row.mutable_node() = it->second.record;
    if (it->second.fence_after.has_value()) {
      *row.mutable_fence_after() = ToProtoDuration(*it->second.fence_after);
    }
    row.set_draining(it->second.draining);
    for (const WallNanos at : it->second.absences) *row.add_absences() = ToProtoTimestamp(at);
    row.set_told_expiry(static_cast<uint32_t>(it->second.told_expiry.stage));
    row.mutable_refused_jobs()->Add(it->second.refused_jobs.begin(), it->second.refused_jobs.end());
    context_.Put(v1::STATE_TABLE_NODES, node_id, row);
  }
}

// A worker that lost its state directory comes back under a new id. Without this its old record
// would stay LOST for ever.
void NodeTable::DropReplaced(const Node& by) {
  std::erase_if(lost_, [&](const std::string& id) {
    const Node& node = nodes_.at(id);
    const bool replaced = node.jobs.empty() && node.record.name() == by.record.name() &&
                          node.address() == by.address();
    if (!replaced) return false;
    changed_.insert(id);
    fences_.Clear(id);
    nodes_.erase(id);
    return true;
  });
}

}  // namespace meshrun::coordinator
