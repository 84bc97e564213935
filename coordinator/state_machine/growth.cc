#include "coordinator/state_machine/growth.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/job_spec.h"

namespace meshrun::coordinator {

void Growth::GrowAll() {
  // The list may have thousands of nodes, so it is only made once a job could grow.
  std::optional<std::vector<const v1::Node*>> roomy;
  const std::set<std::string> jobs = jobs_.elastic();
  for (const std::string& job_id : jobs) {
    Job& job = *jobs_.Find(job_id);
    const v1::Growth growth = job.view.spec().growth();
    if (growth == v1::GROWTH_NEVER || job.members.size() >= MaxNodes(job.view.spec())) continue;
    // Whoever has stopped its ranks is looking at them.
    if (job.view.has_paused_since()) {
      again_.Set(job_id, context_.now + kTimeToSay);
      continue;
    }
    if (growth != v1::GROWTH_AT_ONCE) {
      if (!job.record.may_grow()) continue;
      job.record.set_may_grow(false);
      jobs_.Changed(job);
    }
    // To place all elastic jobs whenever something ends would be quadratic.
    if (!roomy.has_value()) {
      roomy = nodes_.Present(/*healthy_only=*/true);
      std::erase_if(*roomy, [](const v1::Node* node) {
        return node->slots_used() >= node->resources().slots();
      });
    }
    const bool has_room = std::any_of(roomy->begin(), roomy->end(), [&](const v1::Node* node) {
      return !job.member_by_node.contains(node->node_id());
    });
    if (!has_room) continue;
    std::string waits;
    const std::vector<const v1::Node*> nodes = departures_.Candidates(job, &waits);
    const PlacementResult result = continuation_.PlaceAgain(job, nodes, /*avoided_too=*/false);
    if (!result.placement.has_value() || result.placement->world_size <= job.view.world_size()) {
      if (!waits.empty()) SayWhatItWaitsFor(job, waits);
      continue;
    }
    const std::string reason = fmt::format("grows from {} to {} ranks", job.view.world_size(),
                                           result.placement->world_size);
    if (generations_.AskToQuiesce(job, reason, /*save=*/false)) continue;
    if (growth == v1::GROWTH_AT_ONCE && MayRestart(job)) {
      generations_.Stop(job, v1::STOP_INTENT_REQUEUE, "JobGrows", "", reason);
    }
  }
}

void Growth::SayWhatItWaitsFor(Job& job, const std::string& waits) {
  if (job.growth_wait_said == job.view.generation()) return;
  const PlacementResult result =
      continuation_.PlaceAgain(job, nodes_.Present(/*healthy_only=*/true), /*avoided_too=*/false);
  if (!result.placement.has_value() || result.placement->world_size <= job.view.world_size()) {
    return;
  }
  job.growth_wait_said = job.view.generation();
  context_.Record("GrowthWaits", job.id(), "",
                  fmt::format("could grow from {} to {} ranks, but {}", job.view.world_size(),
                              result.placement->world_size, waits));
}

bool Growth::MayRestart(const Job& job) {
  if (job.finished() || job.phase() != JobPhase::kRunning) return false;
  for (const v1::RankStatus& rank : job.view.ranks()) {
    // A rank that has ended has done its part, or its end is judged elsewhere. One that lives on in
    // process shows that the others will say so too.
    if (rank.state() == v1::RANK_STATE_EXITED || LivesOn(rank)) return false;
  }
  const SteadyNanos known = job.running_since + kTimeToSay;
  if (context_.now >= known) return true;
  again_.Set(job.id(), known);
  return false;
}

bool Growth::PopDue() {
  bool any = false;
  while (again_.PopDue(context_.now).has_value()) any = true;
  return any;
}

}  // namespace meshrun::coordinator
