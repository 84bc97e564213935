#include "parallel/shard/tensor/shard_mesh.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "c10/util/Exception.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun {
namespace {

struct KnownMeshes {
  std::mutex mutex;
  std::map<std::string, ShardMesh::Ptr> by_name;
  bool end_with_manager = false;

  // Null: there is none.
  ShardMesh::Ptr find(const std::string& name) {
    const std::lock_guard lock(mutex);
    const auto found = by_name.find(name);
    return found == by_name.end() ? ShardMesh::Ptr() : found->second;
  }
};

KnownMeshes& known_meshes() {
  static auto* known = new KnownMeshes;
  return *known;
}

void forget_meshes() {
  std::map<std::string, ShardMesh::Ptr> gone;
  const std::lock_guard lock(known_meshes().mutex);
  gone.swap(known_meshes().by_name);
  known_meshes().end_with_manager = false;
}

// Pieces are counted by coordinates, and a collective counts them by the group's ranks.
void check_group(const c10d::ProcessGroup& group, int64_t size, int64_t rank,
                 const DeviceMesh& mesh, const std::string& along) {
  TORCH_CHECK_VALUE(group.getSize() == size && group.getRank() == rank, along, " of ",
                    mesh.to_string(), " needs a group of ", size,
                    " ranks in the mesh's order, where this one is number ", rank,
                    "; in the given one it is number ", group.getRank(), " of ", group.getSize());
}

// `made`, or the one that another thread has kept.
ShardMesh::Ptr keep(const std::string& name, ShardMesh::Ptr made) {
  KnownMeshes& known = known_meshes();
  const std::lock_guard lock(known.mutex);
  if (!known.end_with_manager && DistributedManager::is_initialized()) {
    DistributedManager::get().at_cleanup(forget_meshes);
    known.end_with_manager = true;
  }
  return known.by_name.emplace(name, std::move(made)).first->second;
}

}  // namespace

ShardMesh::ShardMesh(DeviceMesh mesh, std::vector<Group> axes, Group whole,
                     std::optional<c10::Device> device)
    : mesh_(std::move(mesh)), axes_(std::move(axes)), whole_(std::move(whole)), device_(device) {}

ShardMesh::Ptr ShardMesh::of(const DeviceMesh& mesh) {
  const std::string name = mesh.to_string();
  if (Ptr known = known_meshes().find(name)) return known;
  DistributedManager& manager = DistributedManager::get();
  std::vector<Group> axes;
  for (const std::string& axis : mesh.mesh_dim_names()) {
    axes.push_back(manager.get_mesh_group(mesh[axis]));
  }
  Group whole = axes.size() == 1 ? axes.front() : manager.get_mesh_group(mesh);
  return keep(name, c10::make_intrusive<ShardMesh>(mesh, std::move(axes), std::move(whole)));
}

ShardMesh::Ptr ShardMesh::over(const DeviceMesh& mesh, std::vector<Group> axes, Group whole,
                               c10::Device device) {
  const std::string name = mesh.to_string();
  if (Ptr known = known_meshes().find(name)) return known;
  const std::vector<int64_t>& coordinate = mesh.get_coordinate();
  TORCH_CHECK_VALUE(axes.size() == coordinate.size(), "the mesh ", name, " has ", coordinate.size(),
                    " axes, and ", axes.size(), " groups are given");
  int64_t number = 0;
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    const int64_t extent = mesh.shape()[axis];
    check_group(*axes[axis], extent, coordinate[axis], mesh,
                "the axis \"" + mesh.mesh_dim_names()[axis] + "\"");
    number = number * extent + coordinate[axis];
  }
  check_group(*whole, mesh.size(), number, mesh, "the whole");
  return keep(name,
              c10::make_intrusive<ShardMesh>(mesh, std::move(axes), std::move(whole), device));
}

c10::Device ShardMesh::device() const {
  if (device_) return *device_;
  const c10::DeviceType type = device_of({}, *whole_);
  const c10::Device own = DistributedManager::get().device();
  return own.type() == type ? own : c10::Device(type);
}

ShardMesh::Ptr ShardMesh::global() { return of(DistributedManager::get().global_mesh()); }

}  // namespace meshrun
