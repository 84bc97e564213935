#include "coordinator/state_machine/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/job_spec.h"
#include "core/labels.h"
#include "core/mesh_messages.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// What one node would give to the job.
struct Offer {
  const v1::Node* node = nullptr;
  uint32_t procs = 0;
  uint32_t free_slots = 0;
  uint64_t free_memory = 0;
  std::vector<uint32_t> free_gpus;
};

uint32_t ProcsOn(const v1::JobSpec& spec, const v1::Node& node) {
  switch (spec.procs_per_node().kind_case()) {
    case v1::ProcsPerNode::kGpu:
      return node.resources().gpus_size();
    case v1::ProcsPerNode::kCpu:
      return std::max(node.resources().cores(), 1u);
    case v1::ProcsPerNode::kCount:
      return std::max(spec.procs_per_node().count(), 1u);
    case v1::ProcsPerNode::kNode:
      return std::max(node.resources().ranks(), 1u);
    case v1::ProcsPerNode::KIND_NOT_SET:
      break;
  }
  return 1;
}

const Resource* ReleasedOn(const PlacementRequest& request, const v1::Node& node) {
  if (request.released == nullptr) return nullptr;
  const auto it = request.released->find(node.node_id());
  return it == request.released->end() ? nullptr : &it->second;
}

// `released`: the part of what is in use that counts as free; null: nothing.
Offer MakeOffer(const v1::JobSpec& spec, const v1::Node& node, bool ignore_usage,
                const Resource* released) {
  Offer offer{
      &node, ProcsOn(spec, node), node.resources().slots(), node.resources().memory_bytes(), {}};
  if (!ignore_usage) {
    const uint32_t slots = released == nullptr ? 0 : released->slots;
    const uint64_t memory = released == nullptr ? 0 : released->memory_bytes;
    offer.free_slots -= std::min(offer.free_slots, node.slots_used() - slots);
    offer.free_memory -= std::min(offer.free_memory, node.memory_used_bytes() - memory);
  }
  const auto contains = [](const auto& gpus, uint32_t index) {
    return std::find(gpus.begin(), gpus.end(), index) != gpus.end();
  };
  for (const v1::Gpu& gpu : node.resources().gpus()) {
    if (ignore_usage || !contains(node.gpus_used(), gpu.index()) ||
        (released != nullptr && contains(released->gpus, gpu.index()))) {
      offer.free_gpus.push_back(gpu.index());
    }
  }
  return offer;
}

// What the offer lacks first: "8 slots, has 2 of 8 free"; empty when it has all.
std::string Lack(const v1::JobSpec& spec, const Offer& offer, uint32_t gpus_per_proc) {
  const v1::Resources& all = offer.node->resources();
  if (!spec.shipped_job().empty()) {
    const auto& jobs = offer.node->shipped_jobs();
    if (std::find(jobs.begin(), jobs.end(), spec.shipped_job()) == jobs.end()) {
      return fmt::format("the shipped job '{}', which it does not have", spec.shipped_job());
    }
  }
  if (offer.procs == 0) return "a GPU per rank, and it has none";
  const uint64_t gpus = uint64_t{offer.procs} * gpus_per_proc;
  if (gpus > offer.free_gpus.size()) {
    return fmt::format("{}, and {} of {} are free", Count(gpus, "GPU"), offer.free_gpus.size(),
                       all.gpus_size());
  }
  const uint64_t slots = uint64_t{offer.procs} * CpusPerProc(spec);
  if (slots > offer.free_slots) {
    return fmt::format("{}, and {} of {} are free", Count(slots, "slot"), offer.free_slots,
                       all.slots());
  }
  const uint64_t memory = uint64_t{offer.procs} * spec.memory_bytes();
  if (memory > offer.free_memory) {
    return fmt::format("{} of memory, and {} of {} are free", FormatBytes(memory),
                       FormatBytes(offer.free_memory), FormatBytes(all.memory_bytes()));
  }
  return "";
}

// Why the node cannot take the job, as words after its name; empty when it can.
std::string Refusal(const v1::JobSpec& spec, const Offer& offer, uint32_t gpus_per_proc) {
  const v1::Node& node = *offer.node;
  for (const std::string& excluded : spec.exclude_nodes()) {
    if (excluded == node.name() || excluded == node.node_id()) return "is excluded by the job";
  }
  for (const std::string& constraint : spec.constraints()) {
    if (Satisfies(node.labels(), constraint)) continue;
    return fmt::format("does not satisfy the constraint {}", constraint);
  }
  const std::string lack = Lack(spec, offer, gpus_per_proc);
  return lack.empty() ? "" : "would have to give " + lack;
}

// Previous nodes at their old places, spares in the holes, then the remaining ones.
std::vector<Offer> Order(std::vector<Offer> offers, const std::vector<std::string>& previous) {
  std::sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) {
    if (a.node->name() != b.node->name()) return NaturalLess(a.node->name(), b.node->name());
    return a.node->node_id() < b.node->node_id();
  });
  if (previous.empty()) return offers;
  std::map<std::string, size_t> place;
  for (size_t i = 0; i < previous.size(); ++i) place[previous[i]] = i;
  std::vector<const Offer*> kept(previous.size(), nullptr);
  std::vector<const Offer*> spares;
  for (const Offer& offer : offers) {
    const auto it = place.find(offer.node->node_id());
    if (it != place.end()) {
      kept[it->second] = &offer;
    } else {
      spares.push_back(&offer);
    }
  }
  std::vector<Offer> ordered;
  size_t next_spare = 0;
  for (const Offer* offer : kept) {
    if (offer == nullptr && next_spare < spares.size()) offer = spares[next_spare++];
    if (offer != nullptr) ordered.push_back(*offer);
  }
  for (; next_spare < spares.size(); ++next_spare) ordered.push_back(*spares[next_spare]);
  return ordered;
}

