// Which ranks lie along which axis of a device mesh; core/mesh.h has the arithmetic. No LibTorch,
// no communication.
//
// A layout is a value: ranks in row-major order over named axes, slowest axis first. Errors are
// INVALID_ARGUMENT with the numbers of both sides. Safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/mesh.h"

namespace meshrun {

struct MeshLayout {
  std::vector<std::string> names;
  std::vector<int64_t> shape;
  // Global ranks, row-major; the product of `shape` many.
  std::vector<int> ranks;
};

// A mesh over ranks 0 .. world_size-1. At most one size may be -1: it becomes what is left of the
// world.
absl::StatusOr<MeshLayout> make_mesh_layout(const std::vector<int64_t>& shape,
                                            const std::vector<std::string>& names, int world_size);
absl::StatusOr<MeshLayout> make_mesh_layout(const std::vector<Axis>& axes, int world_size);

// The position of the axis with this name; absent if the mesh has none.
std::optional<size_t> find_axis(const MeshLayout& layout, std::string_view name);

// The position of `rank` along every axis; absent if it is not in the mesh.
std::optional<std::vector<int64_t>> mesh_coordinates(const MeshLayout& layout, int rank);

// The part of the mesh that `rank` sees along `names`: all other coordinates are the rank's own.
// The axes keep the order of the mesh, whatever the order of `names`.
absl::StatusOr<MeshLayout> submesh_of(const MeshLayout& layout,
                                      const std::vector<std::string>& names, int rank);

// "dp=2,spatial=2 on ranks [0, 1, 2, 3]", for messages and as the identity of a mesh.
std::string to_string(const MeshLayout& layout);

}  // namespace meshrun
