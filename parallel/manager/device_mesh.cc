#include "parallel/manager/device_mesh.h"

#include <optional>
#include <utility>

#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "parallel/base/thrown_status.h"
#include "parallel/manager/make_mesh_layout.h"

namespace meshrun {

DeviceMesh::DeviceMesh(MeshLayout layout, IntArgument rank)
    : layout_(std::move(layout)), rank_(rank.to_int()) {
  std::optional<std::vector<int64_t>> coordinate = mesh_coordinates(layout_, rank_);
  if (!coordinate) {
    throw MeshError(fmt::format("rank {} is not in the mesh {}", rank_, to_string()));
  }
  coordinate_ = *std::move(coordinate);
}

size_t DeviceMesh::axis(const std::string& name) const {
  const std::optional<size_t> found = find_axis(layout_, name);
  if (!found) throw MeshError(fmt::format("the mesh {} has no axis \"{}\"", to_string(), name));
  return *found;
}

int64_t DeviceMesh::size(const std::string& name) const { return layout_.shape[axis(name)]; }

int64_t DeviceMesh::get_local_rank(const std::string& name) const {
  return coordinate_[axis(name)];
}

DeviceMesh DeviceMesh::submesh(const std::vector<std::string>& names) const {
  return DeviceMesh(value_or_throw<MeshError>(submesh_of(layout_, names, rank_)), rank_);
}

bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
  return a.rank_ == b.rank_ && a.layout_.names == b.layout_.names &&
         a.layout_.shape == b.layout_.shape && a.layout_.ranks == b.layout_.ranks;
}

}  // namespace meshrun
