#include "parallel/nn/graph/icosahedral_mesh.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace meshrun {
namespace {

using Point = std::array<double, 3>;
using Face = std::array<int64_t, 3>;
using Edge = std::pair<int64_t, int64_t>;  // dst, src

constexpr int64_t kMostLevels = 10;

Point normalised(const Point& p) {
  const double length = std::sqrt(p[0] * p[0] + p[1] * p[1] + p[2] * p[2]);
  return {p[0] / length, p[1] / length, p[2] / length};
}

// The poles and two rings of five between them.
IcosahedralMesh icosahedron() {
  IcosahedralMesh mesh;
  const double height = 1 / std::sqrt(5.0);
  const double radius = 2 / std::sqrt(5.0);
  const double fifth = 2 * std::acos(-1.0) / 5;
  mesh.positions.push_back({0, 0, 1});
  for (int ring = 0; ring < 2; ++ring) {
    for (int i = 0; i < 5; ++i) {
      const double angle = fifth * (i + 0.5 * ring);
      mesh.positions.push_back(normalised(
          {radius * std::cos(angle), radius * std::sin(angle), ring == 0 ? height : -height}));
    }
  }
  mesh.positions.push_back({0, 0, -1});
  for (int64_t i = 0; i < 5; ++i) {
    const int64_t upper = 1 + i;
    const int64_t next_upper = 1 + (i + 1) % 5;
    const int64_t lower = 6 + i;
    const int64_t next_lower = 6 + (i + 1) % 5;
    mesh.faces.push_back({0, upper, next_upper});
    mesh.faces.push_back({upper, lower, next_upper});
    mesh.faces.push_back({next_upper, lower, next_lower});
    mesh.faces.push_back({11, next_lower, lower});
  }
  return mesh;
}

void refine(IcosahedralMesh& mesh) {
  std::map<Edge, int64_t> middles;
  const auto middle = [&](int64_t a, int64_t b) {
    const auto [found, is_new] = middles.try_emplace(std::minmax(a, b), mesh.num_nodes());
    if (is_new) {
      const Point& p = mesh.positions[static_cast<size_t>(a)];
      const Point& q = mesh.positions[static_cast<size_t>(b)];
      mesh.positions.push_back(normalised({p[0] + q[0], p[1] + q[1], p[2] + q[2]}));
    }
    return found->second;
  };
  std::vector<Face> faces;
  faces.reserve(4 * mesh.faces.size());
  for (const auto& [a, b, c] : mesh.faces) {
    const int64_t ab = middle(a, b);
    const int64_t bc = middle(b, c);
    const int64_t ca = middle(c, a);
    faces.insert(faces.end(), {{a, ab, ca}, {b, bc, ab}, {c, ca, bc}, {ab, bc, ca}});
  }
  mesh.faces = std::move(faces);
}

// Neighbouring faces go along their common edge in opposite directions, so that the edges of all
// faces are both directions of each.
void add_edges(const IcosahedralMesh& mesh, std::vector<Edge>& edges) {
  for (const auto& [a, b, c] : mesh.faces) edges.insert(edges.end(), {{a, b}, {b, c}, {c, a}});
}

}  // namespace

IcosahedralMesh icosahedral_mesh(IntArgument level, BoolArgument all_levels) {
  if (level < 0 || level > kMostLevels) {
    throw std::invalid_argument("an icosahedral mesh has a level from 0 to " +
                                std::to_string(kMostLevels) + ", not " + std::to_string(level));
  }
  IcosahedralMesh mesh = icosahedron();
  std::vector<Edge> edges;
  for (int64_t l = 0; l < level; ++l) {
    if (all_levels) add_edges(mesh, edges);
    refine(mesh);
  }
  add_edges(mesh, edges);
  std::sort(edges.begin(), edges.end());
  for (const auto& [dst, src] : edges) {
    mesh.dst.push_back(dst);
    mesh.src.push_back(src);
  }
  return mesh;
}

}  // namespace meshrun
