#include "parallel/manager/process_group_tree.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshrun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ProcessGroupTree example() {
  ProcessGroupTree tree{ProcessGroupNode("world")};
  EXPECT_TRUE(tree.add_node(ProcessGroupNode("model"), "world").ok());
  EXPECT_TRUE(tree.add_node(ProcessGroupNode("data"), "world").ok());
  EXPECT_TRUE(tree.add_node(ProcessGroupNode("spatial"), "model").ok());
  EXPECT_TRUE(tree.add_node(ProcessGroupNode("channel"), "model").ok());
  return tree;
}

TEST(ProcessGroupTreeTest, LeavesAreListedDepthFirst) {
  EXPECT_THAT(example().leaf_groups(), ElementsAre("spatial", "channel", "data"));
}

TEST(ProcessGroupTreeTest, AParentIsAsLargeAsItsChildrenTogether) {
  ProcessGroupTree tree = example();
  ASSERT_TRUE(tree.set_leaf_group_sizes({{"spatial", 2}, {"channel", 3}, {"data", 4}}, true).ok());
  EXPECT_EQ((*tree.get_node("model"))->size, 6);
  EXPECT_EQ((*tree.get_node("world"))->size, 24);
}

TEST(ProcessGroupTreeTest, ParentsAreLeftAloneWhenAsked) {
  ProcessGroupTree tree = example();
  ASSERT_TRUE(tree.set_leaf_group_sizes({{"spatial", 2}}, false).ok());
  EXPECT_EQ((*tree.get_node("spatial"))->size, 2);
  EXPECT_EQ((*tree.get_node("model"))->size, std::nullopt);
}

TEST(ProcessGroupTreeTest, ARefusedChangeChangesNothing) {
  ProcessGroupTree tree = example();
  const absl::Status status = tree.set_leaf_group_sizes({{"spatial", 2}}, true);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"channel\" has no size"));
  EXPECT_EQ((*tree.get_node("spatial"))->size, std::nullopt);
}

TEST(ProcessGroupTreeTest, WrongNamesAndSizesAreErrors) {
  ProcessGroupTree tree = example();
  EXPECT_THAT(std::string(tree.set_leaf_group_sizes({{"pipeline", 2}}, false).message()),
              AllOf(HasSubstr("\"pipeline\""), HasSubstr("spatial, channel, data")));
  EXPECT_THAT(std::string(tree.set_leaf_group_sizes({{"model", 2}}, false).message()),
              HasSubstr("not a leaf"));
  EXPECT_THAT(std::string(tree.set_leaf_group_sizes({{"data", 0}}, false).message()),
              HasSubstr("at least 1"));
  EXPECT_THAT(std::string(tree.add_node(ProcessGroupNode("x"), "nowhere").message()),
              HasSubstr("\"nowhere\""));
  EXPECT_THAT(std::string(tree.add_node(ProcessGroupNode("data"), "world").message()),
              HasSubstr("already"));
  EXPECT_FALSE(tree.add_node(ProcessGroupNode(""), "world").ok());
  EXPECT_FALSE(tree.get_node("nowhere").ok());
}

}  // namespace
}  // namespace meshrun