Placement Build(const v1::JobSpec& spec, const std::vector<Offer>& offers, size_t nodes,
                std::vector<Axis> mesh, uint32_t gpus_per_proc) {
  Placement placement;
  placement.mesh = std::move(mesh);
  for (size_t i = 0; i < nodes; ++i) {
    const Offer& offer = offers[i];
    PlacedNode& placed = placement.nodes.emplace_back();
    placed.node_id = offer.node->node_id();
    placed.procs = offer.procs;
    placed.slots = offer.procs * CpusPerProc(spec);
    placed.memory_bytes = offer.procs * spec.memory_bytes();
    for (uint32_t rank = 0; gpus_per_proc > 0 && rank < offer.procs; ++rank) {
      const auto first = offer.free_gpus.begin() + rank * gpus_per_proc;
      placed.gpus.emplace_back(first, first + gpus_per_proc);
    }
    placement.world_size += offer.procs;
  }
  return placement;
}

PlacementResult PlaceWith(const PlacementRequest& request, uint32_t gpus_per_proc) {
  const v1::JobSpec& spec = request.spec;
  const uint32_t min_nodes = MinNodes(spec);
  const uint32_t max_nodes = MaxNodes(spec);
  PlacementResult result;
  std::vector<Offer> fitting;
  // The node that comes nearest, named in the reason.
  const v1::Node* nearest = nullptr;
  uint32_t nearest_free = 0;
  std::string lack;
  for (const v1::Node* node : request.nodes) {
    Offer offer = MakeOffer(spec, *node, request.ignore_usage, ReleasedOn(request, *node));
    const std::string missing = Refusal(spec, offer, gpus_per_proc);
    if (missing.empty()) {
      fitting.push_back(std::move(offer));
    } else if (nearest == nullptr || offer.free_slots > nearest_free) {
      nearest = node;
      nearest_free = offer.free_slots;
      lack = missing;
    }
  }
  if (fitting.size() < min_nodes) {
    const std::string needs = fmt::format("needs {}", Count(min_nodes, "node"));
    if (request.nodes.empty()) {
      result.reason = needs + ", and no worker is connected";
    } else if (nearest == nullptr) {
      result.reason =
          fmt::format("{}, and {} connected", needs,
                      request.nodes.size() == 1 ? std::string("1 is")
                                                : fmt::format("{} are", request.nodes.size()));
    } else {
      result.reason = fmt::format("{}, and {} of {} can take it: {} {}", needs, fitting.size(),
                                  request.nodes.size(), nearest->name(), lack);
    }
    return result;
  }
  fitting = Order(std::move(fitting), request.previous);
  const std::vector<Axis> mesh = AxesOf(spec.mesh());
  absl::Status misfit;
  for (size_t nodes = std::min<size_t>(max_nodes, fitting.size()); nodes >= min_nodes; --nodes) {
    int64_t world = 0;
    for (size_t i = 0; i < nodes; ++i) world += fitting[i].procs;
    if (mesh.empty()) {
      result.placement = Build(spec, fitting, nodes, {}, gpus_per_proc);
      return result;
    }
    auto resolved = ResolveMesh(mesh, world);
    if (resolved.ok()) {
      result.placement = Build(spec, fitting, nodes, *std::move(resolved), gpus_per_proc);
      return result;
    }
    misfit.Update(resolved.status());
  }
  result.reason = fmt::format("with {} to {} of {}: {}", min_nodes, max_nodes,
                              Count(fitting.size(), "free node"), std::string(misfit.message()));
  return result;
}

}  // namespace

std::string Count(uint64_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

PlacementResult Place(const PlacementRequest& request) {
  if (const auto gpus = GpusPerProc(request)) return PlaceWith(request, *gpus);
  // Nobody says: use GPUs where that costs no rank.
  PlacementResult without = PlaceWith(request, 0);
  if (!without.placement.has_value()) return without;
  PlacementResult with = PlaceWith(request, 1);
  const bool as_large =
      with.placement.has_value() && with.placement->world_size == without.placement->world_size;
  return as_large ? with : without;
}

std::optional<uint32_t> GpusPerProc(const PlacementRequest& request) {
  if (request.spec.has_gpus_per_proc()) return request.spec.gpus_per_proc();
  if (request.spec.procs_per_node().kind_case() == v1::ProcsPerNode::kGpu) return 1;
  return request.gpus_per_proc;
}

bool CouldUse(const PlacementRequest& request, const v1::Node& node) {
  const Offer all = MakeOffer(request.spec, node, /*ignore_usage=*/true, nullptr);
  return Refusal(request.spec, all, GpusPerProc(request).value_or(0)).empty();
}

}  // namespace meshrun::coordinator
