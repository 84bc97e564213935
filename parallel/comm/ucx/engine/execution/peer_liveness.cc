#include "parallel/comm/ucx/engine/execution/peer_liveness.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"

namespace meshrun::ucx {
namespace {

// Longer than any sleep of the thread that owns progress (wait_policy.h).
constexpr std::chrono::milliseconds kPause{50};

}  // namespace

void PeerLiveness::note_round(SteadyNanos now) {
  if (now - std::exchange(last_round_, now) > kPause) resumed_ = now;
}

void PeerLiveness::lost(int world_rank, const std::string& reason, SteadyNanos now) {
  gone(world_rank, false, reason, reason.starts_with("its connection"), now);
}

void PeerLiveness::left(int world_rank, SteadyNanos now) { gone(world_rank, true, "", false, now); }

void PeerLiveness::left_group(SteadyNanos now) {
  has_left_group_ = true;
  look_soon(now);
}

void PeerLiveness::connection_broke(int world_rank, const std::string& reason, SteadyNanos now) {
  gone(world_rank, false,
       reason.empty() ? "its connection broke" : fmt::format("its connection broke: {}", reason),
       true, now);
}

void PeerLiveness::gone(int world_rank, bool left, const std::string& reason, bool is_of_connection,
                        SteadyNanos now) {
  const auto [entry, is_new] =
      gone_.try_emplace(world_rank, Gone{left, reason, now, is_of_connection});
  Gone& known = entry->second;
  if (!is_new && !known.left && (left || !is_of_connection)) {
    known = {left, reason, known.since, is_of_connection};
  }
  look_soon(now);
}

void PeerLiveness::superseded(const std::string& reason, SteadyNanos now) {
  if (!superseded_) superseded_ = {reason, now + 2 * kGrace};
  next_check_ = std::min(next_check_, superseded_->due);
}

std::string PeerLiveness::stopping_sentence() const {
  return stopping_.empty() ? "" : fmt::format(" The job is stopping: {}.", stopping_);
}

std::optional<Failure> PeerLiveness::check(const MemberGroup& g, SteadyNanos now) {
  const bool is_over = superseded_ && superseded_->due <= now;
  for (const OperationPtr& operation : g.unfinished()) {
    const std::optional<Due> found = due(*operation);
    if (!found) continue;
    if (found->at <= now || is_over) return failure(*operation, found->rank);
    next_check_ = std::min(next_check_, found->at);
  }
  if (!superseded_ || g.unfinished().empty()) return std::nullopt;
  if (is_over) return Failure{FailureKind::kAborted, superseded_->reason, {g.config->rank}};
  next_check_ = std::min(next_check_, superseded_->due);
  return std::nullopt;
}

std::optional<PeerLiveness::Due> PeerLiveness::due(const RunningOperation& operation) const {
  const bool any_will_do = operation.is_receive() && operation.point_to_point.peer < 0;
  std::optional<Due> first;
  for (const int missing : operation.missing_ranks()) {
    const Member& member = operation.group->members[missing];
    const auto found = gone_.find(member.world_rank);
    if (found == gone_.end() && !member.left) {
      if (any_will_do) return std::nullopt;
      continue;
    }
    const SteadyNanos since = found == gone_.end() ? *member.left : found->second.since;
    SteadyNanos at = std::max({since, operation.moved, resumed_}) + kGrace;
    const bool is_told = found != gone_.end() && !found->second.is_of_connection;
    if (watch_sees_ends_ && !is_told) at = std::max(at, since + kWord);
    // If all these ranks are needed, the first loss decides; if any one suffices, the last.
    if (first && (any_will_do ? at <= first->at : at >= first->at)) continue;
    first = {at, missing};
  }
  return first;
}

Failure PeerLiveness::failure(const RunningOperation& operation, int rank) const {
  const int world_rank = operation.group->members[rank].world_rank;
  const auto found = gone_.find(world_rank);
  const Gone gone = found == gone_.end() ? Gone{.left = true, .reason = {}} : found->second;
  // It left a world that is over.
  if (gone.left && superseded_) return {FailureKind::kAborted, superseded_->reason, {rank}};
  std::string who = fmt::format("rank {}", rank);
  if (world_rank != rank) who += fmt::format(" (rank {} of the job)", world_rank);
  std::string text =
      gone.left ? fmt::format("{} left without taking its part in {}.", who, operation.name())
                : fmt::format("{} was lost during {}: {}.", who, operation.name(), gone.reason);
  text += stopping_sentence();
  return {gone.left ? FailureKind::kPeerLeft : FailureKind::kPeerLost, std::move(text), {rank}};
}

std::optional<GroupVerdict> verdict_on(const MemberGroup& g, const WaitVerdict& verdict) {
  const auto is_it = [&g](const WaitVerdict::Group& concerned) {
    const auto same = [](int world_rank, const Member& m) { return world_rank == m.world_rank; };
    return concerned.name == g.config->name &&
           std::equal(concerned.members.begin(), concerned.members.end(), g.members.begin(),
                      g.members.end(), same);
  };
  const auto concerned = std::find_if(verdict.groups.begin(), verdict.groups.end(), is_it);
  if (concerned == verdict.groups.end()) return std::nullopt;
  GroupVerdict found;
  found.failure = {verdict.deadlock ? FailureKind::kDeadlock : FailureKind::kPeerLeft,
                   verdict.message,
                   {},
                   /*group_survives=*/true};
  found.resume_at = concerned->resume_at;
  for (int rank = 0; rank < g.config->size; ++rank) {
    const int world_rank = g.members[rank].world_rank;
    if (std::count(verdict.ranks.begin(), verdict.ranks.end(), world_rank) == 0) continue;
    found.failure.ranks.push_back(rank);
    found.names_this_rank = found.names_this_rank || rank == g.config->rank;
  }
  return found;
}

}  // namespace meshrun::ucx
