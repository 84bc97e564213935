#include "core/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Axis> Parsed(std::string_view text) { return ParseMesh(text).value(); }

TEST(MeshTest, ParsesAxesInOrderAndFormatsThemBack) {
  EXPECT_THAT(Parsed("dp=-1,spatial=2"), ElementsAre(Axis{"dp", -1}, Axis{"spatial", 2}));
  EXPECT_EQ(FormatMesh(Parsed("dp=-1,spatial=2")), "dp=-1,spatial=2");
}

TEST(MeshTest, WrongTextIsNamedAndARightOneShown) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"dp", "mesh axis 'dp' has no '=size'"},
           {"dp=two", "size 'two' of mesh axis 'dp'"},
           {"dp=", "size '' of mesh axis 'dp'"},
           {"2d=2", "mesh axis name '2d'"},
           {"dp=0", "mesh axis 'dp' has size 0"},
           {"dp=2,dp=2", "mesh axis 'dp' is named twice"},
           {"dp=-1,tp=-1", "mesh axes 'dp' and 'tp' are both -1"},
           {"", "mesh axis '' has no '=size'"}}) {
    const auto mesh = ParseMesh(text);
    ASSERT_FALSE(mesh.ok()) << text;
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(mesh.status().message()), HasSubstr(part)) << text;
  }
}

TEST(MeshTest, ResolvesTheOpenAxisOrNamesBothNumbers) {
  EXPECT_THAT(*ResolveMesh(Parsed("dp=-1,tp=2"), 6), ElementsAre(Axis{"dp", 3}, Axis{"tp", 2}));
  EXPECT_THAT(std::string(ResolveMesh(Parsed("dp=3,tp=2"), 4).status().message()),
              AllOf(HasSubstr("needs 6 ranks"), HasSubstr("has 4")));
  EXPECT_THAT(std::string(ResolveMesh(Parsed("dp=-1,tp=4"), 6).status().message()),
              AllOf(HasSubstr("multiple of 4"), HasSubstr("has 6")));
}

TEST(MeshTest, LargestWorldIsAMultipleOfTheUnitThatTheMeshDivides) {
  EXPECT_EQ(LargestMeshWorld(Parsed("dp=-1,tp=3"), 10, 2), 6);
  EXPECT_EQ(LargestMeshWorld(Parsed("dp=2,tp=2"), 10, 2), 4);
  EXPECT_EQ(LargestMeshWorld(Parsed("dp=2,tp=2"), 3, 1), 0);
  EXPECT_EQ(LargestMeshWorld({}, 7, 2), 6);
}

TEST(MeshTest, LastAxisVariesFastestAndGroupsPartitionTheWorld) {
  const std::vector<Axis> mesh = Parsed("dp=2,tp=3");
  EXPECT_THAT(MeshCoordinates(mesh, 4), ElementsAre(1, 1));
  EXPECT_THAT(AxisGroup(mesh, 0, 4), ElementsAre(1, 4));
  EXPECT_THAT(AxisGroup(mesh, 1, 4), ElementsAre(3, 4, 5));
}

}  // namespace
}  // namespace meshrun
