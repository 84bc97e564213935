#include "parallel/manager/mesh_layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {
namespace {

std::string describe(const std::vector<int64_t>& shape, const std::vector<std::string>& names) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < shape.size(); ++i)
    parts.push_back(fmt::format("{}={}", names[i], shape[i]));
  return fmt::format("{}", fmt::join(parts, ","));
}

template <typename... Arguments>
absl::Status invalid(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  return absl::InvalidArgumentError(fmt::format(format, std::forward<Arguments>(arguments)...));
}

std::vector<int64_t> coordinates_at(const std::vector<int64_t>& shape, int64_t index) {
  std::vector<int64_t> coordinates(shape.size());
  for (size_t axis = shape.size(); axis-- > 0; index /= shape[axis]) {
    coordinates[axis] = index % shape[axis];
  }
  return coordinates;
}

}  // namespace

absl::StatusOr<MeshLayout> make_mesh_layout(const std::vector<int64_t>& shape,
                                            const std::vector<std::string>& names, int world_size) {
  if (shape.empty()) return invalid("a mesh needs at least one axis");
  if (shape.size() != names.size()) {
    return invalid("the mesh has {} sizes ({}) but {} names ({})", shape.size(),
                   fmt::join(shape, ", "), names.size(), fmt::join(names, ", "));
  }
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (name.empty()) return invalid("mesh {}: an axis has no name", describe(shape, names));
    if (!seen.insert(name).second) {
      return invalid("mesh {}: the axis name \"{}\" repeats", describe(shape, names), name);
    }
  }
  int64_t product = 1;
  std::optional<size_t> open;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1) {
      if (open) {
        return invalid("mesh {}: at most one size may be -1, but \"{}\" and \"{}\" are",
                       describe(shape, names), names[*open], names[i]);
      }
      open = i;
    } else if (shape[i] < 1) {
      return invalid(
          "mesh {}: the size of \"{}\" must be at least 1, or -1 for what is left of the world",
          describe(shape, names), names[i]);
    } else if (shape[i] > world_size) {
      // Also keeps the product below from overflowing.
      return invalid("mesh {}: the size of \"{}\" is larger than the world, which has {} ranks",
                     describe(shape, names), names[i], world_size);
    } else if ((product *= shape[i]) > world_size) {
      return invalid("mesh {} needs at least {} ranks, but the world has {}",
                     describe(shape, names), product, world_size);
    }
  }
  MeshLayout layout{names, shape, std::vector<int>(static_cast<size_t>(world_size))};
  if (open) {
    if (world_size % product != 0) {
      return invalid(
          "mesh {}: the world's {} ranks are not a multiple of {}, the product of the other sizes",
          describe(shape, names), world_size, product);
    }
    layout.shape[*open] = world_size / product;
  } else if (product != world_size) {
    return invalid("mesh {} has {} ranks, but the world has {}", describe(shape, names), product,
                   world_size);
  }
  std::iota(layout.ranks.begin(), layout.ranks.end(), 0);
  return layout;
}

std::optional<std::vector<int64_t>> mesh_coordinates(const MeshLayout& layout, int rank) {
  const auto found = std::find(layout.ranks.begin(), layout.ranks.end(), rank);
  if (found == layout.ranks.end()) return std::nullopt;
  return coordinates_at(layout.shape, found - layout.ranks.begin());
}

absl::StatusOr<MeshLayout> submesh_of(const MeshLayout& layout,
                                      const std::vector<std::string>& names, int rank) {
  const std::optional<std::vector<int64_t>> mine = mesh_coordinates(layout, rank);
  if (!mine) return invalid("rank {} is not in the mesh {}", rank, to_string(layout));
  if (names.empty()) return invalid("a sub-mesh of {} needs at least one axis", to_string(layout));
  std::set<std::string> wanted;
  for (const std::string& name : names) {
    if (std::find(layout.names.begin(), layout.names.end(), name) == layout.names.end()) {
      return invalid("the mesh has no axis \"{}\": its axes are {}", name,
                     describe(layout.shape, layout.names));
    }
    if (!wanted.insert(name).second) return invalid("the axis \"{}\" is asked for twice", name);
  }
  MeshLayout result;
  std::vector<size_t> fixed;
  for (size_t axis = 0; axis < layout.names.size(); ++axis) {
    if (wanted.count(layout.names[axis]) > 0) {
      result.names.push_back(layout.names[axis]);
      result.shape.push_back(layout.shape[axis]);
    } else {
      fixed.push_back(axis);
    }
  }
  for (size_t i = 0; i < layout.ranks.size(); ++i) {
    const std::vector<int64_t> theirs = coordinates_at(layout.shape, static_cast<int64_t>(i));
    const bool shares = std::all_of(fixed.begin(), fixed.end(),
                                    [&](size_t axis) { return theirs[axis] == (*mine)[axis]; });
    if (shares) result.ranks.push_back(layout.ranks[i]);
  }
  return result;
}

std::string to_string(const MeshLayout& layout) {
  return fmt::format("{} on ranks [{}]", describe(layout.shape, layout.names),
                     fmt::join(layout.ranks, ", "));
}

}  // namespace meshrun
