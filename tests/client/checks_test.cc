#include "client/render/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

namespace meshrun::client {
namespace {

const Checks kChecks = {
    {Level::kOk, "meshrun", "1.0 at /usr/local/bin/meshrun", ""},
    {Level::kWarn, "/dev/shm", "64.0 MiB of 64.0 MiB free, room for 1 rank",
     "ranks of one host exchange messages there, and each takes 34 MiB: mount it larger"},
    {Level::kFail, "coordinator unix:/run/user/1000/meshrun/coordinator.sock", "does not answer",
     "start it"},
};

v1::Node LimitedNode(const std::string& name, const std::vector<std::string>& limits) {
  v1::Node node;
  node.set_name(name);
  for (const std::string& limit : limits) node.mutable_resources()->add_limits(limit);
  return node;
}

TEST(LimitChecksTest, ALimitIsNamedWithTheNodesThatDoNotKeepIt) {
  const Checks checks =
      LimitChecks({LimitedNode("n10", {"memory"}), LimitedNode("n9", {"memory", "pids"}),
                   LimitedNode("n1", {"devices", "pids", "cpu", "memory"})});
  EXPECT_EQ(CheckList(checks, Style()),
            "warn  cpu limits   none on 2 nodes, one is n9\n"
            "                   -> a job there may use more than it asked for: docs/operations.md, "
            "Limits\n"
            "warn  pids limits  none on n10\n"
            "                   -> a job there may use more than it asked for: docs/operations.md, "
            "Limits\n");
}

TEST(LimitChecksTest, WhereEachNodeKeepsThemThereIsNothingToSay) {
  EXPECT_TRUE(LimitChecks({LimitedNode("n1", {"memory", "cpu", "pids"})}).empty());
  EXPECT_TRUE(LimitChecks({LimitedNode("n1", {"memory", "cpu-quota", "pids"})}).empty());
  EXPECT_TRUE(LimitChecks({}).empty());
  EXPECT_EQ(LimitChecks({LimitedNode("n1", {})}).size(), 3u);
}

TEST(LimitChecksTest, DevicesAreOfNodesWithGpus) {
  v1::Node node = LimitedNode("n1", {"memory", "cpu", "pids"});
  node.mutable_resources()->add_gpus();
  EXPECT_EQ(LimitChecks({node}).size(), 1u);
  node.mutable_resources()->add_limits("devices");
  EXPECT_TRUE(LimitChecks({node}).empty());
}

TEST(CheckListTest, OffATerminalEachCheckIsOneRow) {
  EXPECT_THAT(
      CheckList({kChecks[0], kChecks[1]}, Style()),
      "ok    meshrun   1.0 at /usr/local/bin/meshrun\n"
      "warn  /dev/shm  64.0 MiB of 64.0 MiB free, room for 1 rank\n"
      "                -> ranks of one host exchange messages there, and each takes 34 MiB: "
      "mount it larger\n");
}

TEST(CheckListTest, NoRowIsLongerThanTheTerminalIsWide) {
  for (int width = 30; width <= 200; ++width) {
    Style style;
    style.terminal = true;
    style.width = width;
    std::istringstream rows(CheckList(kChecks, style));
    for (std::string row; std::getline(rows, row);) {
      EXPECT_LE(DisplayWidth(row), static_cast<size_t>(width)) << row;
    }
  }
}

TEST(CheckListTest, TextsAreWrappedBelowThemselves) {
  Style style;
  style.terminal = true;
  style.width = 60;
  EXPECT_EQ(CheckList(kChecks, style),
            "ok    meshrun   1.0 at /usr/local/bin/meshrun\n"
            "warn  /dev/shm  64.0 MiB of 64.0 MiB free, room for 1 rank\n"
            "                -> ranks of one host exchange messages\n"
            "                   there, and each takes 34 MiB: mount it\n"
            "                   larger\n"
            "fail  coordinator\n"
            "      unix:/run/user/1000/meshrun/coordinator.sock\n"
            "                does not answer\n"
            "                -> start it\n");
}

}  // namespace
}  // namespace meshrun::client
