// The worker's pure parts: reports, what a rank leaves behind, tails of files, GPUs; ports and
// state.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "core/exit_codes.h"
#include "core/os/files.h"
#include "core/os/process.h"
#include "core/os/routes.h"
#include "core/progress.h"
#include "tests/worker/support/processes.h"
#include "worker/generations/port_range.h"
#include "worker/generations/state_dir.h"
#include "worker/host_address.h"
#include "worker/inventory/inventory.h"
#include "worker/logs/retention.h"
#include "worker/logs/tail.h"
#include "worker/supervisor/exit_report.h"
#include "worker/supervisor/latest_reports.h"
#include "worker/supervisor/process_tree.h"
#include "worker/supervisor/report.h"
#include "worker/supervisor/supervisor.h"

namespace meshrun::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(HostAddressTest, AListOfAddressesKeepsItsOrder) {
  EXPECT_THAT(*ParseAddresses({"10.0.0.7,192.168.1.7", "node7.example", "10.0.0.7"}),
              ElementsAre("10.0.0.7", "192.168.1.7", "node7.example"));
  EXPECT_THAT(*ParseAddresses({}), IsEmpty());
  for (const char* wrong : {"", "10.0.0.7,", ",10.0.0.7", "10.0.0.7 10.0.0.8", "caf\xe9"}) {
    EXPECT_EQ(ParseAddresses({wrong}).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  std::vector<std::string> many;
  for (size_t i = 0; i < os::kMostAddresses; ++i) many.push_back("10.0.0." + std::to_string(i));
  EXPECT_TRUE(ParseAddresses(many).ok());
  many.push_back("10.0.1.1");
  EXPECT_THAT(std::string(ParseAddresses(many).status().message()),
              HasSubstr("17 addresses: a host tells at most 16"));
}

TEST(HostAddressTest, WhatFacesTheCoordinatorIsPreferredToOtherInterfaces) {
  EXPECT_THAT(*OwnAddresses("unix:/run/c.sock"), ElementsAre("127.0.0.1"));
  for (const std::string& coordinator : os::InterfaceAddresses()) {
    const bool v6 = coordinator.find(':') != std::string::npos;
    const auto own = OwnAddresses(v6 ? "[" + coordinator + "]:7480" : coordinator + ":7480");
    ASSERT_TRUE(own.ok()) << own.status();
    EXPECT_EQ(own->front(), os::SourceTowards(coordinator));
    for (const std::string& address : os::InterfaceAddresses()) {
      EXPECT_EQ(std::count(own->begin(), own->end(), address), 1) << address;
    }
  }
}

TEST(HostAddressTest, AHostsOwnNameThatLeadsToTheLoopbackHasAnInterfaceToo) {
  const auto addresses_of = [](const std::string& host) -> std::vector<std::string> {
    if (host == "gpu0") return {"127.0.1.1"};
    if (host == "gpu0.cluster") return {"127.0.1.1", "10.0.0.7"};
    if (host == "unknown") return {};
    return {host};
  };
  const auto interface_of = [](const std::string& address) -> std::string {
    return address == "10.0.0.7" ? "eth0" : address == "192.168.1.7" ? "ib0" : "";
  };
  const auto first = [&](const std::vector<std::string>& hosts) {
    return FirstInterface(hosts, addresses_of, interface_of);
  };
  EXPECT_EQ(first({"gpu0", "127.0.0.1", "10.0.0.7", "192.168.1.7"}), "eth0");
  EXPECT_EQ(first({"gpu0.cluster", "192.168.1.7"}), "eth0");
  EXPECT_EQ(first({"192.168.1.7", "10.0.0.7"}), "ib0");
  EXPECT_EQ(first({"unknown", "gpu0"}), "");
  EXPECT_THAT(NumericAddresses("127.0.1.1"), ElementsAre("127.0.1.1"));
  EXPECT_THAT(NumericAddresses("localhost"), Not(IsEmpty()));
  // Nothing leaves this host.
  EXPECT_EQ(GlooInterface({"127.0.0.1"}, "unix:/run/c.sock"), "");
}

TEST(ReportTest, KnownNamesAreFieldsAndOtherNumbersAreMetrics) {
  v1::Progress progress;
  ASSERT_EQ(
      "",
      MergeReport(
          R"({"step": 12, "total_steps": 300.0, "loss": 0.25, "note": "warm-up", "lr": 1e-3, "on": true,
          "metrics": {"rmse": 2}})",
          &progress));
  EXPECT_EQ(progress.step(), 12);
  EXPECT_EQ(progress.total_steps(), 300);
  EXPECT_EQ(progress.loss(), 0.25);
  EXPECT_EQ(progress.note(), "warm-up");
  EXPECT_EQ(progress.metrics().size(), 2u);
  EXPECT_EQ(progress.metrics().at("lr"), 1e-3);
  EXPECT_EQ(progress.metrics().at("rmse"), 2);
}

