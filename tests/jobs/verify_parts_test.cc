// The parts of the job `verify` that need no network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "jobs/verify/host_facts.h"
#include "jobs/verify/limits.h"
#include "jobs/verify/report.h"
#include "jobs/verify/scratch_directory.h"
#include "jobs/verify/stage_clock.h"

namespace meshrun::verify {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

TEST(VerifyReportTest, TheFirstWrongRowIsNamed) {
  std::vector<std::string> lines;
  Report report("", [&](const std::string& line) { lines.push_back(line); });
  report.add({"topology", "host 0", Result::kOk, "2 cores"});
  EXPECT_EQ(report.first_wrong(), "");
  report.add({"links", "from host 0 to host 1", Result::kWrong, "1.2 MB/s"});
  report.add({"files", "saved and read back", Result::kWrong, "no space"});
  EXPECT_TRUE(report.is_wrong("links"));
  EXPECT_FALSE(report.is_wrong("topology"));
  EXPECT_EQ(report.first_wrong(), "links, from host 0 to host 1: 1.2 MB/s");
  EXPECT_EQ(report.counts(), "1 ok, 0 warnings, 2 wrong, 0 not run");
  EXPECT_THAT(lines, ElementsAre(StartsWith("ok"), StartsWith("WRONG"), StartsWith("WRONG")));
}

TEST(VerifyReportTest, ARowIsOneLine) {
  EXPECT_THAT(line_of({"files", "saved", Result::kWrong, "first\nsecond"}),
              AllOf(HasSubstr("first second"), Not(HasSubstr("\n"))));
}

TEST(VerifyReportTest, TheFileHasNoNamesOfHostsUsersAddressesOrDirectories) {
  Report report("", [](const std::string&) {});
  report.replace("gpu7", "<name>");
  report.replace("ada", "<name>");
  report.replace("/data/ada", "<name>");
  report.replace("/data/ada/work", "<dir>");
  report.add({"files", "saved", Result::kWrong,
              "gpu7 at 10.1.2.3:29500: /data/ada/work/meshrun-verify-1/model: no space; "
              "/data/ada/x; LibTorch 2.15.0; adapter"});
  const auto file = ordered_json::parse(report.file(std::chrono::seconds(2), true));
  EXPECT_EQ(file.at("rows").at(0).at("found"),
            "<name> at <address>:29500: <dir>/meshrun-verify-1/model: no space; <name>/x; LibTorch "
            "2.15.0; adapter");
  EXPECT_THAT(file.at("first_wrong").get<std::string>(), Not(HasSubstr("gpu7")));
  EXPECT_EQ(file.at("ok"), false);
  EXPECT_EQ(file.at("rows").at(0).at("result"), "wrong");
}

TEST(VerifyReportTest, ANameGoesWithItsDomain) {
  const Replacements names = {{"gpu7", "<name>"}, {"site.edu", "<name>"}, {"/data/ada", "<name>"}};
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"gpu7.cluster.lab.org:4711 is away", "<name>:4711 is away"},
           {"away is gpu7. Look at gpu7", "away is <name>. Look at <name>"},
           {"store.cluster.site.edu, site.edu", "<name>, <name>"},
           {"gpu70, mysite.edu", "gpu70, mysite.edu"},
           {"/data/ada/model.pt", "<name>/model.pt"}}) {
    EXPECT_EQ(without_names(text, names), expected);
  }
}

TEST(VerifyReportTest, AddressesOfBothProtocolsAreReplaced) {
  for (const auto& [text, expected] : std::vector<std::pair<std::string, std::string>>{
           {"10.1.2.3:29500", "<address>:29500"},
           {"[2001:db8::7]:29500 refuses", "[<address>]:29500 refuses"},
           {"from fe80::1%eth0: no route", "from <address>: no route"},
           {"to fe80:0:0:0:0:0:0:1.", "to <address>."},
           {"::ffff:10.1.2.3", "<address>"},
           {"std::runtime_error, c10::Error, at::add", "std::runtime_error, c10::Error, at::add"},
           {"at 12:30:45: rank 1: element 7", "at 12:30:45: rank 1: element 7"}}) {
    EXPECT_EQ(without_names(text, {}), expected);
  }
}

