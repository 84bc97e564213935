// Which cores ranks are bound to, on hosts as Linux describes them.
#include "worker/launch/numa_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "worker/inventory/core_topology.h"

namespace meshrun::worker {
namespace {

namespace fs = std::filesystem;
using os::CoreSet;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CoreSet From(int first, int last) {
  CoreSet cores(static_cast<size_t>(last - first + 1));
  std::iota(cores.begin(), cores.end(), first);
  return cores;
}

CoreSet Both(CoreSet one, const CoreSet& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

// Two sockets with two NUMA nodes each. A node has 4 physical cores of two threads: core c and
// core c + 16 are one. Two physical cores share a cache.
CoreTopology TwoSockets() {
  CoreTopology topology;
  for (int core = 0; core < 32; ++core) {
    const int physical = core % 16;
    topology[core] = {.numa_node = physical / 4,
                      .socket = physical / 8,
                      .physical = physical,
                      .cache = physical / 2 * 2};
  }
  return topology;
}

// GPUs by their node; -1: Linux does not say.
std::vector<v1::Gpu> GpusOn(const std::vector<int>& nodes) {
  std::vector<v1::Gpu> gpus(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    gpus[i].set_index(static_cast<uint32_t>(i));
    if (nodes[i] >= 0) gpus[i].set_numa_node(static_cast<uint32_t>(nodes[i]));
  }
  return gpus;
}

// Ranks with these GPUs.
std::vector<v1::RankAssignment> Ranks(const std::vector<std::vector<uint32_t>>& gpus) {
  std::vector<v1::RankAssignment> ranks(gpus.size());
  for (size_t i = 0; i < gpus.size(); ++i) {
    ranks[i].set_rank(static_cast<int>(i));
    ranks[i].set_local_rank(static_cast<int>(i));
    ranks[i].mutable_gpus()->Assign(gpus[i].begin(), gpus[i].end());
  }
  return ranks;
}

std::vector<v1::RankAssignment> RanksWithoutGpus(size_t count) {
  return Ranks(std::vector<std::vector<uint32_t>>(count));
}

std::string ErrorOf(const absl::StatusOr<std::vector<CoreSet>>& bound) {
  return std::string(bound.status().message());
}

TEST(NumaBindingTest, NodeIsAllCoresOfTheGpusNode) {
  const auto bound =
      BindRanks(v1::NUMA_BINDING_NODE, TwoSockets(), GpusOn({3, 0}), Ranks({{0}, {1}}));
  EXPECT_THAT(*bound,
              ElementsAre(Both(From(12, 15), From(28, 31)), Both(From(0, 3), From(16, 19))));
}

TEST(NumaBindingTest, SocketIsAllCoresOfTheNodesSocket) {
  const auto bound = BindRanks(v1::NUMA_BINDING_SOCKET, TwoSockets(), GpusOn({3}), Ranks({{0}}));
  EXPECT_THAT(*bound, ElementsAre(Both(From(8, 15), From(24, 31))));
}

// Each GPU of the node has a part, also one that no rank of this job has: another job's may.
TEST(NumaBindingTest, ExclusivePartsOfANodeAreWholeCoresOfOneGpuEach) {
  const auto bound = BindRanks(v1::NUMA_BINDING_EXCLUSIVE, TwoSockets(), GpusOn({1, 1, 1, 2}),
                               Ranks({{2}, {0}, {3}}));
  EXPECT_THAT(*bound,
              ElementsAre(CoreSet{7, 23}, CoreSet{4, 5, 20, 21}, Both(From(8, 11), From(24, 27))));
}

TEST(NumaBindingTest, ExclusivePartsDoNotOverlapAndLeaveNothingForAnyNumberOfRanks) {
  for (size_t ranks = 1; ranks <= 16; ++ranks) {
    const auto bound =
        BindRanks(v1::NUMA_BINDING_EXCLUSIVE, TwoSockets(), {}, RanksWithoutGpus(ranks));
    ASSERT_TRUE(bound.ok()) << ranks << ": " << ErrorOf(bound);
    CoreSet all;
    for (const CoreSet& cores : *bound) {
      EXPECT_FALSE(cores.empty());
      all = Both(all, cores);
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end()) << ranks;
    // Fewer ranks leave nodes free.
    EXPECT_EQ(all.size(), std::min<size_t>(ranks, 4) * 8) << ranks;
  }
}

TEST(NumaBindingTest, MoreRanksThanPhysicalCoresOfANodeAreRefused) {
  const auto bound =
      BindRanks(v1::NUMA_BINDING_EXCLUSIVE, TwoSockets(), GpusOn({2, 2, 2, 2, 2}), Ranks({{4}}));
  EXPECT_EQ(
      ErrorOf(bound),
      "--numa-binding: rank 0: 5 GPUs share the physical cores of NUMA node 2, of which ranks "
      "may use 4 here: take --numa-binding node, or fewer ranks");
}

TEST(NumaBindingTest, CoreComplexesAreHandedOutInTurnTheLargestFirst) {
  CoreTopology topology = TwoSockets();
  // One thread of the first cache of node 0 may be used.
  for (const int core : {0, 1, 16}) topology.erase(core);
  const auto bound =
      BindRanks(v1::NUMA_BINDING_CORE_COMPLEX, topology, GpusOn({0, 0, 0}), Ranks({{0}, {1}, {2}}));
  EXPECT_THAT(*bound, ElementsAre(CoreSet{2, 3, 18, 19}, CoreSet{17}, CoreSet{2, 3, 18, 19}));
}

TEST(NumaBindingTest, ARankHasCoresNearEachOfItsGpus) {
  const auto bound =
      BindRanks(v1::NUMA_BINDING_NODE, TwoSockets(), GpusOn({0, 3}), Ranks({{0, 1}}));
  EXPECT_THAT(*bound,
              ElementsAre(CoreSet{0, 1, 2, 3, 12, 13, 14, 15, 16, 17, 18, 19, 28, 29, 30, 31}));
}

TEST(NumaBindingTest, RanksWithoutGpusAreSpreadOverTheNodesInOrder) {
  const auto bound =
      BindRanks(v1::NUMA_BINDING_NODE, TwoSockets(), GpusOn({0}), RanksWithoutGpus(6));
  std::vector<int> first;
  for (const CoreSet& cores : *bound) first.push_back(cores.front());
  EXPECT_THAT(first, ElementsAre(0, 0, 4, 8, 8, 12));
}

TEST(NumaBindingTest, OnlyCoresThatRanksMayUseAreHandedOut) {
  CoreTopology topology;
  for (const auto& [core, place] : TwoSockets()) {
    if (core < 4) topology[core] = place;
  }
  const auto bound = BindRanks(v1::NUMA_BINDING_SOCKET, topology, GpusOn({0}), Ranks({{0}}));
  EXPECT_THAT(*bound, ElementsAre(From(0, 3)));
  EXPECT_EQ(ErrorOf(BindRanks(v1::NUMA_BINDING_NODE, topology, GpusOn({0, 2}), Ranks({{0}, {1}}))),
            "--numa-binding: rank 1: its GPU is on NUMA node 2, and the cores that ranks may use "
            "here (0-3) are on others");
}

// A host that has one node: Linux gives GPUs none.
TEST(NumaBindingTest, OneNodeIsDividedAmongItsGpus) {
  CoreTopology topology;
  for (int core = 0; core < 4; ++core) topology[core] = {.physical = core};
  const std::vector<v1::Gpu> gpus = GpusOn({-1, -1});
  const std::vector<v1::RankAssignment> ranks = Ranks({{0}, {1}});
  const auto of = [&](v1::NumaBinding binding) {
    return *BindRanks(binding, topology, gpus, ranks);
  };
  EXPECT_THAT(of(v1::NUMA_BINDING_NODE), ElementsAre(From(0, 3), From(0, 3)));
  EXPECT_THAT(of(v1::NUMA_BINDING_SOCKET), ElementsAre(From(0, 3), From(0, 3)));
  EXPECT_THAT(of(v1::NUMA_BINDING_EXCLUSIVE), ElementsAre(From(0, 1), From(2, 3)));
  EXPECT_THAT(of(v1::NUMA_BINDING_CORE_COMPLEX), ElementsAre(From(0, 3), From(0, 3)));
}

TEST(NumaBindingTest, AWayThatThisWorkerDoesNotKnowIsRefused) {
  const auto bound =
      BindRanks(static_cast<v1::NumaBinding>(99), TwoSockets(), {}, RanksWithoutGpus(1));
  EXPECT_THAT(ErrorOf(bound), HasSubstr("it is older than the client"));
}

class CoreTopologyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / "core_topology";
    fs::remove_all(root_);
  }