TEST(ReportTest, TotalsOfARankAreFields) {
  v1::Progress progress;
  ASSERT_EQ("", MergeReport(R"({"samples": 640, "data_seconds": 1.5, "collective_bytes": 4096})",
                            &progress));
  EXPECT_EQ(progress.samples(), 640);
  EXPECT_EQ(progress.data_seconds(), 1.5);
  EXPECT_EQ(progress.collective_bytes(), 4096u);
  // What cannot be a total changes nothing.
  ASSERT_EQ("", MergeReport(R"({"samples": -1, "data_seconds": NaN, "collective_bytes": "many"})",
                            &progress));
  EXPECT_EQ(progress.samples(), 640);
  EXPECT_EQ(progress.data_seconds(), 1.5);
  EXPECT_EQ(progress.collective_bytes(), 4096u);
  EXPECT_TRUE(progress.metrics().empty());
}

TEST(ReportTest, WhatAReportDoesNotNameStays) {
  v1::Progress progress;
  ASSERT_EQ("", MergeReport(R"({"step": 1, "loss": 3})", &progress));
  ASSERT_EQ("", MergeReport(R"({"step": 2})", &progress));
  EXPECT_EQ(progress.step(), 2);
  EXPECT_EQ(progress.loss(), 3);
}

TEST(ReportTest, AReportIsAlsoGivenAlone) {
  v1::Progress progress, alone;
  ASSERT_EQ("", MergeReport(R"({"step": 1, "loss": 3, "lr": 1})", &progress));
  ASSERT_EQ("", MergeReport(R"({"step": 2, "accuracy": 0.5})", &progress, &alone));
  EXPECT_EQ(progress.loss(), 3);
  EXPECT_EQ(progress.metrics().size(), 2u);
  EXPECT_EQ(alone.step(), 2);
  EXPECT_FALSE(alone.has_loss());
  EXPECT_EQ(alone.metrics().size(), 1u);
}

TEST(ReportTest, SeventyOtherNamesLeaveStepAndLossTheirPlaces) {
  std::string names;
  for (int i = 0; i < 70; ++i) names += ", \"name" + std::to_string(i) + "\": 1";
  v1::Progress progress, alone;
  ASSERT_EQ("", MergeReport("{\"a\": 1" + names + "}", &progress));
  ASSERT_EQ("",
            MergeReport("{\"a\": 1" + names + R"(, "step": 7, "loss": 0.5})", &progress, &alone));
  for (const v1::Progress& one : {progress, alone}) {
    EXPECT_EQ(one.step(), 7);
    EXPECT_EQ(one.loss(), 0.5);
    EXPECT_EQ(one.metrics().size(), 64u);
  }
}

TEST(ReportTest, HowLongARankHasWaitedIsNoMetric) {
  v1::Progress progress;
  ASSERT_EQ("", MergeReport(R"({"step": 2, "waited_seconds": 1.5})", &progress));
  EXPECT_EQ(progress.waited_seconds(), 1.5);
  EXPECT_TRUE(progress.metrics().empty());
  ASSERT_EQ("", MergeReport(R"({"waited_seconds": NaN, "step_at_nanos": 7})", &progress));
  EXPECT_EQ(progress.waited_seconds(), 1.5);
  EXPECT_FALSE(progress.has_step_at_nanos()) << "the host's clock is the host's";
}

TEST(ReportTest, AStepWithoutItsTimeHasNone) {
  v1::Progress progress, update;
  progress.set_step(1);
  progress.set_step_at_nanos(5);
  update.set_step(2);
  MergeProgress(update, &progress);
  EXPECT_EQ(progress.step(), 2);
  EXPECT_FALSE(progress.has_step_at_nanos());
}

TEST(ReportTest, TakesPythonsNaNAndInfinity) {
  v1::Progress progress;
  ASSERT_EQ("",
            MergeReport(R"({"loss": NaN, "a": -Infinity, "note": "NaN \"Infinity"})", &progress));
  EXPECT_TRUE(std::isnan(progress.loss()));
  EXPECT_TRUE(std::isinf(progress.metrics().at("a")));
  EXPECT_EQ(progress.note(), "NaN \"Infinity");
}

TEST(ReportTest, WhatIsNoObjectChangesNothing) {
  v1::Progress progress;
  for (const char* const wrong : {"", "step 12", "[1]", "12", "{\"step\": 1", "\xff\xfe"}) {
    EXPECT_NE("", MergeReport(wrong, &progress)) << wrong;
  }
  EXPECT_EQ(progress.ByteSizeLong(), 0u);
}

