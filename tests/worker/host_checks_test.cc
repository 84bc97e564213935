// Checks of the host: what each finds, when a check that hangs becomes a problem, and what the
// coordinator hears.
#include "worker/health/host_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <future>
#include <thread>

#include "core/os/files.h"
#include "tests/worker/support/daemon_fixture.h"

namespace meshrun::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using ::testing::AllOf;
using testing::AwaitGone;
using testing::AwaitPid;
using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CheckDirectoryTest, SaysWhatIsMissing) {
  const testing::TemporaryDirectory directory;
  EXPECT_THAT(CheckDirectory(directory.path(), 1), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "nothing is left behind";
  EXPECT_THAT(CheckDirectory(directory.path(), uint64_t{1} << 60),
              ElementsAre("less than 1048576.0 TiB free in " + directory.path()));
  EXPECT_THAT(CheckDirectory(directory / "none", 1),
              ElementsAre(AllOf(HasSubstr("a file cannot be written in " + directory / "none"),
                                HasSubstr("No such file"))));
}

TEST(CheckGpusTest, NamesEachThatIsGone) {
  std::vector<v1::Gpu> offered(2);
  for (int i = 0; i < 2; ++i) {
    offered[i].set_index(i);
    offered[i].set_model("H100");
    offered[i].set_uuid("GPU-" + std::to_string(i));
  }
  EXPECT_THAT(CheckGpus(offered, offered), IsEmpty());
  // What comes later in PCI order has another index now.
  v1::Gpu moved = offered[1];
  moved.set_index(0);
  EXPECT_THAT(CheckGpus(offered, {moved}), ElementsAre("GPU 0 (H100, GPU-0) does not answer"));
  EXPECT_THAT(CheckGpus(offered, {}), ElementsAre("the NVIDIA driver answers for no GPU"));
  EXPECT_THAT(CheckGpus({}, {}), IsEmpty());
}

class HealthProgramTest : public ::testing::Test {
 protected:
  std::string Program(const std::string& text) {
    const std::string path = directory_ / "check";
    EXPECT_TRUE(os::WriteFileAtomically(path, "#!/bin/sh\n" + text, 0755).ok());
    return path;
  }
  std::vector<Problem> Run(const std::string& text, std::chrono::nanoseconds timeout = minutes(1)) {
    return RunHealthCheck(Program(text), "node7", timeout);
  }
  testing::TemporaryDirectory directory_;
};

TEST_F(HealthProgramTest, ItsExitCodeDecidesAndItsLastLineIsTheReason) {
  EXPECT_THAT(Run("echo whatever; exit 0"), IsEmpty());
  EXPECT_THAT(Run("echo first; echo \"$MESHRUN_NODE_NAME: fan 3 stands still\" >&2; exit 3"),
              ElementsAre("the health check " + directory_ / "check" +
                          " exited with 3: node7: fan 3 stands still"));
  EXPECT_THAT(Run("kill -SEGV $$"), ElementsAre(HasSubstr("was ended by SIGSEGV")));
  EXPECT_THAT(Run("printf 'a\\033[31mb'; exit 1"), ElementsAre(HasSubstr("a\\x1b[31mb")));
  ASSERT_EQ(::chmod(Program("exit 0").c_str(), 0644), 0);
  EXPECT_THAT(RunHealthCheck(directory_ / "check", "n", minutes(1)),
              ElementsAre(HasSubstr("cannot be started")));
}

TEST_F(HealthProgramTest, WhoeverHoldsItsOutputOrFloodsItDelaysNothing) {
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THAT(Run("sleep 1000 & echo $! > " + directory_ / "pid" + "; echo no; exit 1"),
              ElementsAre(HasSubstr("exited with 1: no")));
  EXPECT_LT(std::chrono::steady_clock::now() - began, minutes(1));
  ::kill(AwaitPid(directory_ / "pid"), SIGKILL);
  EXPECT_THAT(Run("yes | head -c 10000000; echo end; exit 1"), ElementsAre(HasSubstr(": end")));
  EXPECT_THAT(Run("exec yes", milliseconds(300)), ElementsAre(HasSubstr("has not ended within")));
}

TEST_F(HealthProgramTest, AtItsTimeoutItAndItsChildrenAreKilled) {
  EXPECT_THAT(Run("trap '' TERM; sleep 1000 & echo $! > " + directory_ / "pid" + "; sleep 1000",
                  milliseconds(500)),
              ElementsAre(HasSubstr("has not ended within 500ms")));
  EXPECT_TRUE(AwaitGone(AwaitPid(directory_ / "pid")));
}

class HostChecksTest : public ::testing::Test {
 protected:
  ~HostChecksTest() override {
    hang_.set_value();
    loop_.Stop();
    thread_.join();
  }
  template <typename Value>
  Value OnLoop(const std::function<Value()>& get) {
    std::promise<Value> done;
    loop_.Post([&] { done.set_value(get()); });
    return done.get_future().get();
  }
  std::vector<Problem> Problems() {
    return OnLoop<std::vector<Problem>>([this] { return checks_->problems(); });
  }
  void Start(HostChecks::Options options, const std::function<void()>& add) {
    OnLoop<bool>([&] {
      checks_ = std::make_unique<HostChecks>(loop_, files_, options, [this] { ++changes_; });
      add();
      checks_->Start([this] { first_.set_value(checks_->problems()); });
      return true;
    });
  }

  EventLoop loop_;
  FileTasks files_{loop_};
  std::unique_ptr<HostChecks> checks_;
  std::atomic<int> changes_ = 0;
  std::promise<std::vector<Problem>> first_;
  std::promise<void> hang_;
  std::thread thread_{[this] { loop_.Run(); }};
};

TEST_F(HostChecksTest, ACheckThatHangsIsAProblemUntilItEnds) {
  std::promise<void> answer, slow_answer;
  Start({.interval = minutes(1), .timeout = milliseconds(50), .first = milliseconds(1)}, [&] {
    checks_->Add("the check of the disk", [&answer, first = true]() mutable {
      if (std::exchange(first, false)) answer.get_future().wait();
      return std::vector<Problem>();
    });
    checks_->AddSlow(
        "the program",
        [&slow_answer, first = true]() mutable {
          if (std::exchange(first, false)) slow_answer.get_future().wait();
          return std::vector<Problem>();
        },
        minutes(1));
    checks_->Add("the other", [] { return std::vector<Problem>{"no fan"}; });
  });
  const auto first = first_.get_future().get();
  EXPECT_THAT(first, ::testing::Contains("the program has not ended yet for the first time"));
  EXPECT_THAT(first, ::testing::Not(::testing::Contains(HasSubstr("the disk"))))
      << "nobody waits for a check of something that has just worked";
  EXPECT_TRUE(Eventually([&] {
    return Problems() == std::vector<Problem>{"the check of the disk has not ended within 50ms",
                                              "the program has not ended yet for the first time",
                                              "no fan"};
  }));
  answer.set_value();
  slow_answer.set_value();
  EXPECT_TRUE(Eventually([&] { return Problems() == std::vector<Problem>{"no fan"}; }));
}

TEST_F(HostChecksTest, TheFirstResultsAreThereBeforeTheHostIsOffered) {
  std::atomic<int> fails = 0;
  Start({.interval = milliseconds(1), .first = minutes(1)}, [&] {
    checks_->Add("one", [&] {
      return fails > 0 ? std::vector<Problem>{"it fails"} : std::vector<Problem>();
    });
  });
  EXPECT_THAT(first_.get_future().get(), IsEmpty());
  EXPECT_EQ(changes_, 0) << "nobody has to hear what has not changed";
  fails = 1;
  EXPECT_TRUE(Eventually([&] { return changes_ == 1; }));
  EXPECT_THAT(Problems(), ElementsAre("it fails"));
  fails = 0;
  EXPECT_TRUE(Eventually([&] { return changes_ == 2; }));
}

TEST_F(HostChecksTest, WithoutChecksTheHostIsWellAtOnce) {
  Start({.first = minutes(10)}, [] {});
  EXPECT_THAT(first_.get_future().get(), IsEmpty());
}

class DaemonHealthTest : public testing::DaemonTest {
 protected:
  void Say(const std::string& problem) {
    const std::string text = problem.empty() ? "exit 0" : "echo '" + problem + "'; exit 1";
    ASSERT_TRUE(os::WriteFileAtomically(directory_ / "check", "#!/bin/sh\n" + text, 0755).ok());
  }
  std::vector<std::string> AwaitReport() {
    const auto report = coordinator_->AwaitKind(Request::kHostHealth);
    EXPECT_TRUE(report);
    if (!report) return {};
    const auto& problems = report->host_health().problems();
    return {problems.begin(), problems.end()};
  }
};

TEST_F(DaemonHealthTest, TheCoordinatorHearsWhatTheChecksFind) {
  Say("fan 3 stands still");
  StartDaemon({"--health-check", directory_ / "check", "--health-interval", "20ms"});
  EXPECT_THAT(AwaitHello().hello().health().problems(),
              ElementsAre(HasSubstr("exited with 1: fan 3 stands still")));
  Say("");
  EXPECT_THAT(AwaitReport(), IsEmpty());
  Say("fan 2 stands still");
  EXPECT_THAT(AwaitReport(), ElementsAre(HasSubstr("fan 2 stands still")));
}

TEST_F(DaemonHealthTest, ASlowCheckDelaysNoSession) {
  ASSERT_TRUE(os::WriteFileAtomically(
                  directory_ / "check",
                  "#!/bin/sh\nwhile test ! -e " + directory_ / "go" + "; do sleep 0.1; done", 0755)
                  .ok());
  StartDaemon({"--health-check", directory_ / "check"});
  EXPECT_THAT(AwaitHello().hello().health().problems(),
              ElementsAre(HasSubstr("has not ended yet for the first time")));
  ASSERT_TRUE(os::WriteFileAtomically(directory_ / "go", "").ok());
  EXPECT_THAT(AwaitReport(), IsEmpty());
}

TEST_F(DaemonHealthTest, TooLittleRoomIsAProblemAndNoChecksFindNone) {
  StartDaemon({"--least-free", "4194304T"});
  EXPECT_THAT(AwaitHello().hello().health().problems(),
              ElementsAre(HasSubstr("less than 4194304.0 TiB")));
  ::kill(daemon_, SIGTERM);
  testing::AwaitExit(daemon_);
  StartDaemon({"--least-free", "4194304T", "--health-interval", "0"});
  EXPECT_THAT(AwaitHello().hello().health().problems(), IsEmpty());
}

TEST_F(DaemonHealthTest, AHealthCheckThatIsNotThereIsAWrongCall) {
  StartDaemon({"--health-check", directory_ / "none"});
  EXPECT_EQ(WEXITSTATUS(testing::AwaitExit(std::exchange(daemon_, -1))), 2);
}

}  // namespace
}  // namespace meshrun::worker
