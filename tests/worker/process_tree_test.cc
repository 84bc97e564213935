// What is below a process, and that nothing of it escapes its kill: on processes of the test's own
// making first, then on real ones.
#include "worker/supervisor/process_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/os/children.h"
#include "core/os/process.h"
#include "tests/worker/support/processes.h"

namespace meshrun::worker {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// Processes that exist only here. They run while /proc is read: `between` is called before each
// reading, and forks whom it likes among those that are not stopped.
class FakeTable : public ProcessTable {
 public:
  struct Entry {
    Process process;
    std::string environment;
    bool stopped = false;
    bool zombie = false;
  };

  void Add(pid_t pid, pid_t parent, std::string environment = "") {
    processes_[pid] = {{pid, parent, next_start_++}, std::move(environment)};
  }
  pid_t Fork(pid_t parent) {
    const pid_t pid = 5000 + static_cast<pid_t>(next_start_);
    Add(pid, parent, processes_.at(parent).environment);
    return pid;
  }
  // What it leaves behind gets another parent.
  void End(pid_t pid, pid_t reaper) {
    processes_.erase(pid);
    for (auto& [other, entry] : processes_) {
      if (entry.process.parent == pid) entry.process.parent = reaper;
    }
  }
  Entry& at(pid_t pid) { return processes_.at(pid); }
  std::vector<pid_t> alive() const {
    std::vector<pid_t> pids;
    for (const auto& [pid, entry] : processes_) pids.push_back(pid);
    return pids;
  }

  std::vector<pid_t> Pids() override {
    ++readings;
    if (between) between();
    return alive();
  }
  std::optional<Process> Read(pid_t pid) override {
    const auto it = processes_.find(pid);
    if (it == processes_.end() || it->second.zombie) return std::nullopt;
    return it->second.process;
  }
  std::string Environment(pid_t pid) override {
    const auto it = processes_.find(pid);
    const std::string environment = it == processes_.end() ? "" : it->second.environment;
    if (after_environment) after_environment(pid);
    return environment;
  }
  bool Signal(pid_t pid, int signal) override {
    if (before_signal) before_signal(pid, signal);
    const auto it = processes_.find(pid);
    if (it == processes_.end()) return false;
    signals.emplace_back(pid, signal);
    if (signal == SIGSTOP) it->second.stopped = true;
    if (signal == SIGKILL) processes_.erase(it);
    return true;
  }

  std::function<void()> between;
  std::function<void(pid_t)> after_environment;
  std::function<void(pid_t, int)> before_signal;
  std::vector<std::pair<pid_t, int>> signals;
  int readings = 0;

