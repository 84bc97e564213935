#include "parallel/shard/tensor/shard_mesh.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "parallel/comm/v_collectives_of.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun {
namespace {

struct KnownMeshes {
  std::mutex mutex;
  std::map<std::string, ShardMesh::Ptr> by_name;
};

KnownMeshes& known_meshes() {
  static auto* known = new KnownMeshes;
  return *known;
}

void forget_meshes() {
  std::map<std::string, ShardMesh::Ptr> gone;
  const std::lock_guard lock(known_meshes().mutex);
  gone.swap(known_meshes().by_name);
}

}  // namespace

ShardMesh::ShardMesh(DeviceMesh mesh, std::vector<Group> axes, Group whole)
    : mesh_(std::move(mesh)), axes_(std::move(axes)), whole_(std::move(whole)) {}

ShardMesh::Ptr ShardMesh::of(const DeviceMesh& mesh) {
  const std::string name = mesh.to_string();
  KnownMeshes& known = known_meshes();
  {
    const std::lock_guard lock(known.mutex);
    const auto found = known.by_name.find(name);
    if (found != known.by_name.end()) return found->second;
  }
  DistributedManager& manager = DistributedManager::get();
  std::vector<Group> axes;
  for (const std::string& axis : mesh.mesh_dim_names()) {
    axes.push_back(manager.get_mesh_group(mesh[axis]));
  }
  Group whole = axes.size() == 1 ? axes.front() : manager.get_mesh_group(mesh);
  auto made = c10::make_intrusive<ShardMesh>(mesh, std::move(axes), std::move(whole));
  const std::lock_guard lock(known.mutex);
  if (known.by_name.empty()) manager.at_cleanup(forget_meshes);
  return known.by_name.emplace(name, std::move(made)).first->second;
}

c10::Device ShardMesh::device() const {
  const c10::DeviceType type = device_of({}, *whole_);
  const c10::Device own = DistributedManager::get().device();
  return own.type() == type ? own : c10::Device(type);
}

ShardMesh::Ptr ShardMesh::global() { return of(DistributedManager::get().global_mesh()); }

}  // namespace meshrun
