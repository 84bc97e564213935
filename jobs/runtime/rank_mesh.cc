#include "jobs/runtime/rank_mesh.h"

#include <map>
#include <string>

#include "jobs/runtime/job.h"

namespace meshrun::jobs {

RankMesh join_mesh(int64_t spatial, const std::string& axis) {
  DistributedManager& manager = DistributedManager::get();
  if (manager.mesh_names().empty()) {
    if (manager.world_size() % spatial != 0) {
      throw UsageError("--" + axis + " " + std::to_string(spatial) + " does not divide the " +
                       std::to_string(manager.world_size()) + " ranks");
    }
    manager.initialize_mesh({-1, spatial}, {kData, axis});
  }
  const std::map<std::string, int64_t> sizes = manager.mesh_dims();
  if (sizes.size() != 2 || !sizes.contains(kData) || !sizes.contains(axis)) {
    throw UsageError("the mesh is " + manager.global_mesh().to_string() +
                     "; this job needs the axes dp and " + axis + ", for example --mesh dp=-1," +
                     axis + "=2");
  }
  return {manager.world(), manager.group(kData), manager.group(axis)};
}

}  // namespace meshrun::jobs
