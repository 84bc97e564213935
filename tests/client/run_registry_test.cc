#include "client/run_registry.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

namespace meshrun::client {
namespace {

class RunRegistryTest : public ::testing::Test {
 protected:
  RunRegistryTest() : directory_(::testing::TempDir() + "/runs" + std::to_string(::getpid())) {}
  ~RunRegistryTest() override { std::filesystem::remove_all(directory_); }

  const std::string directory_;
};

TEST_F(RunRegistryTest, ARunIsListedWholeUntilItEnds) {
  const RegisteredRun run{.job_id = "geoid-k3x9w2",
                          .pid = 17,
                          .address = "unix:/tmp/any \xe9\n bytes/c.sock",
                          .tls = {.cert = "a", .key = "b", .ca = "c"},
                          .node = "node1-host",
                          .hosts = true};
  {
    const auto registration = RunRegistration::Add(directory_, run);
    ASSERT_TRUE(registration.ok()) << registration.status();
    const auto listed = RegisteredRuns(directory_);
    ASSERT_EQ(listed.size(), 1u);
    EXPECT_EQ(listed[0].job_id, run.job_id);
    EXPECT_EQ(listed[0].pid, run.pid);
    EXPECT_EQ(listed[0].address, run.address);
    EXPECT_EQ(listed[0].tls.ca, "c");
    EXPECT_EQ(listed[0].node, run.node);
    EXPECT_TRUE(listed[0].hosts);
  }
  EXPECT_TRUE(RegisteredRuns(directory_).empty());
}

TEST_F(RunRegistryTest, WhatAKilledRunHasLeftIsRemoved) {
  const auto held = RunRegistration::Add(directory_, {.job_id = "a", .pid = 1});
  ASSERT_TRUE(held.ok());
  const std::string left = directory_ + "/b.2.run";
  std::ofstream(left) << "b";
  EXPECT_EQ(RegisteredRuns(directory_).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST_F(RunRegistryTest, WhatARunHasLeftThatWasKilledAtItsStartIsRemovedWhenItIsOld) {
  const auto held = RunRegistration::Add(directory_, {.job_id = "a", .pid = 1});
  ASSERT_TRUE(held.ok());
  const std::string left = directory_ + "/b.2.run.new";
  std::ofstream(left) << "b";
  EXPECT_EQ(RegisteredRuns(directory_).size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(left)) << "it may be under way";
  std::filesystem::last_write_time(
      left, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(1));
  EXPECT_EQ(RegisteredRuns(directory_).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST(FindRunTest, AStartThatSeveralJobsHaveIsAnErrorThatNamesThem) {
  const std::vector<RegisteredRun> runs = {{.job_id = "train-aaa", .pid = 1},
                                           {.job_id = "train-aaa", .pid = 2},
                                           {.job_id = "train-zzz", .pid = 3},
                                           {.job_id = "train-zzz-b", .pid = 4},
                                           {.job_id = "geoid-k3x9", .pid = 5}};
  std::vector<std::string> of_cluster;
  int asked = 0;
  const auto find = [&](const std::string& job) {
    return FindRun(runs, job, [&](const std::string&) {
      ++asked;
      return of_cluster;
    });
  };
  const auto pid = [&](const std::string& job) {
    const auto run = find(job);
    EXPECT_TRUE(run.ok()) << run.status();
    return !run.ok() || *run == nullptr ? 0 : (*run)->pid;
  };
  const absl::Status several = find("train").status();
  EXPECT_EQ(several.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      std::string(several.message()),
      "'train' begins the ids of 3 jobs: train-aaa, train-zzz, train-zzz-b; write more of it");
  asked = 0;
  EXPECT_EQ(pid("train-zzz"), 3) << "a whole id wins";
  EXPECT_EQ(pid("darcy"), 0);
  EXPECT_EQ(pid(""), 0);
  EXPECT_EQ(asked, 0) << "no coordinator is asked without need";
  EXPECT_EQ(pid("train-a"), 1) << "two nodes of one job";
  EXPECT_EQ(pid("geo"), 5);
  of_cluster = {"geoid-zzzz"};
  EXPECT_EQ(std::string(find("geo").status().message()),
            "'geo' begins the ids of 2 jobs: geoid-k3x9, geoid-zzzz; write more of it");
  EXPECT_EQ(pid("geoid-k3x9"), 5);
  of_cluster = {"geo"};
  EXPECT_EQ(pid("geo"), 0) << "a whole id of the cluster wins";
}

TEST_F(RunRegistryTest, ADirectoryThatOthersCanEnterIsRefused) {
  std::filesystem::create_directories(directory_);
  std::filesystem::permissions(directory_, std::filesystem::perms(0755));
  EXPECT_FALSE(RunRegistration::Add(directory_, {.job_id = "a", .pid = 1}).ok());
  EXPECT_TRUE(RegisteredRuns(directory_ + "/none").empty());
}

}  // namespace
}  // namespace meshrun::client
