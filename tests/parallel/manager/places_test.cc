#include "parallel/manager/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "parallel/base/network.h"
#include "parallel/base/process.h"

namespace meshrun {
namespace {

using ::testing::ElementsAre;

TEST(NodeIdentityTest, AnyDifferenceMakesTwoNodes) {
  const NodeFacts facts{"node", "boot", 7, "ipc:[1]"};
  std::set<std::string> identities = {node_identity(facts)};
  for (const NodeFacts& other :
       {NodeFacts{"other", "boot", 7, "ipc:[1]"}, NodeFacts{"node", "other", 7, "ipc:[1]"},
        NodeFacts{"node", "boot", 8, "ipc:[1]"}, NodeFacts{"node", "boot", 7, "ipc:[2]"}}) {
    EXPECT_TRUE(identities.insert(node_identity(other)).second);
  }
  EXPECT_EQ(node_identity(facts), node_identity({"node", "boot", 7, "ipc:[1]"}));
  EXPECT_EQ(node_identity(node_facts()), node_identity(node_facts()));
  EXPECT_FALSE(node_facts().host_name.empty());
  EXPECT_FALSE(node_facts().boot_id.empty());
  EXPECT_NE(node_facts().shm_device, 0u);
  EXPECT_FALSE(node_facts().ipc_namespace.empty());
}

TEST(WorkerNameTest, IsThatOfTheWorkerElseOfTheHost) {
  ::setenv("MESHRUN_NODE_NAME", "worker-a", 1);
  EXPECT_EQ(worker_name(), "worker-a");
  ::setenv("MESHRUN_NODE_NAME", "", 1);
  EXPECT_EQ(worker_name(), host_name());
  ::unsetenv("MESHRUN_NODE_NAME");
  EXPECT_EQ(worker_name(), host_name());
}

TEST(PlacesTest, APlaceSurvivesItsText) {
  for (const RankPlace& place : {RankPlace{"abc", 3, "10.0.0.1"}, RankPlace{"abc", -1, ""}}) {
    EXPECT_EQ(parse_place(serialize(place)), place);
  }
  for (const char* text : {"", "abc", "abc 1", "abc one -", "abc 1 - more"}) {
    EXPECT_EQ(parse_place(text), std::nullopt) << text;
  }
}

TEST(PlacesTest, WhoeverSaysSomethingElseIsNamed) {
  const RankPlace place = {"abc", 3, "10.0.0.1"};
  EXPECT_EQ(*parse_places({serialize(place), serialize(place)}), std::vector(2, place));
  const absl::Status status = parse_places({serialize(place), "abc one -"}).status();
  EXPECT_EQ(status.message().find("rank 1 said \"abc one -\" of where it is"), 0) << status;
}

TEST(PlacesTest, RanksOfOneIdentityAreOneNode) {
  const std::vector<RankPlace> places = {{"a"}, {"b"}, {"a"}, {"b"}, {"b"}};
  const NodeLayout layout = lay_out_nodes(places, 3);
  EXPECT_THAT(layout.nodes, ElementsAre(0, 1, 0, 1, 1));
  EXPECT_EQ(layout.count, 2);
  EXPECT_EQ(layout.local_rank, 1);
  EXPECT_EQ(layout.local_world_size, 3);
}

TEST(PlacesTest, TheLaunchersNumbersStay) {
  EXPECT_THAT(lay_out_nodes({{"a", 5}, {"a", 5}, {"b", 2}}, 0).nodes, ElementsAre(5, 5, 2));
  // One host that the launcher divides.
  EXPECT_THAT(lay_out_nodes({{"a", 0}, {"a", 1}}, 0).nodes, ElementsAre(0, 1));
}

// Two hosts with one name that a launcher takes for one, or two containers of a host.
TEST(PlacesTest, RanksThatDoNotShareMemoryAreNotOneNode) {
  const NodeLayout layout = lay_out_nodes({{"a", 0}, {"b", 0}, {"b", 0}, {"c", 1}}, 2);
  EXPECT_THAT(layout.nodes, ElementsAre(0, 1, 1, 2));
  EXPECT_EQ(layout.count, 3);
  EXPECT_EQ(layout.local_rank, 1);
  EXPECT_EQ(layout.local_world_size, 2);
}

TEST(PlacesTest, OnlyWhoDoesNotKnowItsAddressAsksTheWayToAnother) {
  const std::vector<RankPlace> places = {
      {"a"}, {"a"}, {"b", -1, "10.0.0.2"}, {"c", -1, "10.0.0.3"}};
  EXPECT_EQ(address_to_ask_the_way_to(places, 0), "10.0.0.2");
  EXPECT_EQ(address_to_ask_the_way_to(places, 1), "10.0.0.2");
  EXPECT_EQ(address_to_ask_the_way_to(places, 3), std::nullopt);
  EXPECT_EQ(address_to_ask_the_way_to({{"a"}, {"a"}}, 1), std::nullopt);
}

TEST(PlacesTest, RankZeroIsFoundWhereItsStoreWas) {
  const std::vector<std::string> interfaces = {"172.17.0.1", "10.0.0.1", "fd00::1"};
  EXPECT_THAT(addresses_of_rank_zero("node-a", false, "10.0.0.1", interfaces),
              ElementsAre("node-a", "10.0.0.1", "172.17.0.1", "fd00::1"));
  // The launcher's store may be on another host.
  EXPECT_THAT(addresses_of_rank_zero("node-a", true, "10.0.0.1", interfaces),
              ElementsAre("10.0.0.1", "node-a", "172.17.0.1", "fd00::1"));
  // A host that knows itself only by its loopback, with its name at 127.0.1.1.
  EXPECT_THAT(addresses_of_rank_zero("node-a", false, "127.0.0.1", {}), ElementsAre("node-a"));
  for (const char* loopback : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    EXPECT_THAT(addresses_of_rank_zero(loopback, false, "10.0.0.1", interfaces),
                ElementsAre("127.0.0.1"));
  }
}

TEST(NetworkTest, AnInterfacesAddressIsNeverALoopback) {
  for (const std::string& address : interface_addresses()) {
    EXPECT_FALSE(is_loopback(address)) << address;
    EXPECT_FALSE(address.starts_with("fe80")) << address;
  }
}

TEST(NetworkTest, TheWayToALoopbackIsALoopback) {
  EXPECT_TRUE(is_loopback(*local_address_towards("127.0.1.1")));
}

}  // namespace
}  // namespace meshrun
