// Ranks that meshrun launches: what their daemons tell them of each other. Real daemons, real
// ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "nlohmann/json.hpp"

namespace meshrun {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr char kRank[] = "tests/parallel/comm/ucx/launched_rank";

class LaunchedTest : public testing::Test {
 protected:
  LaunchedTest() : directory_(fmt::format("{}/launched.{}", testing::TempDir(), getpid())) {
    std::filesystem::create_directories(directory_);
    unsetenv("MESHRUN_COORDINATOR");
    setenv("XDG_STATE_HOME", directory_.c_str(), 1);
    // Under ThreadSanitizer UCX's memory hooks crash.
    setenv("UCX_MEM_EVENTS", "n", 1);
  }
  ~LaunchedTest() override {
    if (is_up_) meshrun("dev down");
    std::filesystem::remove_all(directory_);
  }

  // What it prints, on either stream.
  static std::string meshrun(const std::string& arguments) {
    const std::string command = fmt::format(
        "'{}' {} 2>&1", std::filesystem::absolute("client/meshrun").string(), arguments);
    FILE* const pipe = popen(command.c_str(), "r");
    std::string out;
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof(part), pipe)) > 0;) out.append(part, n);
    pclose(pipe);
    return out;
  }
  static std::string run(const std::string& mode) {
    return meshrun(
        fmt::format("run --nproc 2 -- '{}' {}", std::filesystem::absolute(kRank).string(), mode));
  }

  const std::string directory_;
  bool is_up_ = false;
};

TEST_F(LaunchedTest, TwoGroupsInOppositeOrderFailOnBothRanksAndGoOn) {
  const std::string out = run("opposite");
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(out, HasSubstr(fmt::format("{}: deadlock: ranks 0 and 1 wait for each other in "
                                           "vain: rank 0 is in barrier number 1 of group \"a\"",
                                           rank)));
    EXPECT_THAT(out, HasSubstr(fmt::format("{}: then a: ok", rank)));
    EXPECT_THAT(out, HasSubstr(fmt::format("{}: then b: ok", rank)));
  }
  EXPECT_THAT(out, HasSubstr("succeeded"));
}

TEST_F(LaunchedTest, ARankThatIsKilledIsNamedByTheOthersWithItsSignal) {
  const std::string out = run("killed");
  EXPECT_THAT(out, HasSubstr("0: at first: ok"));
  EXPECT_THAT(out,
              HasSubstr("rank 1 was lost during barrier number 1 of group \"b\": it was killed "
                        "by"));
  EXPECT_THAT(out, HasSubstr("SIGKILL"));
}

TEST_F(LaunchedTest, ARankThatExitsWithoutCallingIsNamed) {
  const std::string out = run("exits");
  EXPECT_THAT(out, HasSubstr("rank 1 left without taking its part in barrier number 1 of group "
                             "\"b\""));
}

// The rank that left says so itself. Without its word the others waited until the coordinator saw
// that they wait in vain: 8.4 s, and their error was another one.
TEST_F(LaunchedTest, ARankThatLeavesItsGroupAndLivesOnKeepsNobodyWaiting) {
  constexpr double kMostSeconds = 4;
  const std::string out = run("leaves");
  EXPECT_THAT(out,
              HasSubstr("0: peer left: rank 1 left without taking its part in barrier number 2 of "
                        "group \"a\""));
  const size_t waited = out.find("waited ");
  ASSERT_NE(waited, std::string::npos) << out;
  EXPECT_LT(std::stod(out.substr(waited + 7)), kMostSeconds) << out;
  EXPECT_THAT(out, HasSubstr("succeeded"));
}

// The end of a process that fails takes time. Those that fail for its sake do not end before it, or
// the job's first failure would be theirs.
TEST_F(LaunchedTest, ARankThatFailsSlowlyIsTheFirstFailure) {
  const std::string out = run("fails");
  EXPECT_THAT(out,
              HasSubstr("0: peer lost: rank 1 was lost during barrier number 2 of group \"a\": "
                        "it ended with exit code 3"));
  EXPECT_THAT(out, ContainsRegex("last failure   rank 1 on .* ended with exit code 3"));
}

TEST_F(LaunchedTest, FlightRecordsOfAJobThatRunsAreShown) {
  EXPECT_THAT(meshrun("dev up --workers 2 --slots 1"), Not(HasSubstr("error")));
  is_up_ = true;
  const std::string job = meshrun(fmt::format("submit --nodes 2 --procs-per-node 1 -- '{}' waits",
                                              std::filesystem::absolute(kRank).string()));
  std::string id = job.substr(0, job.find_first_of(" \n"));
  // Until rank 0 is where it stays.
  json records;
  const auto is_there = [&] {
    const std::string out = meshrun(fmt::format("describe --flight-recorder {} -o json", id));
    records = json::parse(out, nullptr, /*allow_exceptions=*/false);
    const json::json_pointer state("/0/groups/1/operations/0/state");
    return records.contains(state) && records.at(state) == "checking";
  };
  for (int i = 0; i < 100 && !is_there(); ++i) continue;
  ASSERT_TRUE(records.is_array() && records.size() == 2) << job << records;
  EXPECT_EQ(records[0]["rank"], 0);
  EXPECT_EQ(records[0]["groups"][0]["group"], "a");
  EXPECT_EQ(records[0]["groups"][0]["operations"][0]["state"], "done");
  EXPECT_EQ(records[0]["groups"][1]["operations"][0]["operation"], "barrier");
  EXPECT_EQ(records[0]["groups"][1]["operations"][0]["state"], "checking");
  EXPECT_EQ(records[1]["groups"][1]["operations"].size(), 0u);
  const std::string text = meshrun("describe --flight-recorder " + id);
  EXPECT_THAT(text, HasSubstr("rank 0\n  group \"a\": 1 operation, 0 not ended\n"));
  EXPECT_THAT(text, HasSubstr("rank 1\n"));
  EXPECT_THAT(text, HasSubstr("group \"b\": 1 operation, 1 not ended\n"));
  EXPECT_THAT(meshrun("describe --flight-recorder"), HasSubstr("--flight-recorder is of a job"));
  meshrun(fmt::format("cancel --now {}", id));
}

}  // namespace
}  // namespace meshrun
