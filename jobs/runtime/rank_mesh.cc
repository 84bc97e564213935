#include "jobs/runtime/rank_mesh.h"

#include <map>
#include <string>

#include "jobs/runtime/job.h"

namespace meshrun::jobs {

RankMesh join_mesh(int64_t spatial) {
  DistributedManager& manager = DistributedManager::get();
  if (manager.mesh_names().empty()) {
    if (manager.world_size() % spatial != 0) {
      throw UsageError("--spatial " + std::to_string(spatial) + " does not divide the " +
                       std::to_string(manager.world_size()) + " ranks");
    }
    manager.initialize_mesh({-1, spatial}, {kData, kSpatial});
  }
  const std::map<std::string, int64_t> sizes = manager.mesh_dims();
  if (sizes.size() != 2 || !sizes.contains(kData) || !sizes.contains(kSpatial)) {
    throw UsageError("the mesh is " + manager.global_mesh().to_string() +
                     "; this job needs the axes dp and spatial, for example --mesh "
                     "dp=-1,spatial=2");
  }
  return {manager.world(), manager.group(kData), manager.group(kSpatial)};
}

}  // namespace meshrun::jobs
