// A mesh of nearly equal triangles on the unit sphere: an icosahedron whose triangles are cut into
// four, `level` times. Pure, without LibTorch.
//
//   level                 0    1    2     3      4       5        6
//   nodes  10 * 4^l + 2   12   42   162   642    2562    10242    40962
//   faces  20 * 4^l       20   80   320   1280   5120    20480    81920
//   edges  60 * 4^l       60   240  960   3840   15360   61440    245760   (both directions)
//
// A level's nodes are the first nodes of the next one. Baumgardner and Frederickson, "Icosahedral
// Discretization of the Two-Sphere" (1985). Errors: std::invalid_argument.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "parallel/base/arguments.h"

namespace meshrun {

struct IcosahedralMesh {
  std::vector<std::array<double, 3>> positions;  // of length 1
  std::vector<std::array<int64_t, 3>> faces;     // counterclockwise, seen from outside
  // Edge e goes from node src[e] to node dst[e]. Both directions; by dst, then by src.
  std::vector<int64_t> src;
  std::vector<int64_t> dst;

  int64_t num_nodes() const { return static_cast<int64_t>(positions.size()); }
  int64_t num_edges() const { return static_cast<int64_t>(src.size()); }
};

// `level` from 0 to 10. With `all_levels` the mesh also has the edges of all lower levels, as
// GraphCast's multi-mesh: Lam et al., "Learning Skillful Medium-Range Global Weather Forecasting"
// (2023).
IcosahedralMesh icosahedral_mesh(IntArgument level, BoolArgument all_levels = false);

}  // namespace meshrun
