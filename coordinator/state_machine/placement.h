// Which nodes a job gets, and why it gets none. Pure.
//
// All or nothing: a job gets at least min_nodes at once, or nothing. It gets as many of its
// max_nodes as are free and its mesh divides. Order: the nodes of the previous generation at their
// old places, so that ranks stay where they were; a spare takes the place of a missing one; else by
// natural order of names ("node9" before "node10").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/mesh.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::coordinator {

struct PlacedNode {
  std::string node_id;
  uint32_t procs = 0;
  // Held as long as the generation lives there.
  uint32_t slots = 0;
  uint64_t memory_bytes = 0;
  // By local rank; empty without GPUs.
  std::vector<std::vector<uint32_t>> gpus;
};

struct Placement {
  // By node rank.
  std::vector<PlacedNode> nodes;
  uint32_t world_size = 0;
  // Resolved.
  std::vector<Axis> mesh;

  uint64_t GpuCount() const;
};

inline uint64_t PlacedGpus(const PlacedNode& node) {
  uint64_t count = 0;
  for (const auto& of_rank : node.gpus) count += of_rank.size();
  return count;
}

inline uint64_t Placement::GpuCount() const {
  uint64_t count = 0;
  for (const PlacedNode& node : nodes) count += PlacedGpus(node);
  return count;
}

// What one member of a job holds on its node.
struct Resource {
  uint32_t slots = 0;
  uint64_t memory_bytes = 0;
  std::vector<uint32_t> gpus;
};

struct PlacementRequest {
  const v1::JobSpec& spec;
  // Those that may be used; in any order.
  std::vector<const v1::Node*> nodes;
  // node_ids of the previous generation, by node rank.
  std::vector<std::string> previous;
  // As if nothing else ran: whether the job could ever run here.
  bool ignore_usage = false;
  // By node_id: as if this much of what is in use there were free.
  const std::map<std::string, Resource>* released = nullptr;
  // GPUs of each rank where the specification does not say; absent: not decided yet.
  std::optional<uint32_t> gpus_per_proc;
};

struct PlacementResult {
  std::optional<Placement> placement;
  // Otherwise: one sentence with the numbers on both sides.
  std::string reason;
};

PlacementResult Place(const PlacementRequest& request);

// Absent: the job does not say, and has not run yet.
std::optional<uint32_t> GpusPerProc(const PlacementRequest& request);

// "1 node", "2 nodes".
std::string Count(uint64_t n, std::string_view what);

// Whether the request's job could use the node if nothing else ran there.
bool CouldUse(const PlacementRequest& request, const v1::Node& node);

}  // namespace meshrun::coordinator