TEST(ReportTest, AReportWithoutAUsableStepChangesNothing) {
  v1::Progress progress;
  for (const char* const wrong :
       {"-5", "99999999999999999999", "9223372036854775808", "-1e300", "NaN", "\"7\"", "[1]"}) {
    const std::string report = fmt::format(R"({{"step": {}, "loss": 0.5, "m": 1}})", wrong);
    EXPECT_THAT(MergeReport(report, &progress), HasSubstr("is not a number from 0 to")) << report;
  }
  EXPECT_EQ(progress.ByteSizeLong(), 0u);
  ASSERT_EQ("", MergeReport(R"({"step": 9223372036854775807, "total_steps": -1})", &progress));
  EXPECT_EQ(progress.step(), std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(progress.has_total_steps());
  // Python's None.
  ASSERT_EQ("", MergeReport(R"({"step": null, "loss": 0.5})", &progress));
  EXPECT_EQ(progress.loss(), 0.5);
}

class LatestReportsTest : public ::testing::Test {
 protected:
  void Say(const std::string& report) {
    v1::Progress values;
    ASSERT_EQ("", MergeReport(report, &whole_, &values));
    latest_.Add(values, whole_);
  }
  // "step: loss, metrics" of each step that is passed on.
  std::vector<std::string> Passed() {
    std::vector<std::string> out;
    for (const v1::Progress& step : latest_.TakeUnsent()) {
      std::string& text = out.emplace_back(fmt::format("{}:", step.step()));
      if (step.has_loss()) text += fmt::format(" {}", step.loss());
      std::map<std::string, double> metrics(step.metrics().begin(), step.metrics().end());
      for (const auto& [name, value] : metrics) text += fmt::format(" {}={}", name, value);
    }
    return out;
  }

  v1::Progress whole_;
  LatestReports latest_;
};

TEST_F(LatestReportsTest, AValueIsPassedOnWithItsOwnStep) {
  Say(R"({"step": 8, "loss": 0.8, "m": 1, "total_steps": 10})");
  EXPECT_THAT(Passed(), ElementsAre("8: 0.8 m=1"));
  Say(R"({"step": 9, "samples": 100})");
  const auto steps = latest_.TakeUnsent();
  ASSERT_THAT(steps, SizeIs(1));
  EXPECT_FALSE(steps[0].has_loss());
  EXPECT_TRUE(steps[0].metrics().empty());
  EXPECT_EQ(steps[0].total_steps(), 10) << "it is not of a step";
  EXPECT_EQ(steps[0].samples(), 100);
  EXPECT_FALSE(latest_.has_unsent());
}

TEST_F(LatestReportsTest, ARareNameIsNotLostBetweenTwoMessages) {
  for (int step = 1; step <= 150; ++step) {
    Say(fmt::format(R"({{"step": {}, "loss": {}{}}})", step, step,
                    step == 100 ? ", \"validation\": 5" : ""));
  }
  EXPECT_THAT(Passed(), ElementsAre("100: 100 validation=5", "150: 150"));
  Say(R"({"step": 151, "loss": 1})");
  EXPECT_THAT(Passed(), ElementsAre("151: 1"));
  latest_.OfferAgain();
  EXPECT_THAT(Passed(), ElementsAre("100: 100 validation=5", "151: 1"));
  Say(R"({"step": 200, "loss": 2, "validation": 4})");
  latest_.OfferAgain();
  EXPECT_THAT(Passed(), ElementsAre("200: 2 validation=4"));
}

TEST_F(LatestReportsTest, AReportWithoutAStepIsOfTheLastOne) {
  Say(R"({"step": 3, "loss": 1})");
  Say(R"({"m": 2})");
  EXPECT_THAT(Passed(), ElementsAre("3: 1 m=2"));
  Say(R"({"loss": 0.5})");
  EXPECT_THAT(Passed(), ElementsAre("3: 0.5 m=2"));
}

TEST(ReportTest, EarlierNewsOnlyFillsWhatIsMissing) {
  v1::Progress known, update;
  known.set_step(150);
  known.set_step_at_nanos(15);
  known.set_loss(2);
  update.set_step(100);
  update.set_step_at_nanos(10);
  update.set_loss(1);
  (*update.mutable_metrics())["validation"] = 5;
  EXPECT_TRUE(IsEarlier(update, known));
  EXPECT_FALSE(IsEarlier(known, known));
  MergeProgress(update, &known);
  EXPECT_EQ(known.step(), 150);
  EXPECT_EQ(known.step_at_nanos(), 15);
  EXPECT_EQ(known.loss(), 2);
  EXPECT_EQ(known.metrics().at("validation"), 5);
}

TEST(ReportTest, BoundsTheNumberOfMetrics) {
  v1::Progress progress;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ("", MergeReport("{\"m" + std::to_string(i) + "\": 1}", &progress));
  }
  EXPECT_EQ(progress.metrics().size(), 64u);
}

TEST(LastLinesTest, AtMostTwentyFromTheEnd) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "line " + std::to_string(i) + "\n";
  const auto lines = LastLines(text, false);
  ASSERT_EQ(lines.size(), 20u);
  EXPECT_EQ(lines.front(), "line 10");
  EXPECT_EQ(lines.back(), "line 29");
}

TEST(LastLinesTest, KeepsEmptyLinesInsideAndDropsThemAtTheEnd) {
  EXPECT_THAT(LastLines("a\n\nb\n\n\n", false), ElementsAre("a", "", "b"));
  EXPECT_THAT(LastLines("\n\n", false), IsEmpty());
}

TEST(LastLinesTest, AnIncompleteFirstLineIsLeftOut) {
  EXPECT_THAT(LastLines("ddle of a line\nwhole\n", true), ElementsAre("whole"));
  EXPECT_THAT(LastLines("one endless line", true), ElementsAre("one endless line"));
}

TEST(LastLinesTest, OfAProgressBarTheLastFormCounts) {
  EXPECT_THAT(LastLines(" 10%\r 20%\r 30%\r\nTraceback\r\n", false),
              ElementsAre(" 30%", "Traceback"));
}