  void Write(const std::string& path, const std::string& line) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << line << "\n";
  }

  fs::path root_;
};

TEST_F(CoreTopologyTest, IsReadAsLinuxListsIt) {
  Write("node/node0/cpulist", "0,2");
  Write("node/node8/cpulist", "1,3");
  Write("node/node9/cpulist", "");
  Write("node/power/cpulist", "0-3");
  for (int core = 0; core < 4; ++core) {
    const std::string path = "cpu/cpu" + std::to_string(core);
    Write(path + "/topology/physical_package_id", std::to_string(core % 2));
    Write(path + "/topology/thread_siblings_list", core % 2 == 0 ? "0,2" : "1,3");
    Write(path + "/cache/index0/level", "1");
    Write(path + "/cache/index0/type", "Data");
    Write(path + "/cache/index0/shared_cpu_list", std::to_string(core));
    Write(path + "/cache/index3/level", "3");
    Write(path + "/cache/index3/type", "Unified");
    Write(path + "/cache/index3/shared_cpu_list", core % 2 == 0 ? "0,2" : "1,3");
    Write(path + "/cache/index4/level", "4");
    Write(path + "/cache/index4/type", "Instruction");
    Write(path + "/cache/index4/shared_cpu_list", std::to_string(core));
  }
  const CoreTopology topology = ReadCoreTopology({0, 1, 3}, root_);
  ASSERT_EQ(topology.size(), 3u);
  const CorePlace& last = topology.at(3);
  EXPECT_EQ(last.numa_node, 8);
  EXPECT_EQ(last.socket, 1);
  EXPECT_EQ(last.physical, 1);
  EXPECT_EQ(last.cache, 1);
  EXPECT_EQ(topology.at(0).numa_node, 0);
}

