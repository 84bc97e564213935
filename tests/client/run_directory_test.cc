#include "client/run_directory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace meshrun::client {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

class RunDirectoryTest : public ::testing::Test {
 protected:
  RunDirectoryTest() : parent_(::testing::TempDir() + "/rd" + std::to_string(::getpid())) {
    fs::create_directories(parent_);
  }
  ~RunDirectoryTest() override { fs::remove_all(parent_); }

  // As a killed run leaves it.
  std::string Abandoned(const std::string& name) {
    const std::string path = parent_ + "/" + name;
    fs::create_directories(path + "/w");
    std::ofstream(path + "/lock").flush();
    return path;
  }

  const std::string parent_;
};

TEST_F(RunDirectoryTest, GoesWithAllThatIsInIt) {
  auto directory = RunDirectory::Create(parent_);
  ASSERT_TRUE(directory.ok()) << directory.status();
  fs::create_directories(directory->path() + "/w/logs");
  directory->Remove();
  EXPECT_TRUE(fs::is_empty(parent_));
}

TEST_F(RunDirectoryTest, OnlyWhatNobodyHoldsIsRemoved) {
  const auto held = RunDirectory::Create(parent_);
  ASSERT_TRUE(held.ok()) << held.status();
  const std::string abandoned = Abandoned("meshrun-run.abc");
  const std::string foreign = Abandoned("something-else");
  RunDirectory::RemoveAbandoned(parent_, seconds(0));
  EXPECT_TRUE(fs::exists(held->path() + "/lock"));
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(foreign));
}

TEST_F(RunDirectoryTest, AYoungOneIsLeftAlone) {
  const std::string young = Abandoned("meshrun-run.abc");
  RunDirectory::RemoveAbandoned(parent_, seconds(3600));
  EXPECT_TRUE(fs::exists(young));
  fs::last_write_time(young, fs::file_time_type::clock::now() - seconds(3601));
  RunDirectory::RemoveAbandoned(parent_, seconds(3600));
  EXPECT_FALSE(fs::exists(young));
}

// Between the making of a directory and its lock another process may take it.
TEST_F(RunDirectoryTest, IsThereHoweverOthersClearUp) {
  std::atomic<bool> done = false;
  std::vector<std::thread> cleaners;
  for (int i = 0; i < 2; ++i) {
    cleaners.emplace_back([&] {
      while (!done) RunDirectory::RemoveAbandoned(parent_, seconds(0));
    });
  }
  int lost = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto directory = RunDirectory::Create(parent_);
    // So many in a row can lose the race; what is returned must be there.
    if (directory.ok() && !fs::exists(directory->path() + "/lock")) ++lost;
  }
  done = true;
  for (std::thread& cleaner : cleaners) cleaner.join();
  EXPECT_EQ(lost, 0);
}

}  // namespace
}  // namespace meshrun::client