TEST(ErrorFileTest, ReadsBothShapesAndNothingElse) {
  EXPECT_EQ(
      ErrorFileMessage(R"({"message": {"message": "T: x", "extraInfo": {"timestamp": "1"}}})"),
      "T: x");
  EXPECT_EQ(ErrorFileMessage(R"({"message": "x", "timestamp": 1})"), "x");
  for (const char* const wrong :
       {"", "{}", R"({"message": 3})", R"({"message": {"text": "x"}})", "[]"}) {
    EXPECT_EQ(ErrorFileMessage(wrong), "") << wrong;
  }
}

uint64_t Tail(const std::string& text, int64_t lines) {
  return TailOffset(/*begin=*/0, text.size(), lines,
                    [&](uint64_t offset, size_t size) { return text.substr(offset, size); });
}

TEST(TailTest, FindsTheFirstOfTheLastLines) {
  const std::string text = "a\nbb\nccc\n";
  EXPECT_EQ(Tail(text, 1), 5u);
  EXPECT_EQ(Tail(text, 2), 2u);
  EXPECT_EQ(Tail(text, 3), 0u);
  EXPECT_EQ(Tail(text, 9), 0u);
  EXPECT_EQ(Tail(text, 0), 9u);
  EXPECT_EQ(Tail("a\nopen end", 1), 2u);
  EXPECT_EQ(Tail("", 1), 0u);
}

TEST(TailTest, LooksBackSoFarAndNoFurther) {
  constexpr uint64_t kTerabyte = uint64_t{1} << 40;
  uint64_t read = 0;
  const uint64_t offset = TailOffset(/*begin=*/0, kTerabyte, 5, [&read](uint64_t, size_t size) {
    read += size;
    return std::string(size, '\0');
  });
  EXPECT_EQ(read, uint64_t{64} << 20);
  EXPECT_EQ(offset, kTerabyte - read);
}

