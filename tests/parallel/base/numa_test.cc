#include "parallel/base/numa.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;

// Nodes as Linux lists them.
class NumaTest : public ::testing::Test {
 protected:
  NumaTest() : nodes_(::testing::TempDir() + "/numa_test." + std::to_string(getpid())) {
    add(0, "0-3,8-11");
    add(1, "4-7,12");
    add(3, "");
    add(8, "13");
    fs::create_directories(nodes_ + "/power");
  }
  ~NumaTest() override { fs::remove_all(nodes_); }

  void add(int node, const std::string& cores) {
    const std::string directory = nodes_ + "/node" + std::to_string(node);
    fs::create_directories(directory);
    std::ofstream(directory + "/cpulist") << cores << '\n';
  }
  std::optional<int> node_of(std::initializer_list<int> cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) CPU_SET(static_cast<size_t>(core), &set);
    return numa_node_of(set, nodes_);
  }

  const std::string nodes_;
};

TEST_F(NumaTest, TheNodeThatHasAllCores) {
  EXPECT_EQ(node_of({0}), 0);
  EXPECT_EQ(node_of({8, 11}), 0);
  EXPECT_EQ(node_of({4, 12}), 1);
}

TEST_F(NumaTest, NumbersOfNodesHaveGaps) {
  EXPECT_EQ(node_of({13}), 8);
  EXPECT_EQ(numa_nodes(nodes_), (std::vector<int>{0, 1, 8})) << "node 3 has no core";
}

TEST_F(NumaTest, CoresOfSeveralNodesPreferNone) {
  EXPECT_EQ(node_of({0, 4}), std::nullopt);
  EXPECT_EQ(node_of({0, 13}), std::nullopt);
  EXPECT_EQ(node_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}), std::nullopt);
}

TEST_F(NumaTest, WithoutAnAnswerTheKernelDecides) {
  EXPECT_EQ(node_of({0, 40}), std::nullopt);
  EXPECT_EQ(node_of({}), std::nullopt);
  cpu_set_t any;
  CPU_ZERO(&any);
  CPU_SET(0, &any);
  EXPECT_EQ(numa_node_of(any, nodes_ + "/none"), std::nullopt);
  EXPECT_FALSE(prefer_numa_node(nullptr, 0, -1));
}

}  // namespace
}  // namespace meshrun
