// Which ranks lie along which axis of a device mesh. No LibTorch, no communication.
//
// A layout is a value: ranks in row-major order over named axes, slowest axis first.
// make_mesh_layout.h makes them. Safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun {

struct MeshLayout {
  std::vector<std::string> names;
  std::vector<int64_t> shape;
  // Global ranks, row-major; the product of `shape` many.
  std::vector<int> ranks;
};

// The position of the axis with this name; absent if the mesh has none.
std::optional<size_t> find_axis(const MeshLayout& layout, std::string_view name);

// The position of `rank` along every axis; absent if it is not in the mesh.
std::optional<std::vector<int64_t>> mesh_coordinates(const MeshLayout& layout, int rank);

// "dp=2,spatial=2 on ranks [0, 1, 2, 3]", for messages and as the identity of a mesh.
std::string to_string(const MeshLayout& layout);

}  // namespace meshrun
