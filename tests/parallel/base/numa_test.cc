#include "parallel/base/numa.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

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
    add(4, "13");
  }
  ~NumaTest() override { fs::remove_all(nodes_); }

  void add(int node, const std::string& cores) {
    const std::string directory = nodes_ + "/node" + std::to_string(node);
    fs::create_directories(directory);
    std::ofstream(directory + "/cpulist") << cores << '\n';
  }
  std::optional<int> node_of(std::initializer_list<int> cores, int current) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) CPU_SET(static_cast<size_t>(core), &set);
    return numa_node_of(set, current, nodes_);
  }

  const std::string nodes_;
};

TEST_F(NumaTest, TheNodeThatHasAllCores) {
  EXPECT_EQ(node_of({0}, 0), 0);
  EXPECT_EQ(node_of({8, 11}, 8), 0);
  EXPECT_EQ(node_of({4, 12}, 4), 1);
  EXPECT_EQ(node_of({13}, 13), 4) << "numbers have gaps";
}

TEST_F(NumaTest, OfSeveralNodesTheOneWhereTheCallerRuns) {
  EXPECT_EQ(node_of({0, 4}, 4), 1);
  EXPECT_EQ(node_of({0, 4}, 0), 0);
}

TEST_F(NumaTest, WithoutAnAnswerTheKernelDecides) {
  EXPECT_EQ(node_of({0, 40}, 40), std::nullopt);
  cpu_set_t any;
  CPU_ZERO(&any);
  CPU_SET(0, &any);
  EXPECT_EQ(numa_node_of(any, 0, nodes_ + "/none"), std::nullopt);
  EXPECT_FALSE(prefer_numa_node(nullptr, 0, -1));
}

}  // namespace
}  // namespace meshrun
