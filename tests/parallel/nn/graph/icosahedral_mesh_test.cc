#include "parallel/nn/graph/icosahedral_mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

namespace meshrun {
namespace {

using Point = std::array<double, 3>;

double dot(const Point& a, const Point& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

Point cross(const Point& a, const Point& b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

TEST(IcosahedralMeshTest, CountsEdgesAndFacesAreThoseOfItsLevel) {
  int64_t scale = 1;
  for (int level = 0; level <= 4; ++level, scale *= 4) {
    const IcosahedralMesh mesh = icosahedral_mesh(level);
    EXPECT_EQ(mesh.num_nodes(), 10 * scale + 2);
    EXPECT_EQ(mesh.num_edges(), 60 * scale);
    EXPECT_EQ(mesh.faces.size(), static_cast<size_t>(20 * scale));
    std::set<std::pair<int64_t, int64_t>> edges;
    std::vector<int> degrees(mesh.positions.size(), 0);
    double shortest = 10;
    double longest = 0;
    for (size_t e = 0; e < mesh.src.size(); ++e) {
      EXPECT_TRUE(edges.emplace(mesh.dst[e], mesh.src[e]).second);
      ++degrees[static_cast<size_t>(mesh.dst[e])];
      const double angle =
          std::acos(std::clamp(dot(mesh.positions[static_cast<size_t>(mesh.src[e])],
                                   mesh.positions[static_cast<size_t>(mesh.dst[e])]),
                               -1.0, 1.0));
      shortest = std::min(shortest, angle);
      longest = std::max(longest, angle);
    }
    EXPECT_LT(longest, 1.25 * shortest);
    for (const auto& [dst, src] : edges) EXPECT_TRUE(edges.contains({src, dst}));
    EXPECT_EQ(std::count(degrees.begin(), degrees.end(), 5), 12);
    EXPECT_EQ(std::count(degrees.begin(), degrees.end(), 6), mesh.num_nodes() - 12);
    for (const Point& p : mesh.positions) EXPECT_NEAR(dot(p, p), 1, 1e-12);
    for (const auto& [a, b, c] : mesh.faces) {
      const auto at = [&](int64_t node) { return mesh.positions[static_cast<size_t>(node)]; };
      EXPECT_GT(dot(cross(at(a), at(b)), at(c)), 0) << "seen from outside, faces turn left";
    }
  }
}

TEST(IcosahedralMeshTest, ALevelBeginsWithTheNodesOfTheOneBelow) {
  const IcosahedralMesh coarse = icosahedral_mesh(2);
  const IcosahedralMesh fine = icosahedral_mesh(3);
  EXPECT_TRUE(std::equal(coarse.positions.begin(), coarse.positions.end(), fine.positions.begin()));
}

TEST(IcosahedralMeshTest, AllLevelsHaveTheirEdges) {
  const IcosahedralMesh mesh = icosahedral_mesh(2, true);
  EXPECT_EQ(mesh.num_nodes(), 162);
  EXPECT_EQ(mesh.num_edges(), 60 + 240 + 960);
  EXPECT_TRUE(std::is_sorted(mesh.dst.begin(), mesh.dst.end()));
}

TEST(IcosahedralMeshTest, LevelsEndSomewhere) {
  EXPECT_THROW(icosahedral_mesh(-1), std::invalid_argument);
  EXPECT_THROW(icosahedral_mesh(11), std::invalid_argument);
}

}  // namespace
}  // namespace meshrun