TEST_F(CoreTopologyTest, WithoutFilesThereIsOneNodeWhoseCoresShareACache) {
  const CoreTopology topology = ReadCoreTopology({2, 5}, root_);
  EXPECT_EQ(topology.at(5).numa_node, 0);
  EXPECT_EQ(topology.at(5).socket, 0);
  EXPECT_EQ(topology.at(5).physical, 5);
  EXPECT_EQ(topology.at(5).cache, 2);
}

TEST_F(CoreTopologyTest, TheNodeOfADeviceIsKnownWhereThereAreSeveral) {
  Write("0000:dc:00.0/numa_node", "1");
  Write("0000:dd:00.0/numa_node", "-1");
  EXPECT_EQ(NumaNodeOfDevice("0000:dc:00.0", root_), 1);
  EXPECT_EQ(NumaNodeOfDevice("0000:dd:00.0", root_), std::nullopt);
  EXPECT_EQ(NumaNodeOfDevice("0000:de:00.0", root_), std::nullopt);
}

// This host, whatever it is: what is handed out is what a thread can be given.
TEST(CoreTopology, EachWayOfBindingWorksHereForOneRank) {
  const CoreTopology topology = ReadCoreTopology(os::OwnCores());
  ASSERT_FALSE(topology.empty());
  for (const auto binding : {v1::NUMA_BINDING_NODE, v1::NUMA_BINDING_SOCKET,
                             v1::NUMA_BINDING_EXCLUSIVE, v1::NUMA_BINDING_CORE_COMPLEX}) {
    const auto bound = BindRanks(binding, topology, {}, RanksWithoutGpus(1));
    ASSERT_TRUE(bound.ok()) << ErrorOf(bound);
    const CoreSet before = os::OwnCores();
    ASSERT_TRUE(os::RunOn(bound->front()));
    EXPECT_EQ(os::OwnCores(), bound->front());
    ASSERT_TRUE(os::RunOn(before));
  }
}

TEST(CoreSetTest, IsReadAsLinuxWritesIt) {
  EXPECT_EQ(os::ParseCoreSet("0-3,8\n"), (CoreSet{0, 1, 2, 3, 8}));
  EXPECT_EQ(os::ParseCoreSet(""), std::nullopt);
  EXPECT_EQ(os::ParseCoreSet("3-1"), std::nullopt);
  EXPECT_EQ(os::ParseCoreSet("all"), std::nullopt);
}

}  // namespace
}  // namespace meshrun::worker