TEST(TailTest, CrossesBlocks) {
  std::string text;
  for (int i = 0; i < 3; ++i) text += std::string(100'000, 'x') + "\n";
  EXPECT_EQ(Tail(text, 2), 100'001u);
}

TEST(VisibleGpusTest, FollowsCudasRules) {
  std::vector<v1::Gpu> gpus(4);
  for (int i = 0; i < 4; ++i) {
    gpus[i].set_index(i);
    gpus[i].set_uuid("GPU-" + std::string(4, static_cast<char>('a' + i)));
  }
  const auto visible = [&](const std::string& variable) {
    std::vector<int> out;
    for (const v1::Gpu& gpu : VisibleGpus(gpus, variable))
      out.push_back(static_cast<int>(gpu.index()));
    return out;
  };
  EXPECT_THAT(visible("2,0"), ElementsAre(2, 0));
  EXPECT_THAT(visible("GPU-dd"), ElementsAre(3));
  EXPECT_THAT(visible(""), IsEmpty());
  EXPECT_THAT(visible("1,-1,2"), ElementsAre(1));
}

TEST(ChooseGpusTest, OffersThoseThatAreNamedInTheirOrder) {
  std::vector<v1::Gpu> gpus(6);
  for (int i = 0; i < 6; ++i) {
    gpus[i].set_index(i);
    gpus[i].set_uuid("GPU-" + std::string(4, static_cast<char>('a' + i)));
  }
  const auto chosen = [&](const std::vector<std::string>& ids) {
    std::vector<int> out;
    for (const v1::Gpu& gpu : *ChooseGpus(gpus, ids)) out.push_back(static_cast<int>(gpu.index()));
    return out;
  };
  const auto error = [&](const std::vector<std::string>& ids) {
    return std::string(ChooseGpus(gpus, ids).status().message());
  };
  EXPECT_THAT(chosen({"5", "1", "GPU-dddd"}), ElementsAre(5, 1, 3));
  EXPECT_EQ(error({"1", "6"}),
            "--gpu-ids 1,6: there is no GPU 6 here, or CUDA_VISIBLE_DEVICES hides it: write of "
            "0,1,2,3,4,5");
  EXPECT_EQ(error({"1", "GPU-bbbb"}), "--gpu-ids 1,GPU-bbbb names GPU 1 twice");
  gpus.clear();
  EXPECT_EQ(error({"0"}), "--gpu-ids 0: this host has no GPU, or CUDA_VISIBLE_DEVICES hides them");
}

TEST(InventoryTest, OffersAtLeastEightSlotsOrWhatItIsTold) {
  const v1::Resources all = *TakeInventory({});
  EXPECT_GE(all.slots(), 8u);
  EXPECT_GE(all.slots(), all.cores());
  EXPECT_GT(all.memory_bytes(), 0u);
  const v1::Resources told = *TakeInventory({.slots = 3, .memory_bytes = 1 << 30});
  EXPECT_EQ(told.slots(), 3u);
  EXPECT_EQ(told.memory_bytes(), uint64_t{1} << 30);
}

TEST(SuperviseMainTest, ANumberThatCannotBeReadIsAUsageError) {
  for (const std::string flag : {"--listen-fd", "--lifeline-fd", "--stdin-fd", "--stdin-rank"}) {
    for (const std::string value : {"", "x", "1x", "-1", "4294967296"}) {
      std::vector<std::string> words = {"meshrun-worker", "supervise", flag, value};
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      ::testing::internal::CaptureStderr();
      EXPECT_EQ(SuperviseMain(static_cast<int>(argv.size()), argv.data()), kExitUsage);
      EXPECT_EQ(
          ::testing::internal::GetCapturedStderr(),
          "meshrun-worker supervise: " + flag + " " + value + ": not a whole number from 0 up\n");
    }
  }
}

class PortRangeTest : public ::testing::Test {
 protected:
  PortRange::Options Options(uint16_t first, uint16_t last) {
    return {.interval = {first, last},
            .locks = {.run_dir = directory_.path() + "/none/run", .tmp_dir = directory_.path()}};
  }
  // The directory for locks of this user with the number; 1 has none in its name.
  std::string LockDir(int number) {
    const std::string name = fmt::format("{}/meshrun-ports-{}", directory_.path(), ::geteuid());
    return number == 1 ? name : fmt::format("{}-{}", name, number);
  }
  static sockaddr_in Loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }
  // The first of so many ports in a row that nobody has: below those that workers give to jobs, and
  // below those that the kernel gives to connections.
  static uint16_t FreePorts(int count) {
    std::random_device random;
    std::uniform_int_distribution<int> any(10000, 19900);
    while (true) {
      const int first = any(random);
      int found = 0;
      for (; found < count; ++found) {
        const os::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const sockaddr_in address = Loopback(first + found);
        const auto* const place = reinterpret_cast<const sockaddr*>(&address);
        if (::bind(fd.get(), place, sizeof(address)) != 0) break;
      }
      if (found == count) return static_cast<uint16_t>(first);
    }
  }
  // All of so many free ports.
  PortRange::Options Few(int count) {
    const uint16_t first = FreePorts(count);
    return Options(first, static_cast<uint16_t>(first + count - 1));
  }
  testing::TemporaryDirectory directory_;
  FakeClock clock_;
};

TEST_F(PortRangeTest, TwoRangesNeverMeet) {
  PortRange one(Options(24000, 24127), clock_), other(Options(24000, 24127), clock_);
  const auto a = one.Take(), b = other.Take();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE((*a - 24000) / 64, (*b - 24000) / 64);
  PortRange third(Options(24000, 24127), clock_);
  EXPECT_EQ(third.Take().status().code(), absl::StatusCode::kResourceExhausted);
}

// What another user has made there, or has linked, is as good as taken: none of it can be used.
void Squat(const std::string& directory) { ASSERT_EQ(::symlink("/tmp", directory.c_str()), 0); }

TEST_F(PortRangeTest, ADirectoryThatAnotherUserHasMadeIsSkipped) {
  Squat(LockDir(1));
  ASSERT_EQ(::mkdir(LockDir(2).c_str(), 0777), 0);
  ASSERT_EQ(::chmod(LockDir(2).c_str(), 0777), 0);
  ::testing::internal::CaptureStderr();
  PortRange one(Options(23000, 23127), clock_);
  ASSERT_TRUE(one.Take().ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::AllOf(HasSubstr(LockDir(1)), HasSubstr("chmod 700 " + LockDir(2))));
  EXPECT_TRUE(std::filesystem::exists(LockDir(3)));
  // Its maker takes the first name away: later daemons still meet the one that runs.
  ASSERT_EQ(::unlink(LockDir(1).c_str()), 0);
  PortRange other(Options(23000, 23127), clock_), third(Options(23000, 23127), clock_);
  ASSERT_TRUE(other.Take().ok());
  EXPECT_FALSE(std::filesystem::exists(LockDir(1)));
  EXPECT_EQ(third.Take().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(PortRangeTest, WhereAllNamesAreTakenTheErrorListsThem) {
  for (int i = 1; i <= 9; ++i) Squat(LockDir(i));
  PortRange ports(Options(23200, 23263), clock_);
  const absl::Status status = ports.Take().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr(LockDir(9)));
}

TEST_F(PortRangeTest, DaemonsThatFoundDifferentDirectoriesMeet) {
  // One has the directory for run-time files; for the others it is away, or read-only.
  PortRange::Options with_run = Options(23300, 23363);
  with_run.locks.run_dir = directory_.path() + "/run";
  std::optional<PortRange> one(std::in_place, with_run, clock_);
  ASSERT_TRUE(one->Take().ok());
  EXPECT_TRUE(std::filesystem::exists(directory_.path() + "/run/ports"));
  PortRange other(Options(23300, 23363), clock_);
  EXPECT_EQ(other.Take().status().code(), absl::StatusCode::kResourceExhausted);
  // Somebody cleans the directory for temporary files.
  std::filesystem::remove_all(LockDir(1));
  PortRange third(with_run, clock_);
  EXPECT_EQ(third.Take().status().code(), absl::StatusCode::kResourceExhausted);
  one.reset();
  EXPECT_TRUE(other.Take().ok());
  EXPECT_EQ(third.Take().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(PortRangeTest, ABlockOfAnotherUserIsTakenLast) {
  PortRange one(Options(23400, 23527), clock_);
  const auto a = one.Take();
  // Other users have directories of their own.
  PortRange::Options others = Options(23400, 23527);
  others.locks.tmp_dir = directory_.path() + "/other";
  PortRange other(others, clock_), third(others, clock_);
  const auto b = other.Take();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE((*a - 23400) / 64, (*b - 23400) / 64);
  const auto c = third.Take();
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ((*a - 23400) / 64, (*c - 23400) / 64);
}

TEST_F(PortRangeTest, AGivenBackPortRests) {
  PortRange ports(Few(2), clock_);
  const auto a = ports.Take(), b = ports.Take();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(*a, *b);
  ports.GiveBack(*a);
  clock_.Advance(PortRange::kRest - std::chrono::nanoseconds(1));
  EXPECT_FALSE(ports.Take().ok());
  clock_.Advance(std::chrono::nanoseconds(1));
  EXPECT_EQ(*ports.Take(), *a);
}

TEST_F(PortRangeTest, APortInUseIsPassedOver) {
  const PortRange::Options two = Few(2);
  const os::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(two.interval.first);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(fd.get(), 1), 0);
  PortRange ports(two, clock_);
  EXPECT_EQ(*ports.Take(), two.interval.last);
}

TEST_F(PortRangeTest, ParsesAnInterval) {
  EXPECT_EQ(ParsePortInterval("20000-20063")->last, 20063);
  for (const char* const wrong :
       {"", "-", "20000", "20000-", "-20000", "5-10", "30000-20000", "20000-70000", "20000-20063x",
        "20000 - 20063", " 20000-20063", "+20000-20063", "20000--1",
        // 2^32 more than 1024 and 20063.
        "4294968320-5000", "20000-4294987359", "99999999999999999999-20063"}) {
    EXPECT_FALSE(ParsePortInterval(wrong).ok()) << wrong;
  }
  EXPECT_EQ(ParsePortInterval("1024-65535")->first, 1024);
  EXPECT_EQ(ParsePortInterval("1024-65535")->last, 65535);
}

TEST_F(PortRangeTest, APortRestsAlsoUnderTheNextHolderOfItsBlock) {
  const PortRange::Options three = Few(3);
  uint16_t given_back = 0;
  {
    PortRange ports(three, clock_);
    given_back = *ports.Take();
    ports.GiveBack(given_back);
  }
  clock_.Advance(std::chrono::seconds(59));
  PortRange next(three, clock_);
  const auto a = next.Take(), b = next.Take();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(*a, given_back);
  EXPECT_NE(*b, given_back);
  EXPECT_FALSE(next.Take().ok());
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(*next.Take(), given_back);
}

TEST_F(PortRangeTest, APortThatWasInUseWhenItsHolderDiedRests) {
  const PortRange::Options two = Few(2);
  uint16_t in_use = 0;
  {
    PortRange ports(two, clock_);
    in_use = *ports.Take();
  }
  clock_.Advance(std::chrono::hours(1));
  PortRange next(two, clock_);
  EXPECT_NE(*next.Take(), in_use);
  EXPECT_FALSE(next.Take().ok());
  clock_.Advance(PortRange::kRest);
  EXPECT_EQ(*next.Take(), in_use);
}

TEST_F(PortRangeTest, AWallClockThatWasSetBackMakesNoRestLonger) {
  const PortRange::Options one = Few(1);
  {
    PortRange ports(one, clock_);
    ports.GiveBack(*ports.Take());
  }
  clock_.StepWall(-std::chrono::hours(24));
  PortRange next(one, clock_);
  EXPECT_FALSE(next.Take().ok());
  clock_.Advance(PortRange::kRest);
  EXPECT_TRUE(next.Take().ok());
}

// How many processes have `entry` in their environment; the dead have none.
int CountByEnvironment(const std::string& entry) {
  int count = 0;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    const auto environment = os::ReadFile(process.path().string() + "/environ");
    if (environment.ok() && environment->find(entry) != std::string::npos) ++count;
  }
  return count;
}

TEST(ProcessTreeTest, WhatForksWhileItIsKilledDoesNotEscape) {
  testing::TemporaryDirectory directory;
  const std::string entry = "MESHRUN_TOKEN=" + directory.path();
  for (int round = 0; round < 3; ++round) {
    os::SpawnOptions spawn;
    spawn.argv = {
        "/bin/sh", "-c",
        "for f in 1 2 3 4; do "
        "(i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; wait) & done; wait"};
    spawn.env = {{"MESHRUN_TOKEN", directory.path()}};
    const auto pid = os::Spawn(spawn);
    ASSERT_TRUE(pid.ok()) << pid.status();
    ASSERT_TRUE(testing::Eventually([&] { return CountByEnvironment(entry) > 20; }));
    EXPECT_GT(KillByEnvironment(entry), 0);
    testing::AwaitExit(*pid);
    // One in the middle of an exec shows no environment: as Generation does, look again.
    EXPECT_TRUE(testing::Eventually([&] {
      KillByEnvironment(entry);
      return CountByEnvironment(entry) == 0;
    }));
  }
}

class LogRetentionTest : public ::testing::Test {
 protected:
  // Logs of `bytes`, written so long ago.
  std::string Write(const std::string& name, size_t bytes, std::chrono::hours ago) {
    const std::string path = directory_ / name;
    EXPECT_TRUE(os::MakeDirectories(path).ok());
    EXPECT_TRUE(os::WriteFileAtomically(path + "/0.stdout.log", std::string(bytes, 'x')).ok());
    const auto time = std::filesystem::file_time_type::clock::now() - ago;
    std::filesystem::last_write_time(path + "/0.stdout.log", time);
    std::filesystem::last_write_time(path, time);
    return path;
  }
  bool Exists(const std::string& name) const { return std::filesystem::exists(directory_ / name); }
  testing::TemporaryDirectory directory_;
};

TEST_F(LogRetentionTest, RemovesTheOldestBeyondTheBytes) {
  using std::chrono::hours;
  Write("a/1", 4096, hours(4));
  Write("a/2", 4096, hours(1));
  Write("b/1", 4096, hours(3));
  const std::string newest = Write("c/1", 4096, hours(2));
  LogsInUse in_use;
  in_use.Hold(Write("d/1", 1 << 20, hours(9)));
  const LogRetention retention = {.root = directory_.path(), .keep_bytes = 9000, .newest = newest};
  PruneLogs(retention, in_use);
  EXPECT_TRUE(Exists("a/2") && Exists("c/1") && Exists("d/1"));
  EXPECT_FALSE(Exists("a/1") || Exists("b/1"));
  EXPECT_THAT(PruneLogs(retention, in_use), IsEmpty());
  // What was removed is remembered, for a while.
  EXPECT_THAT(WhyNoLogs(directory_ / "b/1"),
              ::testing::MatchesRegex("the logs of generation 1 were removed at 20.* UTC: the logs "
                                      "of ended jobs took more than 8.8 KiB .*"));
  const auto long_ago = std::filesystem::file_time_type::clock::now() - kRememberRemoved - hours(1);
  for (const char* name : {"a/1.removed", "b/1.removed"}) {
    std::filesystem::last_write_time(directory_ / name, long_ago);
  }
  PruneLogs(retention, in_use);
  EXPECT_TRUE(Exists("a/2"));
  EXPECT_FALSE(Exists("a/1.removed") || Exists("b"));
  EXPECT_THAT(WhyNoLogs(directory_ / "b/1"), HasSubstr("there are no logs of generation 1"));
}

TEST_F(LogRetentionTest, RemovesWhatIsTooOldOrTooMany) {
  using std::chrono::hours;
  for (int i = 1; i <= 4; ++i) Write("a/" + std::to_string(i), 10, hours(10 - i));
  PruneLogs({.root = directory_.path(), .keep_for = hours(8) + std::chrono::minutes(30)},
            LogsInUse());
  EXPECT_FALSE(Exists("a/1"));
  EXPECT_TRUE(Exists("a/2"));
  EXPECT_THAT(WhyNoLogs(directory_ / "a/1"), HasSubstr("kept for 8h30m (--keep-logs-for)"));
  PruneLogs({.root = directory_.path(), .keep_generations = 1}, LogsInUse());
  EXPECT_TRUE(Exists("a/4"));
  EXPECT_FALSE(Exists("a/2") || Exists("a/3"));
  EXPECT_THAT(WhyNoLogs(directory_ / "a/3"), HasSubstr("1 generations are kept"));
}

TEST_F(LogRetentionTest, AFileWithHolesCountsForItsBlocks) {
  using std::chrono::hours;
  Write("a/1", 10, hours(2));
  std::filesystem::resize_file(directory_ / "a/1/0.stdout.log", uint64_t{1} << 40);
  Write("a/2", 10, hours(1));
  PruneLogs({.root = directory_.path(), .keep_bytes = 1 << 20}, LogsInUse());
  EXPECT_TRUE(Exists("a/1") && Exists("a/2"));
}

TEST_F(LogRetentionTest, PicturesCountAndGoWithTheirLogs) {
  using std::chrono::hours;
  const std::string shown = Write("a/1", 10, hours(2));
  const std::string pictures = shown + "/0.pictures";
  std::filesystem::create_directory(pictures);
  ASSERT_TRUE(os::WriteFileAtomically(pictures + "/map.png", std::string(1 << 20, 'x')).ok());
  const auto then = std::filesystem::file_time_type::clock::now() - hours(2);
  for (const std::string& path : {pictures + "/map.png", pictures, shown}) {
    std::filesystem::last_write_time(path, then);
  }
  Write("a/2", 10, hours(1));
  PruneLogs({.root = directory_.path(), .keep_bytes = 500 << 10}, LogsInUse());
  EXPECT_FALSE(Exists("a/1"));
  EXPECT_TRUE(Exists("a/2"));
}

TEST_F(LogRetentionTest, TheNewestStaysHoweverLarge) {
  using std::chrono::hours;
  const std::string newest = Write("a/1", 1 << 20, hours(2));
  Write("a/2", 10, hours(1));
  PruneLogs({.root = directory_.path(), .keep_bytes = 100, .newest = newest}, LogsInUse());
  EXPECT_TRUE(Exists("a/1"));
  EXPECT_FALSE(Exists("a/2"));
}

TEST_F(LogRetentionTest, TheUserWithTheMostBytesGives) {
  using std::chrono::hours;
  const auto of = [this](const std::string& user, const std::string& name, size_t bytes,
                         std::chrono::hours ago) {
    const std::string path = Write(name, bytes, ago);
    ASSERT_TRUE(WriteLogsOwner(path, user).ok());
  };
  // The oldest of all are ada's.
  of("ada", "x/1", 100 << 10, hours(90));
  of("ada", "y/1", 100 << 10, hours(80));
  of("bob", "small/1", 4 << 10, hours(70));
  for (int i = 1; i <= 5; ++i) of("bob", "large/" + std::to_string(i), 200 << 10, hours(10 - i));
  const auto removed = PruneLogs({.root = directory_.path(), .keep_bytes = 500 << 10}, LogsInUse());
  EXPECT_TRUE(Exists("x/1") && Exists("y/1")) << "ada has less";
  EXPECT_TRUE(Exists("small/1")) << "bob's other job gives first";
  EXPECT_FALSE(Exists("large/1") || Exists("large/2") || Exists("large/3") || Exists("large/4"));
  EXPECT_TRUE(Exists("large/5"));
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].user, "bob");
  EXPECT_EQ(removed[0].job_id, "large");
  EXPECT_EQ(removed[0].generations, 4u);
  EXPECT_EQ(removed[0].bytes, 800u << 10);
  EXPECT_THAT(WhyNoLogs(directory_ / "large/1"), HasSubstr("and those of bob the most"));
}

