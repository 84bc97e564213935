#include "core/slurm.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace meshrun {
namespace {

TEST(HostlistTest, GivesTheFirstHost) {
  EXPECT_EQ(*FirstHost("login1"), "login1");
  EXPECT_EQ(*FirstHost("a,b"), "a");
  EXPECT_EQ(*FirstHost("gpu[07-12,20],login1"), "gpu07");
  EXPECT_EQ(*FirstHost("gpu[5,7]"), "gpu5");
  EXPECT_EQ(*FirstHost("rack[1-2]n[03-07]-ib,x"), "rack1n03-ib");
  EXPECT_EQ(*FirstHost("n[1-2].cluster.org"), "n1.cluster.org");
  for (const char* broken : {"", ",a", "n[", "n[]", "n[3"})
    EXPECT_FALSE(FirstHost(broken).ok()) << broken;
}

TEST(PortTest, StaysBelowTheEphemeralAndTheDaemonsRanges) {
  std::set<int> ports;
  for (int job = 0; job < 1000; ++job) {
    const int port = PortOfJob("Slurm job " + std::to_string(job));
    EXPECT_GE(port, 10000);
    EXPECT_LT(port, 20000);
    ports.insert(port);
  }
  EXPECT_GT(ports.size(), 900u);
}

}  // namespace
}  // namespace meshrun
