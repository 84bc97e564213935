#include "coordinator/state_machine/continuation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/rank_exit.h"

namespace meshrun::coordinator {
namespace {

// For a host to answer, beyond a fence time that the job waits for.
constexpr std::chrono::seconds kFenceSlack(30);

// The rank's process was told to start, and has not said that it takes another generation.
bool IsComing(const Job& job, const v1::RankStatus& rank) {
  if (rank.state() == v1::RANK_STATE_RUNNING) return !rank.in_process();
  return rank.state() == v1::RANK_STATE_ASSIGNED && job.view.state() == v1::JOB_STATE_RUNNING;
}

}  // namespace

bool HasSurvivors(const Job& job) {
  return std::any_of(job.view.ranks().begin(), job.view.ranks().end(), [&](const auto& rank) {
    return !IsFresh(rank.assignment(), job.view.generation());
  });
}

bool LivesOn(const v1::RankStatus& rank) {
  return rank.state() == v1::RANK_STATE_RUNNING && rank.in_process();
}

bool TakesGenerations(const Job& job) {
  if (job.view.spec().recovery() == v1::RECOVERY_RESPAWN || job.finished()) return false;
  const bool has_survivors = HasSurvivors(job);
  bool any = false;
  for (const v1::RankStatus& rank : job.view.ranks()) {
    if (LivesOn(rank)) {
      any = true;
    } else if (IsComing(job, rank)) {
      // Nobody knows whether it will.
      const bool is_replaced = has_survivors && IsFresh(rank.assignment(), job.view.generation());
      if (!is_replaced) return false;
    } else if (rank.state() == v1::RANK_STATE_EXITED && ExitedCleanly(rank.exit())) {
      // It has finished: nobody can say what a rank in its place should do.
      return false;
    }
  }
  return any;
}

bool StandsStillWhenAsked(const Job& job) {
  return TakesGenerations(job) &&
         std::none_of(job.view.ranks().begin(), job.view.ranks().end(),
                      [&](const auto& rank) { return IsComing(job, rank); });
}

StandingStill CountStandingStill(const Job& job) {
  StandingStill count;
  for (const v1::RankStatus& rank : job.view.ranks()) {
    if (rank.state() != v1::RANK_STATE_RUNNING) continue;
    ++count.running;
    count.still += job.quiesced.contains(rank.assignment().rank());
  }
  return count;
}

PlacementResult Continuation::PlaceAgain(Job& job, std::vector<const v1::Node*> nodes,
                                         bool avoided_too) {
  const auto each_living = [&](auto&& act) {
    for (const Member& member : job.members) {
      if (!member.ended) act(*nodes_.Find(member.node_id), member);
    }
  };
  const bool placement_due = context_.placement_due;
  each_living([&](Node& node, const Member& member) {
    nodes_.Release(node, job.id(), member.slots, member.memory_bytes, member.gpus);
  });
  PlacementRequest request = job.RequestOn({});
  std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(request.nodes),
               [&](const v1::Node* node) { return !job.Avoids(node->node_id()); });
  const std::vector<PolicyScope> scopes = jobs_.ScopesOf(job);
  // A job that runs goes on even where a new policy would not let it start.
  std::optional<QuotaRefusal> unused;
  const auto place = [&](const PlacementRequest& on) {
    return PlaceWithin(
        on, [](const PlacementRequest& each) { return Place(each); },
        [&](uint64_t ranks, uint64_t gpus) {
          return jobs_.quotas().Refusal(job.counted.usage, scopes, ranks, gpus);
        },
        &unused);
  };
  PlacementResult result = place(request);
  if (!result.placement.has_value() && avoided_too && request.nodes.size() < nodes.size()) {
    request.nodes = std::move(nodes);
    result = place(request);
  }
  each_living([&](Node& node, const Member& member) {
    nodes_.Hold(node, job.id(), member.slots, member.memory_bytes, member.gpus);
  });
  context_.placement_due = placement_due;
  return result;
}

std::vector<const v1::Node*> Continuation::NodesFor(const Job& job, std::string* waits) const {
  std::vector<const v1::Node*> nodes = departures_.Candidates(job, waits);
  // Ranks go on where they are, whatever the checks of their host find.
  for (const Member& member : job.members) {
    if (member.ended) continue;
    const v1::Node& node = nodes_.Find(member.node_id)->record;
    if (node.state() == v1::NODE_STATE_UNHEALTHY && !node.drained()) nodes.push_back(&node);
  }
  return nodes;
}

bool Continuation::GoesOnWithout(Job& job, const Node& leaving) {
  std::string waits;
  std::vector<const v1::Node*> nodes = NodesFor(job, &waits);
  std::erase_if(nodes, [&](const v1::Node* node) { return node->node_id() == leaving.id(); });
  return PlaceAgain(job, std::move(nodes), /*avoided_too=*/true).placement.has_value();
}

std::optional<NextGeneration> Continuation::Plan(Job& job) {
  if (!TakesGenerations(job) || job.record.cancel_requested()) return std::nullopt;
  std::string waits;
  std::vector<const v1::Node*> nodes = NodesFor(job, &waits);
  // While the job waits for other nodes, it does not fall back on one that it avoids.
  PlacementResult result = PlaceAgain(job, nodes, /*avoided_too=*/waits.empty());
  if (!result.placement.has_value()) return std::nullopt;
  NextGeneration next;
  next.placement = *std::move(result.placement);
  for (const PlacedNode& placed : next.placement.nodes) {
    next.has_newcomers |= !job.HasRunOn(placed.node_id);
    const Member* member = job.FindMember(placed.node_id);
    if (member == nullptr || member->ended) continue;
    if (static_cast<int>(placed.procs) != member->rank_count) return std::nullopt;
    std::vector<v1::RankStatus>& ranks = next.survivors[placed.node_id];
    for (int i = 0; i < member->rank_count; ++i) {
      ranks.push_back(job.view.ranks(member->first_rank + i));
      next.living += LivesOn(ranks.back());
    }
  }
  if (next.living == 0) return std::nullopt;
  return next;
}

bool Continuation::WaitsForFence(Job& job) {
  std::string waits;
  if (!TakesGenerations(job) || job.record.cancel_requested()) return false;
  (void)departures_.Candidates(job, &waits);
  if (waits.empty()) return false;
  SteadyNanos until = context_.now;
  for (const LeavingMember& leaving : job.leaving) {
    if (!departures_.MayCompute(leaving)) continue;
    const Node& node = *nodes_.Find(leaving.member.node_id);
    if (!node.lost()) continue;
    if (node.fence() == SteadyNanos::max()) return false;
    until = std::max(until, node.fence());
  }
  if (!PlaceAgain(job, nodes_.Present(/*healthy_only=*/true), /*avoided_too=*/true)
           .placement.has_value())
    return false;
  jobs_.SetReason(job, job.view.failure().message() + "; " + waits);
  jobs_.SetDeadline(job, until + kFenceSlack);
  return true;
}

}  // namespace meshrun::coordinator
