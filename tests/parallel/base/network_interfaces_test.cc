#include "parallel/base/network_interfaces.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshrun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<NetworkInterface> kHost = {{.name = "mlx5_0:1"},
                                             {.name = "eth0"},
                                             {.name = "eth1"},
                                             {.name = "docker0", .is_internal = true},
                                             {.name = "lo", .is_loopback = true}};

TEST(ChooseInterfacesTest, AllThatLeadOutOfTheHost) {
  const auto chosen = choose_interfaces(kHost, "");
  ASSERT_TRUE(chosen.ok());
  EXPECT_THAT(chosen->names, ElementsAre("mlx5_0:1", "eth0", "eth1"));
  EXPECT_THAT(chosen->left_out, ElementsAre("docker0"));
}

TEST(ChooseInterfacesTest, InternalOnesWhereThereAreNoOthers) {
  const auto chosen = choose_interfaces({kHost[3], kHost[4]}, "");
  ASSERT_TRUE(chosen.ok());
  EXPECT_THAT(chosen->names, ElementsAre("docker0"));
  EXPECT_THAT(chosen->left_out, IsEmpty());
  const auto none = choose_interfaces({kHost[4]}, "");
  ASSERT_TRUE(none.ok()) << "one host needs no network";
  EXPECT_THAT(none->names, IsEmpty());
}

TEST(ChooseInterfacesTest, WhatIsNamedIsTaken) {
  const auto names = [](std::string_view wanted) {
    return choose_interfaces(kHost, wanted).value().names;
  };
  EXPECT_THAT(names("eth1"), ElementsAre("eth1"));
  EXPECT_THAT(names("docker0,lo"), ElementsAre("docker0", "lo"));
  EXPECT_THAT(names("eth*,"), ElementsAre("eth0", "eth1"));
  EXPECT_THAT(names("eth1,mlx*,eth*"), ElementsAre("eth1", "mlx5_0:1", "eth0")) << "in that order";
  EXPECT_THAT(names("mlx5_0"), ElementsAre("mlx5_0:1"));
  EXPECT_THAT(names("^mlx5_0,docker*,ib0"), ElementsAre("eth0", "eth1"));
  EXPECT_TRUE(choose_interfaces(kHost, "eth*")->are_named);
  EXPECT_FALSE(choose_interfaces(kHost, "^docker0")->are_named);
}

TEST(ChooseInterfacesTest, AWrongNameIsOneSentenceWithTheRightOnes) {
  const auto message = [](std::string_view wanted) {
    return std::string(choose_interfaces(kHost, wanted).status().message());
  };
  EXPECT_EQ(message("eth7"),
            "MESHRUN_NET_DEVICES=eth7: no interface \"eth7\" runs; this host has mlx5_0:1, eth0, "
            "eth1, docker0, lo");
  EXPECT_THAT(message("^*"), HasSubstr("no interface is left"));
  EXPECT_THAT(message(","), HasSubstr("no interface is left"));
}

TEST(NetworkInterfacesTest, ThisHostHasLoopback) {
  EXPECT_THAT(network_interfaces(),
              ::testing::Contains(::testing::Field(&NetworkInterface::is_loopback, true)));
}

}  // namespace
}  // namespace meshrun
