// Makes mesh layouts; core/mesh.h has the arithmetic. No LibTorch, no communication. Errors are
// INVALID_ARGUMENT with the numbers of both sides. Safe to use from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/mesh.h"
#include "parallel/manager/mesh_layout.h"

namespace meshrun {

// A mesh over ranks 0 .. world_size-1. At most one size may be -1: it becomes what is left of the
// world.
absl::StatusOr<MeshLayout> make_mesh_layout(const std::vector<int64_t>& shape,
                                            const std::vector<std::string>& names, int world_size);
absl::StatusOr<MeshLayout> make_mesh_layout(const std::vector<Axis>& axes, int world_size);

// The part of the mesh that `rank` sees along `names`: all other coordinates are the rank's own.
// The axes keep the order of the mesh, whatever the order of `names`.
absl::StatusOr<MeshLayout> submesh_of(const MeshLayout& layout,
                                      const std::vector<std::string>& names, int rank);

}  // namespace meshrun
