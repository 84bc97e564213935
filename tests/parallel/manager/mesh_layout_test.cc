#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/manager/make_mesh_layout.h"

namespace meshrun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error(const std::vector<int64_t>& shape, const std::vector<std::string>& names,
                  int world_size) {
  const auto layout = make_mesh_layout(shape, names, world_size);
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(layout.status().message());
}

TEST(MeshLayoutTest, MinusOneBecomesWhatIsLeft) {
  EXPECT_THAT(make_mesh_layout({-1, 2}, {"dp", "tp"}, 6)->shape, ElementsAre(3, 2));
  EXPECT_THAT(make_mesh_layout({2, -1}, {"dp", "tp"}, 2)->shape, ElementsAre(2, 1));
  EXPECT_THAT(make_mesh_layout({-1}, {"world"}, 1)->shape, ElementsAre(1));
}

TEST(MeshLayoutTest, WrongShapesNameBothNumbers) {
  EXPECT_THAT(error({3, 2}, {"dp", "tp"}, 4),
              AllOf(HasSubstr("dp=3,tp=2"), HasSubstr("needs 6 ranks"), HasSubstr("has 4")));
  EXPECT_THAT(error({2}, {"dp"}, 4), AllOf(HasSubstr("needs 2 ranks"), HasSubstr("has 4")));
  EXPECT_THAT(error({-1, 3}, {"dp", "tp"}, 4),
              AllOf(HasSubstr("has 4"), HasSubstr("multiple of 3")));
  EXPECT_THAT(error({-1, -1}, {"dp", "tp"}, 4),
              AllOf(HasSubstr("at most one"), HasSubstr("'dp'"), HasSubstr("'tp'")));
  EXPECT_THAT(error({-1, 0}, {"dp", "tp"}, 4), HasSubstr("'tp' has size 0"));
  EXPECT_THAT(error({-2, 2}, {"dp", "tp"}, 4), HasSubstr("'dp' has size -2"));
  EXPECT_THAT(error({int64_t{1} << 62, 4}, {"dp", "tp"}, 4),
              AllOf(HasSubstr("mesh dp="), HasSubstr("has 4")));
  EXPECT_THAT(error({}, {}, 4), HasSubstr("at least one axis"));
  EXPECT_THAT(error({2, 2}, {"dp"}, 4), AllOf(HasSubstr("2 sizes"), HasSubstr("1 names")));
  EXPECT_THAT(error({2, 2}, {"dp", "dp"}, 4), HasSubstr("'dp' is named twice"));
  EXPECT_THAT(error({2, 2}, {"dp", ""}, 4), HasSubstr("no name"));
}

TEST(MeshLayoutTest, TheLastAxisVariesFastest) {
  const MeshLayout layout = *make_mesh_layout({2, 3}, {"dp", "tp"}, 6);
  EXPECT_THAT(*mesh_coordinates(layout, 0), ElementsAre(0, 0));
  EXPECT_THAT(*mesh_coordinates(layout, 4), ElementsAre(1, 1));
  EXPECT_EQ(mesh_coordinates(layout, 6), std::nullopt);
}

TEST(MeshLayoutTest, AnAxisIsFoundByItsName) {
  const MeshLayout layout = *make_mesh_layout({2, 3}, {"dp", "tp"}, 6);
  EXPECT_EQ(find_axis(layout, "dp"), 0u);
  EXPECT_EQ(find_axis(layout, "tp"), 1u);
  EXPECT_EQ(find_axis(layout, "t"), std::nullopt);
  EXPECT_EQ(find_axis(MeshLayout(), "dp"), std::nullopt);
}

TEST(MeshLayoutTest, ASubmeshHoldsTheRanksOwnOtherCoordinates) {
  const MeshLayout layout = *make_mesh_layout({2, 2, 2}, {"dp", "tp", "sp"}, 8);
  EXPECT_THAT(submesh_of(layout, {"dp"}, 5)->ranks, ElementsAre(1, 5));
  EXPECT_THAT(submesh_of(layout, {"sp"}, 5)->ranks, ElementsAre(4, 5));
  const MeshLayout pair = *submesh_of(layout, {"sp", "dp"}, 5);
  EXPECT_THAT(pair.names, ElementsAre("dp", "sp"));
  EXPECT_THAT(pair.ranks, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(submesh_of(pair, {"dp"}, 5)->ranks, ElementsAre(1, 5));
}

// What makes a group the same on all its members.
TEST(MeshLayoutTest, AllMembersOfASubmeshComputeTheSameOne) {
  const MeshLayout layout = *make_mesh_layout({2, 3, 2}, {"a", "b", "c"}, 12);
  for (const std::vector<std::string>& names :
       std::vector<std::vector<std::string>>{{"a"}, {"b"}, {"c"}, {"a", "c"}}) {
    for (int rank = 0; rank < 12; ++rank) {
      const MeshLayout mine = *submesh_of(layout, names, rank);
      for (const int peer : mine.ranks)
        EXPECT_EQ(submesh_of(layout, names, peer)->ranks, mine.ranks);
    }
  }
}

TEST(MeshLayoutTest, WrongSubmeshesAreErrors) {
  const MeshLayout layout = *make_mesh_layout({2, 2}, {"dp", "tp"}, 4);
  EXPECT_THAT(std::string(submesh_of(layout, {"pp"}, 0).status().message()),
              AllOf(HasSubstr("\"pp\""), HasSubstr("dp=2,tp=2")));
  EXPECT_FALSE(submesh_of(layout, {"dp", "dp"}, 0).ok());
  EXPECT_FALSE(submesh_of(layout, {}, 0).ok());
  EXPECT_FALSE(submesh_of(layout, {"dp"}, 4).ok());
}

}  // namespace
}  // namespace meshrun