 private:
  std::map<pid_t, Entry> processes_;
  uint64_t next_start_ = 1;
};

// 1 - 10 - 20 - 30, 10 - 21; 11 is the sibling of 10.
FakeTable Family() {
  FakeTable table;
  table.Add(1, 0);
  table.Add(10, 1);
  table.Add(11, 1);
  // Numbers wrap round: a child's may be below its parent's.
  table.Add(30, 20);
  table.Add(20, 10);
  table.Add(21, 10);
  return table;
}

TEST(ProcessTreeTest, DescendantsAreAllGenerationsWithoutTheRootAndItsSiblings) {
  FakeTable table = Family();
  EXPECT_THAT(Descendants(10, table), UnorderedElementsAre(20, 21, 30));
  EXPECT_THAT(Descendants(1, table), UnorderedElementsAre(10, 11, 20, 21, 30));
  EXPECT_THAT(Descendants(30, table), IsEmpty());
}

TEST(ProcessTreeTest, ParentsComeBeforeTheirChildren) {
  FakeTable table;
  table.Add(1, 0);
  // Each one's parent has the higher number.
  for (pid_t pid = 90; pid >= 50; --pid) table.Add(pid, pid == 90 ? 1 : pid + 1);
  const std::vector<pid_t> found = Descendants(1, table);
  ASSERT_EQ(found.size(), 41u);
  EXPECT_TRUE(std::is_sorted(found.rbegin(), found.rend()));
}

TEST(ProcessTreeTest, AnOrphanIsFoundBelowTheSubreaperThatItWentTo) {
  FakeTable table = Family();
  table.End(20, /*reaper=*/10);
  EXPECT_THAT(Descendants(10, table), UnorderedElementsAre(21, 30));
  EXPECT_EQ(KillDescendants(10, table), 2);
  EXPECT_THAT(table.alive(), ElementsAre(1, 10, 11));
}

TEST(ProcessTreeTest, ACircleOfNumbersTakenOverEnds) {
  FakeTable table = Family();
  table.at(10).process.parent = 30;
  EXPECT_THAT(Descendants(10, table), UnorderedElementsAre(10, 20, 21, 30));
}

TEST(ProcessTreeTest, ZombiesAreLeftOut) {
  FakeTable table = Family();
  table.at(21).zombie = true;
  EXPECT_THAT(Descendants(10, table), UnorderedElementsAre(20, 30));
  EXPECT_EQ(KillDescendants(10, table), 2);
}

TEST(ProcessTreeTest, AllAreStoppedBeforeTheFirstIsKilled) {
  FakeTable table = Family();
  EXPECT_EQ(KillDescendants(1, table), 5);
  const auto first_kill = std::find_if(table.signals.begin(), table.signals.end(),
                                       [](const auto& s) { return s.second == SIGKILL; });
  EXPECT_EQ(first_kill - table.signals.begin(), 5);
  EXPECT_EQ(table.signals.size(), 10u);
  EXPECT_THAT(table.alive(), ElementsAre(1));
}

// Between two readings each process that still runs forks: only the stop ends that.
TEST(ProcessTreeTest, WhatIsForkedMeanwhileIsKilledToo) {
  FakeTable table = Family();
  int forked = 0;
  table.between = [&] {
    for (const pid_t pid : table.alive()) {
      if (pid < 20 || table.at(pid).stopped || ++forked > 1000) continue;
      table.Fork(pid);
    }
  };
  // Forked between the last reading and the stop: seen in the reading after that.
  int late = 3;
  table.before_signal = [&](pid_t pid, int signal) {
    if (signal == SIGSTOP && late-- > 0) table.Fork(pid);
  };
  EXPECT_GT(KillDescendants(10, table), 3);
  EXPECT_THAT(table.alive(), ElementsAre(1, 10, 11));
  EXPECT_LT(forked, 20) << "each forks once or twice before it is stopped";
}

// A process outside of the stop's reach (it runs on as another one's child) cannot hold us for
// ever.
TEST(ProcessTreeTest, AnEndlessForkerGetsABoundedNumberOfRounds) {
  FakeTable table = Family();
  table.between = [&table] {
    if (table.readings < 10'000) table.Fork(21);
  };
  EXPECT_GT(KillDescendants(10, table), 3);
  EXPECT_LT(table.readings, 1000);
  // Many more than one, or a shell that forks in a loop would win.
  EXPECT_GT(table.readings, 10);
}

// 21 ends after it was found, and a stranger gets its number.
TEST(ProcessTreeTest, ANumberThatWasTakenOverBeforeTheStopIsLeftAlone) {
  FakeTable table = Family();
  table.before_signal = [&table, done = false](pid_t pid, int) mutable {
    if (pid != 20 || std::exchange(done, true)) return;
    table.End(21, 1);
    table.Add(21, 1);
  };
  EXPECT_EQ(KillDescendants(10, table), 2);
  EXPECT_THAT(table.alive(), ElementsAre(1, 10, 11, 21));
  EXPECT_FALSE(table.at(21).stopped);
}

TEST(ProcessTreeTest, ANumberThatWasTakenOverBeforeTheKillIsLeftAlone) {
  FakeTable table = Family();
  table.between = [&table] {
    if (table.readings != 2) return;
    table.End(21, 1);
    table.Add(21, 1);
  };
  EXPECT_EQ(KillDescendants(10, table), 2);
  EXPECT_THAT(table.alive(), ElementsAre(1, 10, 11, 21));
  EXPECT_FALSE(table.at(21).stopped);
}

TEST(ProcessTreeTest, ADescendantWithTheNumberOfAnEndedOneIsKilledToo) {
  FakeTable table = Family();
  table.between = [&table] {
    if (table.readings != 2) return;
    table.End(21, 1);
    table.Add(21, 10);
  };
  EXPECT_EQ(KillDescendants(10, table), 3);
  EXPECT_THAT(table.alive(), ElementsAre(1, 10, 11));
}

TEST(ProcessTreeTest, OnlyWhatTookASigkillIsCounted) {
  FakeTable table = Family();
  table.before_signal = [&table](pid_t pid, int signal) {
    if (signal == SIGKILL && pid == 21) table.End(21, 1);
  };
  EXPECT_EQ(KillDescendants(10, table), 2);
}

TEST(ProcessTreeTest, TheWholeEntryOfTheEnvironmentDecides) {
  using namespace std::string_literals;
  FakeTable table;
  table.Add(50, 1, "MESHRUN_TOKEN=abc\0HOME=/\0"s);
  table.Add(51, 1, "HOME=/\0MESHRUN_TOKEN=abc\0"s);
  table.Add(52, 1, "MESHRUN_TOKEN=abcd\0"s);
  table.Add(53, 1, "MY_MESHRUN_TOKEN=abc\0"s);
  table.Add(54, 1, "X=MESHRUN_TOKEN=abc\0"s);
  table.Add(55, 1, "");
  table.Add(::getpid(), 1, "MESHRUN_TOKEN=abc\0"s);
  EXPECT_EQ(KillByEnvironment("MESHRUN_TOKEN=abc", table), 2);
  EXPECT_THAT(table.alive(), UnorderedElementsAre(52, 53, 54, 55, ::getpid()));
}

// 50 ends after its environment was read, and a stranger gets its number.
TEST(ProcessTreeTest, ANumberThatWasTakenOverAfterItsEnvironmentWasReadIsLeftAlone) {
  using namespace std::string_literals;
  FakeTable table;
  table.Add(50, 1, "T=1\0"s);
  table.after_environment = [&table, done = false](pid_t pid) mutable {
    if (pid != 50 || std::exchange(done, true)) return;
    table.End(50, 1);
    table.Add(50, 1, "T=2\0"s);
  };
  EXPECT_EQ(KillByEnvironment("T=1", table), 0);
  EXPECT_THAT(table.alive(), ElementsAre(50));
  EXPECT_FALSE(table.at(50).stopped);
}

TEST(ProcessTreeTest, NothingForksAwayFromAKillByTheEnvironment) {
  using namespace std::string_literals;
  FakeTable table;
  table.Add(50, 1, "T=1\0"s);
  table.Add(60, 1, "T=2\0"s);
  table.between = [&table] {
    for (const pid_t pid : table.alive()) {
      if (!table.at(pid).stopped && table.alive().size() < 100) table.Fork(pid);
    }
  };
  // 60 and its children fork on: they are others'.
  EXPECT_GT(KillByEnvironment("T=1", table), 1);
  for (const pid_t pid : table.alive()) EXPECT_EQ(table.Environment(pid), "T=2\0"s);
}

// 10 and 11 are two ranks of one supervisor.
FakeTable Ranks() {
  using namespace std::string_literals;
  FakeTable table;
  table.Add(1, 0, "T=0\0"s);
  table.Add(2, 0);
  table.Add(10, 1, "T=1\0"s);
  table.Add(11, 1, "T=2\0"s);
  table.Add(20, 10);
  table.Add(21, 10, "T=1\0"s);
  table.Add(22, 10);
  // Not below the supervisor.
  table.Add(40, 2);
  table.Add(41, 2, "T=1\0"s);
  for (const pid_t pid : {11, 21, 22, 41}) table.at(pid).process.session = pid;
  for (const pid_t pid : {10, 20, 40}) table.at(pid).process.session = 10;
  return table;
}

TEST(ProcessTreeTest, WhatARankHasStartedIsOfItsSessionOrHasItsEnvironment) {
  FakeTable table = Ranks();
  EXPECT_EQ(KillSession(1, 10, "T=1", table), 3);
  // 22 has left both behind.
  EXPECT_THAT(table.alive(), ElementsAre(1, 2, 11, 22, 40, 41));
  EXPECT_EQ(KillSession(1, 10, "T=1", table), 0);
  EXPECT_EQ(table.signals.size(), 6u);
}

TEST(ProcessTreeTest, NothingForksAwayFromTheKillOfARank) {
  FakeTable table = Ranks();
  table.between = [&table] {
    for (const pid_t pid : {20, 21}) {
      if (!table.at(pid).stopped && table.alive().size() < 100) {
        table.at(table.Fork(pid)).process.session = table.at(pid).process.session;
      }
    }
  };
  EXPECT_GT(KillSession(1, 10, "T=1", table), 3);
  EXPECT_THAT(table.alive(), ElementsAre(1, 2, 11, 22, 40, 41));
}

// Also one that begins with a 9.
TEST(RealProcessTreeTest, AllNumbersOfProcAreListed) {
  pid_t nine = -1;
  for (pid_t number = 9000; number < 9100 && nine < 0; ++number) {
    clone_args arguments{};
    arguments.exit_signal = SIGCHLD;
    arguments.set_tid = reinterpret_cast<uint64_t>(&number);
    arguments.set_tid_size = 1;
    // Where no number may be chosen, it is left to chance.
    nine = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof(arguments)));
    while (nine == 0) ::pause();
  }
  const auto numbers = [] {
    std::set<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") == std::string::npos) found.insert(std::stoi(name));
    }
    return found;
  };
  const std::set<pid_t> before = numbers();
  const std::vector<pid_t> listed = ProcessTable::Real().Pids();
  const std::set<pid_t> after = numbers();
  ASSERT_TRUE(before.count(::getpid()));
  for (const pid_t pid : before) {
    if (after.count(pid)) {
      EXPECT_THAT(listed, Contains(pid));
    }
  }
  if (nine > 0) {
    ::kill(nine, SIGKILL);
    EXPECT_EQ(::waitpid(nine, nullptr, 0), nine);
  }
}

