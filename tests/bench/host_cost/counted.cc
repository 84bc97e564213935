#include "tests/bench/host_cost/counted.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace meshrun::bench {
namespace {

namespace fs = std::filesystem;

constexpr double kTolerance = 0.05;

void read_dump(const fs::path& path, const std::map<std::string, int>& calls,
               std::map<std::string, Counted>& counted) {
  static const std::string kTrigger = "desc: Trigger: Client Request: ";
  static const std::string kThread = "thread: ";
  static const std::string kTotals = "totals: ";
  std::ifstream file(path);
  std::string name;
  for (std::string line; std::getline(file, line);) {
    // Others only nap, as often as the machine is slow.
    if (line.starts_with(kThread) && line != kThread + "1") return;
    if (line.starts_with(kTrigger)) name = line.substr(kTrigger.size());
    if (!line.starts_with(kTotals) || calls.count(name) == 0) continue;
    counted[name].instructions = std::stod(line.substr(kTotals.size())) / calls.at(name);
  }
}

}  // namespace

std::map<std::string, Counted> count_under_callgrind(const std::string& program) {
  std::map<std::string, Counted> counted;
  const fs::path directory = fs::path(std::getenv("TEST_TMPDIR")) / "callgrind";
  fs::create_directories(directory);
  // Without the processor's wide instructions, so that all machines count alike. With all small
  // blocks in the C library's cache: else it tidies up now and then, which depends on what the
  // program freed before, and made equal sources differ by 7 percent.
  const std::string command =
      "ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 "
      "GLIBC_TUNABLES=glibc.malloc.tcache_count=2000 valgrind --tool=callgrind "
      "--instr-atstart=no --separate-threads=yes --callgrind-out-file=" +
      (directory / "out").string() + " " + program + " --count 2>" +
      (directory / "errors").string();
  std::FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr) {
    ADD_FAILURE() << command;
    return counted;
  }
  std::map<std::string, int> calls;
  char line[4096];
  while (std::fgets(line, sizeof line, output) != nullptr) {
    const auto json = nlohmann::json::parse(line);
    const std::string name = json.at("name");
    calls[name] = json.at("calls");
    counted[name] = {.libtorch = json.at("libtorch"),
                     .allocations = json.at("allocations"),
                     .peak_bytes = json.at("peak_bytes"),
                     .copied_bytes = json.at("copied_bytes")};
  }
  std::ifstream errors(directory / "errors");
  const std::string text{std::istreambuf_iterator<char>(errors), {}};
  EXPECT_EQ(pclose(output), 0) << "tools/setup installs valgrind. It says: " << text;
  for (const auto& entry : fs::directory_iterator(directory)) {
    read_dump(entry.path(), calls, counted);
  }
  return counted;
}

void expect_recorded_ratios(std::map<std::string, Counted>& counted, const std::string& reference,
                            const std::string& path) {
  std::ifstream file(path);
  const auto versions = nlohmann::json::parse(file).at("ratios");
  const double unit = counted[reference].instructions;
  ASSERT_GT(unit, 0);
  const std::string version = counted[reference].libtorch;
  if (!versions.contains(version)) {
    GTEST_SKIP() << "nothing is recorded of LibTorch " << version << " in " << path;
  }
  const auto recorded = versions.at(version);
  for (const auto& [name, ratio] : recorded.items()) {
    const double instructions = counted[name].instructions;
    EXPECT_NEAR(instructions / unit / ratio.get<double>(), 1, kTolerance)
        << name << " takes " << instructions << " instructions, " << reference << " " << unit
        << ": " << instructions / unit << " times as many; recorded are " << ratio
        << ". If that is meant, record it in " << path;
  }
}

}  // namespace meshrun::bench