TEST(VerifyReportTest, ARunThatWasStartedAgainKeepsItsOwnRowsAndNoOthers) {
  const auto ignore = [](const std::string&) {};
  Report first("verify-1", ignore);
  first.set("topology", {{"ranks", 2}});
  first.add({"links", "from host 0 to host 1", Result::kOk, "1 GB/s", {{"bytes_per_second", 1e9}}});
  first.add({"collectives", "all_reduce", Result::kWrong, "element 1"});
  const std::string file = first.file(std::chrono::seconds(2), false);
  EXPECT_EQ(ordered_json::parse(file).at("finished"), false);

  Report second("verify-1", ignore);
  EXPECT_TRUE(second.take_up(file));
  EXPECT_EQ(second.last_stage(), "collectives");
  second.add({"meeting", "all ranks", Result::kWrong, "a rank was lost"});
  const auto both = ordered_json::parse(second.file(std::chrono::seconds(3), true));
  EXPECT_EQ(both.at("first_wrong"), "collectives, all_reduce: element 1");
  EXPECT_EQ(both.at("rows").size(), 3u);
  EXPECT_EQ(both.at("rows").at(0).at("numbers").at("bytes_per_second"), 1e9);
  EXPECT_EQ(both.at("topology").at("ranks"), 2);

  for (const char* job : {"verify-2", ""}) {
    Report other(job, ignore);
    EXPECT_FALSE(other.take_up(file)) << job;
    EXPECT_FALSE(other.take_up("{"));
    EXPECT_EQ(other.last_stage(), "");
  }
}

TEST(VerifyLimitsTest, ALinkSlowerThanAnyServerNetworkIsWrong) {
  EXPECT_EQ(judge_link(1.2e6, 1e-3, std::nullopt).result, Result::kWrong);
  EXPECT_THAT(judge_link(1.25e6, 1e-3, 1.25e9).found, HasSubstr("10 Mbit/s"));
  EXPECT_EQ(judge_link(12.4e6, 1e-3, std::nullopt).result, Result::kWrong);
  EXPECT_EQ(judge_link(12.6e6, 1e-3, std::nullopt).result, Result::kOk);
}

TEST(VerifyLimitsTest, ALinkFarBelowItsInterfaceIsAWarning) {
  EXPECT_EQ(judge_link(120e6, 1e-4, 1.25e9).result, Result::kWarning);
  EXPECT_EQ(judge_link(130e6, 1e-4, 1.25e9).result, Result::kOk);
}

TEST(VerifyLimitsTest, AClockIsWrongBeyondASecondInBothDirections) {
  EXPECT_EQ(judge_clock(3, 1e-3, 1).result, Result::kWrong);
  EXPECT_THAT(judge_clock(3, 1e-3, 1).found, HasSubstr("host 1's clock is 3 s ahead of host 0's"));
  EXPECT_EQ(judge_clock(-3, 1e-3, 1).result, Result::kWrong);
  EXPECT_THAT(judge_clock(-3, 1e-3, 1).found, HasSubstr("3 s behind host 0's"));
  EXPECT_EQ(judge_clock(0.3, 1e-3, 1).result, Result::kWarning);
  EXPECT_EQ(judge_clock(0.01, 1e-3, 1).result, Result::kOk);
}

TEST(VerifyLimitsTest, AClockIsNotBlamedForASlowAnswer) {
  EXPECT_EQ(judge_clock(1.5, 4, 1).result, Result::kOk);
}

TEST(VerifyLimitsTest, SlowFilesAreAWarning) {
  EXPECT_EQ(judge_files(30e6, 1, 1).result, Result::kOk);
  EXPECT_EQ(judge_files(30e6, 6, 1).result, Result::kWarning);
}

TEST(VerifyLimitsTest, TheSlowestOfAlikeDevicesIsNamed) {
  const Verdict verdict = judge_alike({10e9, 9e9, 4e9}, {"host 0", "host 1", "host 2"});
  EXPECT_EQ(verdict.result, Result::kWarning);
  EXPECT_THAT(verdict.found, HasSubstr("host 2 is less than half as fast"));
  EXPECT_EQ(judge_alike({10e9, 9e9}, {"host 0", "host 1"}).result, Result::kOk);
  EXPECT_EQ(judge_alike({}, {}).result, Result::kNotRun);
}

TEST(VerifyHostFactsTest, SpeedsComeFromTheKernelAndFactsPassThroughJson) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(::testing::TempDir()) / "verify_host_facts/";
  fs::create_directories(root / "proc");
  std::ofstream(root / "proc/meminfo") << "MemTotal:  2048 kB\nMemFree: 1 kB\n";
  EXPECT_EQ(find_host_facts(root.string()).memory_bytes, 2048 * 1024);

  const HostFacts facts{.cores = 8,
                        .memory_bytes = 1 << 30,
                        .interfaces = {{"eth0", 10000}, {"ib0", std::nullopt}},
                        .gpus = {{"H200", uint64_t{141} << 30}},
                        .driver = "580.1",
                        .kernel = "6.1",
                        .glibc = "2.36"};
  EXPECT_EQ(to_json(host_facts_of(to_json(facts))), to_json(facts));
  EXPECT_DOUBLE_EQ(fastest_interface(facts).value_or(0), 1.25e9);
  EXPECT_FALSE(fastest_interface({}));
}