TEST(RealProcessTreeTest, ASessionIsKilledWithoutItsNeighbour) {
  const auto start = [] {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::setsid();
    while (true) ::pause();
  };
  const pid_t rank = start(), neighbour = start();
  ASSERT_TRUE(testing::Eventually(
      [&] { return ::getsid(rank) == rank && ::getsid(neighbour) == neighbour; }));
  EXPECT_EQ(KillSession(::getpid(), rank, "NO_SUCH=ENTRY"), 1);
  EXPECT_EQ(testing::AwaitExit(rank), SIGKILL);
  EXPECT_TRUE(ProcessTable::Real().Signal(neighbour, SIGKILL));
  EXPECT_EQ(testing::AwaitExit(neighbour), SIGKILL);
  EXPECT_FALSE(ProcessTable::Real().Signal(neighbour, SIGKILL)) << "it is gone";
}

TEST(RealProcessTreeTest, AnOrphanOfTwoGenerationsIsFoundAndKilled) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  // Child - grandchild - great-grandchild; the two in the middle go.
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() == 0 && ::setsid() > 0 && ::fork() == 0) {
      ::prctl(PR_SET_NAME, "a) S 1 (b");
      const pid_t self = ::getpid();
      (void)!::write(ends[1], &self, sizeof(self));
      while (true) ::pause();
    }
    ::_exit(0);
  }
  pid_t orphan = -1;
  ASSERT_EQ(::read(ends[0], &orphan, sizeof(orphan)), static_cast<ssize_t>(sizeof(orphan)));
  ASSERT_TRUE(testing::AwaitGone(child));
  // The child is a zombie now, and the orphan's name looks like the rest of a line.
  EXPECT_TRUE(testing::Eventually([&] {
    const auto process = ProcessTable::Real().Read(orphan);
    return process.has_value() && process->parent == ::getpid();
  }));
  const std::vector<pid_t> found = Descendants(::getpid());
  EXPECT_THAT(found, Contains(orphan));
  EXPECT_THAT(found, Not(Contains(child)));
  EXPECT_EQ(KillDescendants(::getpid()), 1);
  EXPECT_EQ(testing::AwaitExit(orphan), SIGKILL);
  while (::waitpid(-1, nullptr, 0) > 0) continue;
  EXPECT_THAT(Descendants(::getpid()), IsEmpty());
}

