// Which rank owns a node, by boxes in coordinate space. Pure, without LibTorch.
//
//   {.min = {{0, {}}, {{}, {}}}, .max = {{{}, {}}, {0, {}}}}    x >= 0 is rank 0's, x < 0 rank 1's
//
// Box r is rank r's: min <= coordinate < max in each dimension; an absent bound does not bind.
// Where boxes overlap, the last one has the node. A node in no box is a problem, unless a fallback
// rank is given: latitude 90 lies in no box that ends at 90.
//
// Corresponds to the separators of physicsnemo's partition_graph_by_coordinate_bbox, which gives
// nodes in no box to rank 0.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/base/arguments.h"

namespace meshrun {

struct CoordinateBoxes {
  using Bounds = std::vector<std::vector<std::optional<double>>>;  // [rank][dimension]

  Bounds min;
  Bounds max;
  // Has the nodes in no box.
  std::optional<IntArgument> fallback_rank = std::nullopt;
};

struct BoxOwners {
  std::string problem;  // empty: none; else `owners` does not hold
  std::vector<int64_t> owners;
};

// `coordinates`: `num_dims` numbers for each node.
BoxOwners owners_in_boxes(std::span<const double> coordinates, int64_t num_dims,
                          const CoordinateBoxes& boxes, int world);

}  // namespace meshrun
