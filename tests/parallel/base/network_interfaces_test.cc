#include "parallel/base/network_interfaces.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;
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

// Devices as Linux lists them.
class LeadsNowhereTest : public ::testing::Test {
 protected:
  LeadsNowhereTest() : root_(::testing::TempDir() + "/interfaces." + std::to_string(getpid())) {
    fs::create_directories(root_ + "/net");
    std::ofstream(root_ + "/route") << "Iface Destination Gateway\nveth9\t00000000\t0101A8C0\n"
                                       "docker0\t000011AC\t00000000\n";
    const std::string none(32, '0');
    std::ofstream(root_ + "/ipv6_route")
        << none << " 00 " << none
        << " 00 fe80000000000000000000000000000f 400 1 0 00000003 podman6\n"
        << "fd000000000000000000000000000000 40 " << none << " 00 " << none
        << " 100 1 0 00000001 cni6\n";
  }
  ~LeadsNowhereTest() override { fs::remove_all(root_); }

  void add(const std::string& path) { fs::create_directories(root_ + "/net/" + path); }
  bool leads_nowhere(const std::string& name) { return meshrun::leads_nowhere(name, root_, root_); }

  const std::string root_;
};

TEST_F(LeadsNowhereTest, NamesOfContainerNetworks) {
  for (const char* name : {"docker0", "br-0123456789ab", "virbr0", "cni0", "flannel.1", "veth1"}) {
    EXPECT_TRUE(leads_nowhere(name)) << name;
  }
  for (const char* name : {"eth0", "enp3s0", "bond0", "ib0", "tun0", "br0", "wg0", "br-ex",
                           "br-eth1", "br-bond0", "br-data", "br-0123456789abc"}) {
    EXPECT_FALSE(leads_nowhere(name)) << name;
  }
}

TEST_F(LeadsNowhereTest, TheOneWithTheDefaultRouteLeadsOut) {
  EXPECT_FALSE(leads_nowhere("veth9"));
  EXPECT_FALSE(leads_nowhere("podman6")) << "of IPv6";
  EXPECT_TRUE(leads_nowhere("cni6")) << "another route";
}

TEST_F(LeadsNowhereTest, ABridgeLeadsWhereItsPortsLead) {
  add("containers/bridge");
  EXPECT_TRUE(leads_nowhere("containers")) << "without ports";
  add("port0");
  add("containers/brif/port0");
  EXPECT_TRUE(leads_nowhere("containers"));
  add("machines/bridge");
  add("machines/brif/eth0");
  add("machines/brif/port0");
  add("eth0/device");
  EXPECT_FALSE(leads_nowhere("machines")) << "a port is hardware";
  add("docker7/bridge");
  add("docker7/brif/eth0");
  EXPECT_FALSE(leads_nowhere("docker7")) << "whatever its name";
  add("bonded/bridge");
  add("bonded/brif/bond0");
  add("bond0/lower_eth1");
  EXPECT_FALSE(leads_nowhere("bonded"));
}

TEST(NetworkInterfacesTest, ThisHostHasLoopback) {
  EXPECT_THAT(network_interfaces(),
              ::testing::Contains(::testing::Field(&NetworkInterface::is_loopback, true)));
}

}  // namespace
}  // namespace meshrun
