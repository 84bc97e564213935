#include "parallel/nn/graph/coordinate_boxes.h"

#include <sstream>

namespace meshrun {
namespace {

std::string check(const char* name, const CoordinateBoxes::Bounds& bounds, int64_t num_dims,
                  int world) {
  if (bounds.size() != static_cast<size_t>(world)) {
    return "boxes." + std::string(name) + " has " + std::to_string(bounds.size()) +
           " boxes; one for each of the " + std::to_string(world) + " ranks is expected";
  }
  for (size_t r = 0; r < bounds.size(); ++r) {
    if (static_cast<int64_t>(bounds[r].size()) == num_dims) continue;
    return "boxes." + std::string(name) + "[" + std::to_string(r) + "] has " +
           std::to_string(bounds[r].size()) + " bounds; one for each of the " +
           std::to_string(num_dims) + " coordinates is expected";
  }
  return {};
}

bool contains(const CoordinateBoxes& boxes, size_t box, std::span<const double> point) {
  for (size_t d = 0; d < point.size(); ++d) {
    const auto& min = boxes.min[box][d];
    const auto& max = boxes.max[box][d];
    // A NaN is in no box that is bounded.
    if (min && !(point[d] >= *min)) return false;
    if (max && !(point[d] < *max)) return false;
  }
  return true;
}

std::string words_of(std::span<const double> point) {
  std::ostringstream words;
  for (size_t d = 0; d < point.size(); ++d) words << (d == 0 ? "(" : ", ") << point[d];
  words << ")";
  return words.str();
}

}  // namespace

BoxOwners owners_in_boxes(std::span<const double> coordinates, int64_t num_dims,
                          const CoordinateBoxes& boxes, int world) {
  BoxOwners result;
  result.problem = check("min", boxes.min, num_dims, world);
  if (result.problem.empty()) result.problem = check("max", boxes.max, num_dims, world);
  if (result.problem.empty() && num_dims < 1) result.problem = "nodes have no coordinates";
  if (result.problem.empty() && boxes.fallback_rank &&
      (*boxes.fallback_rank < 0 || *boxes.fallback_rank >= world)) {
    result.problem = "boxes.fallback_rank is " + std::to_string(*boxes.fallback_rank) +
                     "; a rank of " + std::to_string(world) + " is expected";
  }
  if (!result.problem.empty()) return result;

  const auto width = static_cast<size_t>(num_dims);
  const size_t num_nodes = coordinates.size() / width;
  result.owners.reserve(num_nodes);
  for (size_t node = 0; node < num_nodes; ++node) {
    const auto point = coordinates.subspan(node * width, width);
    auto box = static_cast<size_t>(world);
    while (box > 0 && !contains(boxes, box - 1, point)) --box;
    if (box > 0) {
      result.owners.push_back(static_cast<int64_t>(box) - 1);
    } else if (boxes.fallback_rank) {
      result.owners.push_back(*boxes.fallback_rank);
    } else {
      result.problem = "the node at " + words_of(point) + ", number " + std::to_string(node) +
                       " of the " + std::to_string(num_nodes) +
                       " whose coordinates this rank gave, is in no box (min <= coordinate < max); "
                       "extend a box, or give boxes.fallback_rank";
      return result;
    }
  }
  return result;
}

}  // namespace meshrun
