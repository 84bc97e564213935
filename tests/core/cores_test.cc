#include "core/os/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace meshrun::os {
namespace {

namespace fs = std::filesystem;

class CoresTest : public ::testing::Test {
 protected:
  CoresTest() : root_(::testing::TempDir() + "/cores_test." + std::to_string(::getpid())) {
    fs::create_directories(root_);
  }
  ~CoresTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << '\n';
  }
  double Quota(const std::string& membership) {
    Write("/membership", membership);
    return FindCpuQuota(root_ + "/membership", root_).cores;
  }

  const std::string root_;
};

TEST_F(CoresTest, NoFileAndNoQuotaLimitNothing) {
  EXPECT_EQ(FindCpuQuota(root_ + "/none", root_).cores, 0);
  Write("/a/cpu.max", "max 100000");
  EXPECT_EQ(Quota("0::/a"), 0);
  Write("/cpu/a/cpu.cfs_quota_us", "-1");
  Write("/cpu/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Quota("1:cpu:/a"), 0);
}

TEST_F(CoresTest, TheLeastQuotaAboveAProcessHolds) {
  Write("/slice/cpu.max", "50000 100000");
  Write("/slice/step/cpu.max", "300000 100000");
  Write("/cpu.max", "800000 100000");
  EXPECT_EQ(Quota("0::/slice/step"), 0.5);
  EXPECT_EQ(Quota("0::/other"), 8)
      << "a container that sees its own cgroup alone finds it at the root";
  EXPECT_EQ(Quota("0::/"), 8);
}

TEST_F(CoresTest, VersionOneCountsLikewise) {
  Write("/cpu/docker/cpu.cfs_quota_us", "25000");
  Write("/cpu/docker/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Quota("9:name=systemd:/\n4:cpu,cpuacct:/docker\n0::/"), 0.25);
  EXPECT_EQ(Quota("4:cpuset:/docker\n0::/"), 0);
}

TEST_F(CoresTest, CgroupsOfOneNameAreTwo) {
  Write("/one/cpu.max", "1 10");
  Write("/two/cpu.max", "1 10");
  Write("/membership", "0::/");
  const auto of = [&](const char* root) {
    return FindCpuQuota(root_ + "/membership", root_ + root);
  };
  EXPECT_EQ(of("/one").cgroup, of("/one").cgroup);
  EXPECT_NE(of("/one").cgroup, of("/two").cgroup);
}

TEST_F(CoresTest, AffinityAndQuotaAreBothLimits) {
  EXPECT_EQ(UsableCores({}), CoresOfAffinity());
  EXPECT_EQ(UsableCores({.cores = 0.25}), 0.25);
  EXPECT_EQ(UsableCores({.cores = 1e6}), CoresOfAffinity());
}

TEST_F(CoresTest, APartOfACoreIsAWholeOne) {
  EXPECT_EQ(WholeCores({.cores = 0.25}), 1u);
  EXPECT_EQ(WholeCores({}), static_cast<uint32_t>(CoresOfAffinity()));
}

}  // namespace
}  // namespace meshrun::os
