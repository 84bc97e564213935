#include "parallel/manager/make_mesh_layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace meshrun {
namespace {

template <typename... Arguments>
absl::Status invalid(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  return absl::InvalidArgumentError(fmt::format(format, std::forward<Arguments>(arguments)...));
}

std::vector<Axis> axes_of(const std::vector<int64_t>& shape,
                          const std::vector<std::string>& names) {
  std::vector<Axis> axes;
  for (size_t i = 0; i < shape.size(); ++i) axes.push_back({names[i], shape[i]});
  return axes;
}

}  // namespace

absl::StatusOr<MeshLayout> make_mesh_layout(const std::vector<int64_t>& shape,
                                            const std::vector<std::string>& names, int world_size) {
  if (shape.size() != names.size()) {
    return invalid("the mesh has {} sizes ({}) but {} names ({})", shape.size(),
                   fmt::join(shape, ", "), names.size(), fmt::join(names, ", "));
  }
  return make_mesh_layout(axes_of(shape, names), world_size);
}

absl::StatusOr<MeshLayout> make_mesh_layout(const std::vector<Axis>& axes, int world_size) {
  if (axes.empty()) return invalid("a mesh needs at least one axis");
  for (const Axis& axis : axes) {
    if (axis.name.empty()) return invalid("mesh {}: an axis has no name", FormatMesh(axes));
  }
  const absl::StatusOr<std::vector<Axis>> resolved = ResolveMesh(axes, world_size);
  if (!resolved.ok()) return resolved.status();
  MeshLayout layout;
  for (const Axis& axis : *resolved) {
    layout.names.push_back(axis.name);
    layout.shape.push_back(axis.size);
  }
  layout.ranks.resize(static_cast<size_t>(world_size));
  std::iota(layout.ranks.begin(), layout.ranks.end(), 0);
  return layout;
}

std::optional<size_t> find_axis(const MeshLayout& layout, std::string_view name) {
  const auto found = std::find(layout.names.begin(), layout.names.end(), name);
  if (found == layout.names.end()) return std::nullopt;
  return static_cast<size_t>(found - layout.names.begin());
}

std::optional<std::vector<int64_t>> mesh_coordinates(const MeshLayout& layout, int rank) {
  const auto found = std::find(layout.ranks.begin(), layout.ranks.end(), rank);
  if (found == layout.ranks.end()) return std::nullopt;
  return MeshCoordinates(axes_of(layout.shape, layout.names), found - layout.ranks.begin());
}

absl::StatusOr<MeshLayout> submesh_of(const MeshLayout& layout,
                                      const std::vector<std::string>& names, int rank) {
  const auto mine = std::find(layout.ranks.begin(), layout.ranks.end(), rank);
  if (mine == layout.ranks.end())
    return invalid("rank {} is not in the mesh {}", rank, to_string(layout));
  if (names.empty()) return invalid("a sub-mesh of {} needs at least one axis", to_string(layout));
  const std::vector<Axis> axes = axes_of(layout.shape, layout.names);
  std::set<std::string> wanted;
  for (const std::string& name : names) {
    if (!find_axis(layout, name)) {
      return invalid("the mesh has no axis \"{}\": its axes are {}", name, FormatMesh(axes));
    }
    if (!wanted.insert(name).second) return invalid("the axis \"{}\" is asked for twice", name);
  }
  MeshLayout result;
  std::vector<bool> along;
  for (const Axis& axis : axes) {
    along.push_back(wanted.count(axis.name) > 0);
    if (!along.back()) continue;
    result.names.push_back(axis.name);
    result.shape.push_back(axis.size);
  }
  for (const int64_t position : MeshSlice(axes, along, mine - layout.ranks.begin()))
    result.ranks.push_back(layout.ranks[static_cast<size_t>(position)]);
  return result;
}

std::string to_string(const MeshLayout& layout) {
  return fmt::format("{} on ranks [{}]", FormatMesh(axes_of(layout.shape, layout.names)),
                     fmt::join(layout.ranks, ", "));
}

}  // namespace meshrun
