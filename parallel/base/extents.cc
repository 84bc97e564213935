#include "parallel/base/extents.h"

#include <cstddef>
#include <numeric>

namespace meshrun {

std::string to_words(std::span<const int64_t> values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(values[i]);
  }
  return text + "]";
}

std::string check_rank(std::string_view name, int64_t rank, int world) {
  if (rank >= 0 && rank < world) return {};
  return std::string(name) + " is " + std::to_string(rank) + " in a group of " +
         std::to_string(world) + " ranks; 0 to " + std::to_string(world - 1) + " is expected";
}

std::string check_extents(std::string_view name, std::span<const int64_t> extents, int64_t extent,
                          int world) {
  if (extents.size() != static_cast<size_t>(world)) {
    return std::string(name) + " has " + std::to_string(extents.size()) +
           " entries in a group of " + std::to_string(world) +
           " ranks; one for each rank is expected";
  }
  int64_t total = 0;
  for (size_t r = 0; r < extents.size(); ++r) {
    // The second: the sum would overflow.
    if (extents[r] < 0 || __builtin_add_overflow(total, extents[r], &total)) {
      return std::string(name) + "[" + std::to_string(r) + "] is " + std::to_string(extents[r]) +
             "; the extent of a piece is expected";
    }
  }
  if (extent >= 0 && total != extent) {
    return std::string(name) + " is " + to_words(extents) + ", " + std::to_string(total) +
           " together; the tensor has " + std::to_string(extent) + " along that dimension";
  }
  return {};
}

int64_t total_extent(std::span<const int64_t> extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{0});
}

std::vector<int64_t> extent_offsets(std::span<const int64_t> extents, int64_t first) {
  std::vector<int64_t> offsets = {first};
  offsets.reserve(extents.size() + 1);
  for (const int64_t extent : extents) offsets.push_back(offsets.back() + extent);
  return offsets;
}

}  // namespace meshrun