// What a supervisor that was killed leaves to its daemon.
TEST(RealProcessTreeTest, WhatASubreaperWasLeftIsKilledAndWhatItStartedIsNot) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const auto own = os::Spawn({.argv = {"/bin/sleep", "1000"}});
  ASSERT_TRUE(own.ok()) << own.status();
  const testing::TemporaryDirectory directory;
  const auto between = os::Spawn(
      {.argv = {"/bin/sh", "-c",
                "setsid env -i /bin/sh -c 'echo $$ >" + directory / "pid" + "; sleep 1000; :' &"},
       .owns_session = false});
  ASSERT_TRUE(between.ok()) << between.status();
  const pid_t left = testing::AwaitPid(directory / "pid");
  EXPECT_EQ(testing::AwaitExit(*between), 0);
  EXPECT_TRUE(testing::Eventually([&] {
    const auto process = ProcessTable::Real().Read(left);
    return process.has_value() && process->parent == ::getpid();
  }));
  const std::vector<os::AdoptedChild> adopted = os::AdoptedChildren();
  ASSERT_EQ(adopted.size(), 1u);
  EXPECT_EQ(adopted[0].pid, left);
  // It is older than a supervisor that starts now: none of that one's.
  EXPECT_EQ(KillAdopted(adopted[0].start_ticks + 1), 0);
  EXPECT_TRUE(ProcessTable::Real().Read(left).has_value());
  const uint64_t since = adopted[0].start_ticks;
  EXPECT_TRUE(testing::Eventually([since] { return KillAdopted(since) == 0; }));
  EXPECT_TRUE(testing::AwaitGone(left));
  EXPECT_TRUE(os::AdoptedChildren().empty()) << "it is waited for";
  EXPECT_TRUE(ProcessTable::Real().Read(*own).has_value());
  EXPECT_THAT(Descendants(::getpid()), ElementsAre(*own));
  ::kill(*own, SIGKILL);
  EXPECT_EQ(testing::AwaitExit(*own), SIGKILL);
}

// A health check may leave a helper behind: that is its own affair, until it ends.
TEST(RealProcessTreeTest, WhatAProgramLeavesInItsOwnSessionIsNobodysOrphan) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const testing::TemporaryDirectory directory;
  const auto program =
      os::Spawn({.argv = {"/bin/sh", "-c", "sleep 1000 & echo $! >" + directory / "pid"}});
  ASSERT_TRUE(program.ok()) << program.status();
  const pid_t helper = testing::AwaitPid(directory / "pid");
  EXPECT_EQ(testing::AwaitExit(*program), 0);
  EXPECT_TRUE(testing::Eventually([&] {
    const auto process = ProcessTable::Real().Read(helper);
    return process.has_value() && process->parent == ::getpid();
  }));
  EXPECT_TRUE(os::AdoptedChildren().empty());
  EXPECT_EQ(KillAdopted(0), 0);
  EXPECT_TRUE(ProcessTable::Real().Read(helper).has_value());
  // Once it has ended, somebody waits for it.
  ::kill(helper, SIGKILL);
  EXPECT_TRUE(testing::Eventually([helper] {
    os::CollectAdopted();
    return ::kill(helper, 0) != 0;
  }));
}

}  // namespace
}  // namespace meshrun::worker
