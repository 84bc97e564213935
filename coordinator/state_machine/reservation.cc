#include "coordinator/state_machine/reservation.h"

#include <algorithm>

namespace meshrun::coordinator {
namespace {

using Released = std::map<std::string, Resource>;

void Release(const Holder& holder, Released* released) {
  for (const auto& [node_id, holds] : holder.holds) {
    Resource& on_node = (*released)[node_id];
    on_node.slots += holds.slots;
    on_node.memory_bytes += holds.memory_bytes;
    on_node.gpus.insert(on_node.gpus.end(), holds.gpus.begin(), holds.gpus.end());
  }
}

std::optional<Placement> PlaceAfter(PlacementRequest request, const Released& released,
                                    size_t* placements) {
  request.released = &released;
  ++*placements;
  return Place(request).placement;
}

std::set<std::string> NodesOf(const Placement& placement) {
  std::set<std::string> nodes;
  for (const PlacedNode& node : placement.nodes) nodes.insert(node.node_id);
  return nodes;
}

// The smallest number of `holders` from the front, after which the job can start.
struct Prefix {
  size_t size = 0;
  Placement placement;
};
std::optional<Prefix> SmallestPrefix(const PlacementRequest& request, const Released& base,
                                     const std::vector<const Holder*>& holders,
                                     size_t* placements) {
  const auto after = [&](size_t count) {
    Released released = base;
    for (size_t i = 0; i < count; ++i) Release(*holders[i], &released);
    return PlaceAfter(request, released, placements);
  };
  std::optional<Placement> found = after(holders.size());
  if (!found.has_value()) return std::nullopt;
  size_t low = 0;
  size_t high = holders.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (std::optional<Placement> earlier = after(middle)) {
      found = std::move(earlier);
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return Prefix{high, *std::move(found)};
}

// So many holders are looked at one by one; more are stopped unseen.
constexpr size_t kMostLookedAt = 64;

// Takes out of `victims`, which together are enough, those without which the others are enough: a
// job that holds slots is not stopped for GPUs.
void KeepWhoIsNotNeeded(const PlacementRequest& request, const Released& base,
                        std::vector<const Holder*>* victims, size_t* placements) {
  for (size_t i = std::min(victims->size(), kMostLookedAt); i-- > 0 && victims->size() > 1;) {
    Released released = base;
    for (size_t other = 0; other < victims->size(); ++other) {
      if (other != i) Release(*(*victims)[other], &released);
    }
    if (PlaceAfter(request, released, placements).has_value()) {
      victims->erase(victims->begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

}  // namespace

Reservation Reserve(const PlacementRequest& request, const std::vector<Holder>& holders) {
  Reservation reservation;
  std::vector<const Holder*> ending;
  for (const Holder& holder : holders) {
    if (holder.until.has_value()) ending.push_back(&holder);
  }
  std::sort(ending.begin(), ending.end(), [](const Holder* a, const Holder* b) {
    return std::pair(*a->until, a->job_id) < std::pair(*b->until, b->job_id);
  });
  if (const auto prefix = SmallestPrefix(request, {}, ending, &reservation.placements)) {
    reservation.nodes = NodesOf(prefix->placement);
    reservation.at = prefix->size == 0 ? SteadyNanos(0) : *ending[prefix->size - 1]->until;
    return reservation;
  }
  for (const v1::Node* node : request.nodes) {
    if (CouldUse(request, *node)) reservation.nodes.insert(node->node_id());
  }
  return reservation;
}

std::vector<std::string> Victims(const PlacementRequest& request, int32_t priority,
                                 const std::vector<Holder>& holders, size_t* placements) {
  Released base;
  std::vector<const Holder*> candidates;
  for (const Holder& holder : holders) {
    if (holder.stopping) {
      Release(holder, &base);
    } else if (holder.restartable && holder.priority < priority) {
      candidates.push_back(&holder);
    }
  }
  if (candidates.empty() || PlaceAfter(request, base, placements).has_value()) return {};
  std::sort(candidates.begin(), candidates.end(), [](const Holder* a, const Holder* b) {
    return std::tuple(a->priority, -a->since.count(), a->job_id) <
           std::tuple(b->priority, -b->since.count(), b->job_id);
  });
  const auto prefix = SmallestPrefix(request, base, candidates, placements);
  if (!prefix.has_value()) return {};
  candidates.resize(prefix->size);
  // Those that hold none of the nodes that the job would get need not go.
  const std::set<std::string> nodes = NodesOf(prefix->placement);
  std::erase_if(candidates, [&](const Holder* holder) {
    return std::none_of(holder->holds.begin(), holder->holds.end(),
                        [&](const auto& held) { return nodes.contains(held.first); });
  });
  KeepWhoIsNotNeeded(request, base, &candidates, placements);
  std::vector<std::string> victims;
  victims.reserve(candidates.size());
  for (const Holder* holder : candidates) victims.push_back(holder->job_id);
  return victims;
}

}  // namespace meshrun::coordinator