TEST_F(LogRetentionTest, AUserWithLessGivesNothingForTheNewestOfAnother) {
  using std::chrono::hours;
  ASSERT_TRUE(WriteLogsOwner(Write("x/1", 100 << 10, hours(90)), "ada").ok());
  const std::string newest = Write("y/1", 900 << 10, hours(1));
  ASSERT_TRUE(WriteLogsOwner(newest, "bob").ok());
  const LogRetention retention = {
      .root = directory_.path(), .keep_bytes = 500 << 10, .newest = newest};
  EXPECT_THAT(PruneLogs(retention, LogsInUse()), IsEmpty());
  EXPECT_TRUE(Exists("x/1") && Exists("y/1"));
}

TEST_F(LogRetentionTest, OfTooManyTheUserWithTheMostGives) {
  using std::chrono::hours;
  ASSERT_TRUE(WriteLogsOwner(Write("x/1", 10, hours(90)), "ada").ok());
  for (int i = 1; i <= 4; ++i) {
    ASSERT_TRUE(WriteLogsOwner(Write("y/" + std::to_string(i), 10, hours(10 - i)), "bob").ok());
  }
  PruneLogs({.root = directory_.path(), .keep_generations = 2}, LogsInUse());
  EXPECT_TRUE(Exists("x/1") && Exists("y/4"));
  EXPECT_FALSE(Exists("y/1") || Exists("y/2") || Exists("y/3"));
}

