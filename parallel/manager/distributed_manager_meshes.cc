#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/errors.h"
#include "parallel/base/thrown_status.h"
#include "parallel/manager/device_mesh.h"
#include "parallel/manager/distributed_manager_state.h"
#include "parallel/manager/group_table.h"
#include "parallel/manager/make_mesh_layout.h"

namespace meshrun {
namespace {

Partition axis_partition(const MeshLayout& layout, const std::string& name) {
  Partition partition;
  for (const int rank : layout.ranks) {
    std::vector<int> ranks = value_or_throw<MeshError>(submesh_of(layout, {name}, rank)).ranks;
    if (ranks.front() == rank) partition.push_back(std::move(ranks));
  }
  return partition;
}

}  // namespace

bool DistributedManager::State::has_mesh() {
  const std::lock_guard lock(mesh_mutex);
  return mesh() != nullptr && !mesh_is_default;
}

const DeviceMesh& DistributedManager::State::set_mesh(const MeshLayout& layout, bool is_default) {
  auto mesh = std::make_unique<DeviceMesh>(layout, world.rank);
  const std::lock_guard lock(mesh_mutex);
  if (!meshes.empty() && (is_default || !mesh_is_default)) {
    if (is_default || *meshes.back() == *mesh) return *meshes.back();
    throw MeshError(fmt::format("a mesh is there already, {}; it cannot become {}",
                                meshes.back()->to_string(), mesh->to_string()));
  }
  // All names first, so that a refused mesh leaves nothing behind.
  for (const std::string& name : layout.names) {
    if (name == "world" && layout.names.size() == 1) continue;
    if (groups->contains(name)) {
      throw MeshError(fmt::format(
          "the mesh axis \"{}\" of {} has the name of a process group that exists already", name,
          mesh->to_string()));
    }
  }
  for (const std::string& name : layout.names) {
    if (name != "world") groups->declare(name, axis_partition(layout, name));
  }
  mesh_is_default = is_default;
  meshes.push_back(std::move(mesh));
  return *meshes.back();
}

const DeviceMesh& DistributedManager::initialize_mesh(
    const std::vector<int64_t>& mesh_shape, const std::vector<std::string>& mesh_dim_names) {
  if (!state_->has_mesh()) {
    const std::string difference = state_->difference_of_calls(
        fmt::format("initialize_mesh({{{}}}, {{{}}})", fmt::join(mesh_shape, ", "),
                    fmt::join(mesh_dim_names, ", ")));
    if (!difference.empty()) throw MeshError(difference);
  }
  return state_->set_mesh(
      value_or_throw<MeshError>(make_mesh_layout(mesh_shape, mesh_dim_names, world_size())));
}

const DeviceMesh& DistributedManager::global_mesh() {
  {
    const std::lock_guard lock(state_->mesh_mutex);
    if (state_->mesh() != nullptr) return *state_->mesh();
  }
  return state_->set_mesh(
      value_or_throw<MeshError>(make_mesh_layout({-1}, {"world"}, world_size())),
      /*is_default=*/true);
}

DeviceMesh DistributedManager::mesh(const std::optional<std::string>& name) const {
  const std::lock_guard lock(state_->mesh_mutex);
  if (state_->mesh() == nullptr) {
    throw UndefinedGroupError(
        "no mesh was initialized: call initialize_mesh() or global_mesh(), or start with --mesh");
  }
  const DeviceMesh& global = *state_->mesh();
  if (!name) return global;
  if (!find_axis(global.layout(), *name)) {
    throw UndefinedGroupError(fmt::format("there is no mesh \"{}\"; the axes are \"{}\"", *name,
                                          fmt::join(global.mesh_dim_names(), "\", \"")));
  }
  return global[*name];
}

std::vector<std::string> DistributedManager::mesh_names() const {
  const std::lock_guard lock(state_->mesh_mutex);
  return state_->mesh() == nullptr ? std::vector<std::string>() : state_->mesh()->mesh_dim_names();
}

std::map<std::string, int64_t> DistributedManager::mesh_dims() const {
  const std::lock_guard lock(state_->mesh_mutex);
  std::map<std::string, int64_t> dims;
  if (state_->mesh() == nullptr) return dims;
  for (const std::string& name : state_->mesh()->mesh_dim_names())
    dims[name] = state_->mesh()->size(name);
  return dims;
}

ProcessGroupPtr DistributedManager::get_mesh_group(const DeviceMesh& mesh) {
  if (mesh.ndim() == 1) {
    const std::string& name = mesh.mesh_dim_names().front();
    if (state_->groups->contains(name) && state_->groups->ranks(name) == mesh.ranks())
      return group(name);
  }
  return state_->groups->unnamed_group("mesh " + mesh.to_string(), mesh.ranks());
}

}  // namespace meshrun
