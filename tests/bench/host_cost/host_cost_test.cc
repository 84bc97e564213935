// What a v-collective costs its own rank must not grow unnoticed: instructions as a multiple of
// at::add's, allocations and copied bytes. Counted by callgrind, so the machine's load is no
// matter.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace meshrun::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kProgram = "tests/bench/host_cost/host_cost";
constexpr const char* kRecorded = "tests/bench/host_cost/recorded.json";
constexpr double kTolerance = 0.05;
// Pieces of the program: 4 x 16 float32, world of 8.
constexpr int64_t kPiece = 4 * 16 * 4;
constexpr int64_t kWhole = 8 * kPiece;

struct Counted {
  double instructions = 0;  // of one call
  int64_t allocations = 0;
  int64_t peak_bytes = 0;
  int64_t copied_bytes = 0;
};

// By name, as the program under callgrind says it and as the dumps have it.
class HostCostTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const fs::path directory = fs::path(std::getenv("TEST_TMPDIR")) / "callgrind";
    fs::create_directories(directory);
    // Without the processor's wide instructions, so that all machines count alike.
    const std::string command =
        "ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 valgrind --tool=callgrind "
        "--instr-atstart=no --callgrind-out-file=" +
        (directory / "out").string() + " " + kProgram + " --count 2>" +
        (directory / "errors").string();
    std::FILE* const output = popen(command.c_str(), "r");
    ASSERT_NE(output, nullptr);
    std::map<std::string, int> calls;
    char line[4096];
    while (std::fgets(line, sizeof line, output) != nullptr) {
      const auto json = nlohmann::json::parse(line);
      const std::string name = json.at("name");
      calls[name] = json.at("calls");
      counted()[name] = {.allocations = json.at("allocations"),
                         .peak_bytes = json.at("peak_bytes"),
                         .copied_bytes = json.at("copied_bytes")};
    }
    std::ifstream errors(directory / "errors");
    const std::string text{std::istreambuf_iterator<char>(errors), {}};
    ASSERT_EQ(pclose(output), 0) << "tools/setup installs valgrind. It says: " << text;
    for (const auto& entry : fs::directory_iterator(directory)) read_dump(entry.path(), calls);
  }

  static void read_dump(const fs::path& path, const std::map<std::string, int>& calls) {
    static const std::string kTrigger = "desc: Trigger: Client Request: ";
    static const std::string kTotals = "totals: ";
    std::ifstream file(path);
    std::string name;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(kTrigger)) name = line.substr(kTrigger.size());
      if (!line.starts_with(kTotals) || calls.count(name) == 0) continue;
      counted()[name].instructions = std::stod(line.substr(kTotals.size())) / calls.at(name);
    }
  }

  static std::map<std::string, Counted>& counted() {
    static std::map<std::string, Counted> all;
    return all;
  }
};

TEST_F(HostCostTest, InstructionsAreWithinFivePercentOfTheRecordedMultipleOfAnAddition) {
  std::ifstream file(kRecorded);
  const auto recorded = nlohmann::json::parse(file).at("ratios");
  const double add = counted()["at::add"].instructions;
  ASSERT_GT(add, 0);
  for (const auto& [name, ratio] : recorded.items()) {
    const double instructions = counted()[name].instructions;
    EXPECT_NEAR(instructions / add / ratio.get<double>(), 1, kTolerance)
        << name << " takes " << instructions << " instructions, at::add " << add << ": "
        << instructions / add << " times as many; recorded are " << ratio
        << ". If that is meant, record it in " << kRecorded;
  }
}

TEST_F(HostCostTest, AllGatherVAllocatesItsResultAndNothingElse) {
  const Counted& forward = counted()["all_gather_v"];
  EXPECT_EQ(forward.allocations, 1);
  EXPECT_EQ(forward.peak_bytes, kWhole);
  const Counted& both = counted()["all_gather_v and backward"];
  EXPECT_EQ(both.allocations, 2);
  EXPECT_EQ(both.peak_bytes, kWhole + kPiece);
}

TEST_F(HostCostTest, AllGatherVCopiesItsOwnPieceAndNothingElse) {
  EXPECT_EQ(counted()["all_gather_v"].copied_bytes, kPiece);
  EXPECT_EQ(counted()["all_gather_v and backward"].copied_bytes, 2 * kPiece);
}

TEST_F(HostCostTest, ScatterVAndGatherVAllocateOneTensorEach) {
  EXPECT_EQ(counted()["gather_v"].allocations, 1);
  EXPECT_EQ(counted()["scatter_v"].allocations, 1);
  EXPECT_EQ(counted()["reduce_scatter_v"].allocations, 1);
}

}  // namespace
}  // namespace meshrun::bench
