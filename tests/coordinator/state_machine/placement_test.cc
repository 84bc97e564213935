#include "coordinator/state_machine/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace meshrun::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PlacementTest : public ::testing::Test {
 protected:
  v1::Node& Add(const std::string& name, uint32_t slots, uint32_t gpus = 0) {
    v1::Node& node = nodes_.emplace_back();
    node.set_node_id("id-" + name);
    node.set_name(name);
    node.mutable_resources()->set_slots(slots);
    node.mutable_resources()->set_cores(slots);
    node.mutable_resources()->set_memory_bytes(uint64_t{8} << 30);
    for (uint32_t i = 0; i < gpus; ++i) node.mutable_resources()->add_gpus()->set_index(i);
    return node;
  }
  v1::JobSpec Spec(uint32_t min_nodes, uint32_t max_nodes, uint32_t procs) {
    v1::JobSpec spec;
    spec.set_name("train");
    spec.add_command("./train");
    spec.set_min_nodes(min_nodes);
    spec.set_max_nodes(max_nodes);
    spec.mutable_procs_per_node()->set_count(procs);
    return spec;
  }
  PlacementResult Run(const v1::JobSpec& spec, std::vector<std::string> previous = {}) {
    PlacementRequest request{spec, {}, std::move(previous)};
    for (const v1::Node& node : nodes_) request.nodes.push_back(&node);
    return Place(request);
  }
  static std::vector<std::string> Names(const PlacementResult& result) {
    std::vector<std::string> out;
    if (result.placement.has_value()) {
      for (const PlacedNode& node : result.placement->nodes) out.push_back(node.node_id.substr(3));
    }
    return out;
  }
  static v1::MeshAxis MakeAxis(const std::string& name, int64_t size) {
    v1::MeshAxis axis;
    axis.set_name(name);
    axis.set_size(size);
    return axis;
  }

  std::deque<v1::Node> nodes_;
};

TEST_F(PlacementTest, TakesHostsInNaturalOrder) {
  Add("node10", 4);
  Add("node9", 4);
  Add("node1", 4);
  EXPECT_THAT(Names(Run(Spec(3, 3, 4))), ElementsAre("node1", "node9", "node10"));
}

TEST_F(PlacementTest, IsAllOrNothingAndSaysTheNumbers) {
  Add("node1", 8).set_slots_used(6);
  const PlacementResult result = Run(Spec(2, 2, 4));
  EXPECT_FALSE(result.placement.has_value());
  EXPECT_EQ(result.reason,
            "needs 2 nodes, and 0 of 1 can take it: node1 would have to give 4 slots, and 2 of 8 "
            "are free");
}

TEST_F(PlacementTest, SaysWhenNoWorkerIsConnected) {
  EXPECT_EQ(Run(Spec(1, 1, 1)).reason, "needs 1 node, and no worker is connected");
}

TEST_F(PlacementTest, SaysWhenThereAreTooFewNodes) {
  Add("node1", 8);
  EXPECT_EQ(Run(Spec(3, 3, 1)).reason, "needs 3 nodes, and 1 is connected");
}

TEST_F(PlacementTest, TakesAsManyNodesAsAreFreeUpToTheMaximum) {
  for (int i = 1; i <= 5; ++i) Add("node" + std::to_string(i), 4);
  EXPECT_EQ(Names(Run(Spec(2, 4, 4))).size(), 4u);
  nodes_[0].set_slots_used(4);
  nodes_[1].set_slots_used(1);
  EXPECT_THAT(Names(Run(Spec(2, 4, 4))), ElementsAre("node3", "node4", "node5"));
}

TEST_F(PlacementTest, ChoosesTheLargestWorldThatTheMeshDivides) {
  for (int i = 1; i <= 5; ++i) Add("node" + std::to_string(i), 2);
  v1::JobSpec spec = Spec(1, 5, 2);
  *spec.add_mesh() = MakeAxis("dp", -1);
  *spec.add_mesh() = MakeAxis("spatial", 4);
  const PlacementResult result = Run(spec);
  ASSERT_TRUE(result.placement.has_value());
  EXPECT_EQ(result.placement->world_size, 8u);
  EXPECT_EQ(result.placement->mesh[0].size, 2);
}

TEST_F(PlacementTest, NamesTheMeshThatDoesNotFit) {
  Add("node1", 8, 3);
  v1::JobSpec spec = Spec(1, 1, 0);
  spec.mutable_procs_per_node()->set_gpu(true);
  *spec.add_mesh() = MakeAxis("dp", -1);
  *spec.add_mesh() = MakeAxis("tp", 2);
  EXPECT_THAT(Run(spec).reason, HasSubstr("multiple of 2 ranks, but the job has 3"));
}

TEST_F(PlacementTest, KeepsPreviousNodesAtTheirPlacesAndFillsHolesWithSpares) {
  for (const char* name : {"a", "b", "c", "d"}) Add(name, 4);
  EXPECT_THAT(Names(Run(Spec(3, 3, 4), {"id-d", "id-gone", "id-b"})), ElementsAre("d", "a", "b"));
}

TEST_F(PlacementTest, ShrinksWithoutSparesAndKeepsTheOrder) {
  Add("a", 4);
  Add("c", 4);
  EXPECT_THAT(Names(Run(Spec(1, 3, 4), {"id-c", "id-gone", "id-a"})), ElementsAre("c", "a"));
}

TEST_F(PlacementTest, GivesEachRankItsOwnGpus) {
  Add("node1", 16, 4).add_gpus_used(1);
  v1::JobSpec spec = Spec(1, 1, 1);
  spec.set_gpus_per_proc(2);
  const PlacementResult result = Run(spec);
  ASSERT_TRUE(result.placement.has_value());
  EXPECT_THAT(result.placement->nodes[0].gpus, ElementsAre(ElementsAre(0u, 2u)));
  spec.mutable_procs_per_node()->set_count(2);
  EXPECT_THAT(Run(spec).reason, HasSubstr("4 GPUs, and 3 of 4 are free"));
}

TEST_F(PlacementTest, TakesGpusUnaskedOnlyWhereThatCostsNoRank) {
  Add("node1", 8, 2);
  EXPECT_EQ(Run(Spec(1, 1, 2)).placement->nodes[0].gpus.size(), 2u);
  EXPECT_TRUE(Run(Spec(1, 1, 4)).placement->nodes[0].gpus.empty());
  v1::JobSpec none = Spec(1, 1, 2);
  none.set_gpus_per_proc(0);
  EXPECT_TRUE(Run(none).placement->nodes[0].gpus.empty());
}

TEST_F(PlacementTest, ReservesMemoryPerRank) {
  Add("node1", 8);
  v1::JobSpec spec = Spec(1, 1, 4);
  spec.set_memory_bytes(uint64_t{3} << 30);
  EXPECT_THAT(Run(spec).reason, HasSubstr("12.0 GiB of memory, and 8.0 GiB of 8.0 GiB are free"));
}

TEST_F(PlacementTest, GoesOnlyWhereTheShippedJobIs) {
  Add("node1", 8);
  Add("node2", 8).add_shipped_jobs("geoid");
  v1::JobSpec spec = Spec(1, 2, 1);
  spec.set_shipped_job("geoid");
  EXPECT_THAT(Names(Run(spec)), ElementsAre("node2"));
}

}  // namespace
}  // namespace meshrun::coordinator