TEST(VerifyHostFactsTest, AHostHasAShortNameAndDomains) {
  EXPECT_THAT(forms_of_host("gpu7"), ElementsAre("gpu7"));
  EXPECT_THAT(forms_of_host("gpu7.cl.site.edu"),
              ElementsAre("gpu7.cl.site.edu", "gpu7", "cl.site.edu", "site.edu"));
  EXPECT_THAT(forms_of_host("gpu7.local"), ElementsAre("gpu7.local", "gpu7"));
  for (const char* address : {"10.1.2.3", "fe80::1", ""}) {
    EXPECT_THAT(forms_of_host(address), ElementsAre());
  }
}

TEST(VerifyHostFactsTest, NamesOfTheLauncherAndOfTheDomainAreKnown) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(::testing::TempDir()) / "verify_names/";
  fs::create_directories(root / "etc");
  std::ofstream(root / "etc/resolv.conf")
      << "nameserver 10.0.0.1\nsearch cl.site.edu lab.org lan\n";
  ::setenv("MASTER_ADDR", "head.cl.site.edu", 1);
  ::setenv("SLURMD_NODENAME", "gpu-a1", 1);
  ::setenv("SLURM_STEP_NODELIST", "gpu-b[3-4]", 1);
  const std::vector<std::string> names = names_here(root.string());
  EXPECT_THAT(names, IsSupersetOf({"head.cl.site.edu", "head", "cl.site.edu", "site.edu", "lab.org",
                                   "gpu-a1", "gpu-b[3-4]", "gpu-b3"}));
  ::setenv("MASTER_ADDR", "localhost", 1);
  EXPECT_THAT(names_here(root.string()), Not(Contains(AnyOf("localhost", "lan", "edu", "head"))));
  for (const char* name : {"MASTER_ADDR", "SLURMD_NODENAME", "SLURM_STEP_NODELIST"}) {
    ::unsetenv(name);
  }
}

TEST(VerifyScratchDirectoryTest, NothingStaysHoweverTheProcessEnds) {
  namespace fs = std::filesystem;
  const std::string path = ::testing::TempDir() + "/verify_scratch";
  const auto fill = [&] {
    fs::create_directories(path + "/step-1");
    std::ofstream(path + "/step-1/model") << "weights";
  };
  {
    const ScratchDirectory scratch(path);
    fill();
    scratch.remove_within(std::chrono::minutes(1));
    EXPECT_FALSE(fs::exists(path));
    fill();
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(VerifyStageClockTest, AStageThatIsLateIsNamed) {
  std::promise<std::string> late;
  StageClock clock([&](const std::string& stage, std::chrono::seconds) { late.set_value(stage); });
  { const StageClock::Running topology(clock, "topology", std::chrono::hours(1)); }
  const StageClock::Running links(clock, "links", std::chrono::seconds(0));
  EXPECT_EQ(late.get_future().get(), "links");
}

TEST(VerifyStageClockTest, StagesShareOneLimit) {
  using std::chrono::seconds;
  EXPECT_EQ(stage_limit(seconds(30), seconds(0)), seconds(30));
  EXPECT_EQ(stage_limit(seconds(60), seconds(100)), seconds(60));
  EXPECT_EQ(stage_limit(seconds(30), seconds(150)), seconds(20));
  EXPECT_EQ(stage_limit(seconds(30), seconds(1000)), seconds(1));
}

TEST(VerifyStageClockTest, AStageThatEndsIsNot) {
  bool is_late = false;
  {
    StageClock clock([&](const std::string&, std::chrono::seconds) { is_late = true; });
    { const StageClock::Running links(clock, "links", std::chrono::hours(1)); }
    EXPECT_EQ(clock.stage(), "links");
  }
  EXPECT_FALSE(is_late);
}

TEST(VerifyStageClockTest, AStageEndsAfterWhatItsLatenessCalled) {
  std::promise<void> called, may_return;
  bool has_returned = false;
  StageClock clock([&](const std::string&, std::chrono::seconds) {
    called.set_value();
    may_return.get_future().wait();
    has_returned = true;
  });
  {
    const StageClock::Running links(clock, "links", std::chrono::seconds(0));
    called.get_future().wait();
    may_return.set_value();
  }
  EXPECT_TRUE(has_returned);
}

}  // namespace
}  // namespace meshrun::verify