TEST(LimitOfStreamTest, AllRanksThatFitStayWithinTheHostsLimit) {
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_EQ(LimitOfStream(kMiB, 0, 8), kMiB);
  EXPECT_EQ(LimitOfStream(0, 0, 8), 0u);
  EXPECT_EQ(LimitOfStream(kMiB, 1600 * kMiB, 8), kMiB);
  EXPECT_EQ(LimitOfStream(1000 * kMiB, 1600 * kMiB, 8), 100 * kMiB);
  EXPECT_EQ(LimitOfStream(0, 1600 * kMiB, 8), 100 * kMiB);
  EXPECT_EQ(LimitOfStream(kMiB, kMiB, 1 << 20), 64u << 10);
}

TEST(StateDirTest, KeepsItsIdentityAndCountsItsStarts) {
  testing::TemporaryDirectory directory;
  SeededIdSource ids(1);
  std::string node_id;
  for (uint64_t start = 1; start <= 3; ++start) {
    const auto state = StateDir::Open(directory / "w", ids);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->incarnation(), start);
    EXPECT_TRUE(start == 1 || state->node_id() == node_id);
    node_id = state->node_id();
  }
}

TEST(StateDirTest, OneDaemonAtATime) {
  testing::TemporaryDirectory directory;
  SeededIdSource ids(1);
  const auto first = StateDir::Open(directory.path(), ids);
  ASSERT_TRUE(first.ok());
  const auto second = StateDir::Open(directory.path(), ids);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another worker"));
}

