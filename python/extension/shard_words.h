// How placements and meshes are written in Python: "S1", "R", "Psum"; (shape, names, ranks).
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/manager/device_mesh.h"
#include "parallel/shard/layout/placement.h"

namespace meshrun::python {

using Words = std::vector<std::string>;

// Raises ShardTensorError for a word that is none.
Placements placements_of(const Words& words);
Words words_of(const Placements& placements);

// Shape, names of the axes, and all ranks, row-major.
using MeshParts = std::tuple<std::vector<int64_t>, std::vector<std::string>, std::vector<int>>;

MeshParts parts_of(const DeviceMesh& mesh);

}  // namespace meshrun::python
