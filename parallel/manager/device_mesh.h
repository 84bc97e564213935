// A named, multi-dimensional arrangement of ranks, as seen by one rank.
//
// Corresponds to torch.distributed.DeviceMesh. A value: copies are cheap and independent. It holds
// no process group; DistributedManager::get_mesh_group() gives the group of a mesh. Safe to read
// from any thread.
//
// Errors: MeshError, with both sides' numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/manager/mesh_layout.h"

namespace meshrun {

class DeviceMesh {
 public:
  // `rank` must be one of the layout's ranks.
  DeviceMesh(MeshLayout layout, IntArgument rank);

  int64_t ndim() const { return static_cast<int64_t>(layout_.shape.size()); }
  // Ranks in the mesh.
  int64_t size() const { return static_cast<int64_t>(layout_.ranks.size()); }
  // Ranks along one axis.
  int64_t size(const std::string& name) const;

  const std::vector<std::string>& mesh_dim_names() const { return layout_.names; }
  const std::vector<int64_t>& shape() const { return layout_.shape; }
  // Global ranks, row-major.
  const std::vector<int>& ranks() const { return layout_.ranks; }

  // This rank's position along every axis, and along one.
  const std::vector<int64_t>& get_coordinate() const { return coordinate_; }
  int64_t get_local_rank(const std::string& name) const;

  // The sub-mesh of this rank along one axis, or several (in the order of the mesh).
  DeviceMesh operator[](const std::string& name) const { return submesh({name}); }
  DeviceMesh submesh(const std::vector<std::string>& names) const;

  const MeshLayout& layout() const { return layout_; }
  std::string to_string() const { return meshrun::to_string(layout_); }

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b);

 private:
  size_t axis(const std::string& name) const;

  MeshLayout layout_;
  int rank_;
  std::vector<int64_t> coordinate_;
};

}  // namespace meshrun