TEST(StateDirTest, SocketsFitHoweverLongThePath) {
  testing::TemporaryDirectory directory;
  SeededIdSource ids(1);
  const auto state = StateDir::Open(directory / std::string(150, 'x'), ids);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_TRUE(os::CheckSocketPath(state->AgentSocket()).ok());
  EXPECT_TRUE(os::CheckSocketPath(state->GenerationDirectory("a-long-job-name-k3x9w2", 1234567) +
                                  "/r123456.sock")
                  .ok());
  EXPECT_TRUE(
      os::CheckSocketPath(state->JobDirectory("a-long-job-name-k3x9w2") + "/agent.sock").ok());
  EXPECT_THAT(state->LogDirectory("job", 1), HasSubstr(std::string(150, 'x')));
  (void)os::RemoveTree(state->AgentSocket().substr(0, state->AgentSocket().rfind('/')));
}

TEST(StateDirTest, OneThatOthersCanEnterIsRefused) {
  testing::TemporaryDirectory directory;
  SeededIdSource ids(1);
  ASSERT_EQ(::chmod(directory.path().c_str(), 0750), 0);
  EXPECT_EQ(StateDir::Open(directory.path(), ids).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(StateDirTest, ADamagedIdentityIsNotReplacedSilently) {
  testing::TemporaryDirectory directory;
  SeededIdSource ids(1);
  ASSERT_TRUE(os::WriteFileAtomically(directory / "node.json", "{").ok());
  EXPECT_EQ(StateDir::Open(directory.path(), ids).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace meshrun::worker
