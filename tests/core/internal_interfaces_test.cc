#include "core/os/internal_interfaces.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/os/routes.h"

namespace meshrun::os {
namespace {

namespace fs = std::filesystem;

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
  bool leads_nowhere(const std::string& name) { return LeadsNowhere(name, root_, root_); }

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

TEST_F(LeadsNowhereTest, AddressesThatEveryHostHasAreGivenOnlyWhereThereAreNoOthers) {
  const std::vector<InterfaceAddress> all = {{"docker0", "172.17.0.1"},
                                             {"eth0", "10.0.0.7"},
                                             {"virbr0", "192.168.122.1"},
                                             {"eth0", "fd00::7"}};
  EXPECT_EQ(AddressesThatLeadOut(all, root_, root_),
            std::vector<std::string>({"10.0.0.7", "fd00::7"}));
  EXPECT_EQ(AddressesThatLeadOut({all[0], all[2]}, root_, root_),
            std::vector<std::string>({"172.17.0.1", "192.168.122.1"}));
}

TEST(LeadsToLoopbackTest, TheFirstLineWithTheNameCounts) {
  const std::string hosts =
      "127.0.0.1\tlocalhost\n# 10.0.0.9 gpu0\n127.0.1.1 gpu0.site gpu0 # this host\n"
      "10.0.0.7 gpu0 gpu7\n::1 six\n";
  EXPECT_TRUE(LeadsToLoopback("gpu0", hosts));
  EXPECT_TRUE(LeadsToLoopback("six", hosts));
  EXPECT_FALSE(LeadsToLoopback("gpu7", hosts));
  EXPECT_FALSE(LeadsToLoopback("gpu", hosts));
  EXPECT_FALSE(LeadsToLoopback("this", hosts));
  EXPECT_FALSE(LeadsToLoopback("gpu0", ""));
}

TEST(InterfaceOfTest, OnlyAddressesOfThisHostHaveOne) {
  for (const std::string& address : InterfaceAddresses()) EXPECT_NE(InterfaceOf(address), "");
  EXPECT_EQ(InterfaceOf("127.0.0.1"), "");
  EXPECT_EQ(InterfaceOf("gpu0"), "");
}

}  // namespace
}  // namespace meshrun::os
