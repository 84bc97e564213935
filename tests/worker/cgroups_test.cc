// Cgroups of version 1 and 2 in trees of files, and those of this machine where it has them.
#include "worker/cgroups/cgroups.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include "core/os/files.h"
#include "tests/worker/support/processes.h"
#include "worker/cgroups/device_rules.h"
#include "worker/cgroups/hierarchies.h"

namespace meshrun::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using testing::TemporaryDirectory;

v1::ResourceLimits SomeLimits() {
  v1::ResourceLimits limits;
  limits.set_memory_bytes(500 << 20);
  limits.set_cores(3);
  limits.set_pids(64);
  return limits;
}

// Files where the kernel would have a tree of cgroups.
class CgroupsInFilesTest : public ::testing::Test {
 protected:
  std::string At(const std::string& path) const { return root_ / path; }
  void Write(const std::string& path, const std::string& content) {
    const std::string file = At(path);
    ASSERT_TRUE(os::MakeDirectories(file.substr(0, file.rfind('/'))).ok());
    ASSERT_TRUE(os::WriteFileAtomically(file, content).ok());
  }
  std::string Read(const std::string& path) const { return os::ReadFile(At(path)).value_or("-"); }
  bool Exists(const std::string& path) const { return ::access(At(path).c_str(), F_OK) == 0; }

  // What the kernel shows of a group, for the one that is made for a trial, and for "g".
  void Group(const std::string& parent, const std::vector<std::string>& files) {
    for (const std::string& name :
         {std::string("g"), fmt::format("meshrun-probe-{}", ::getpid())}) {
      for (const std::string& file : files) Write(fmt::format("{}/{}/{}", parent, name, file), "");
    }
  }
  void Version2(const std::string& membership, const std::string& controllers) {
    Write("mounts", fmt::format("41 31 0:38 / {} rw shared:9 - cgroup2 cgroup2 rw\n", At("cg")));
    Write("membership", fmt::format("0::{}\n", membership));
    Write("cg/unit/cgroup.controllers", controllers + "\n");
    Write("cg/unit/cgroup.subtree_control", "");
    Write("cg/unit/cgroup.procs", fmt::format("{}\n", ::getpid()));
    Write("cg/unit/meshrun-daemon/cgroup.procs", "");
    Group("cg/unit", {"memory.max", "memory.swap.max", "cpu.weight", "cpu.max", "pids.max",
                      "cgroup.procs", "cgroup.kill", "cgroup.events"});
  }
  void Version1(const std::string& mount_root = "/") {
    std::string mounts, membership;
    for (const char* const name : {"memory", "cpu,cpuacct", "pids", "devices", "freezer"}) {
      mounts += fmt::format("32 31 0:29 {0} {1} rw - cgroup cgroup rw,{2}\n", mount_root,
                            At(std::string("cg/") + name), name);
      membership += fmt::format("4:{}:/docker/7\n", name);
      for (const std::string top : {"/docker/7", ""}) {
        Write(fmt::format("cg/{}{}/cgroup.procs", name, top), "");
        Group(fmt::format("cg/{}{}", name, top),
              {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.shares",
               "cpu.cfs_quota_us", "cpu.cfs_period_us", "pids.max", "devices.allow", "devices.deny",
               "freezer.state", "cgroup.procs"});
      }
    }
    Write("mounts", mounts);
    Write("membership", membership + "0::/\n");
  }
  Cgroups Find(const std::set<std::string>& wanted) const {
    return Cgroups::Find(wanted, {.membership = At("membership"), .mounts = At("mounts")});
  }

  TemporaryDirectory root_;
};

TEST_F(CgroupsInFilesTest, Version2HasAGroupBesideTheDaemonsOwn) {
  Version2("/unit/daemon", "cpuset cpu io memory pids");
  const Cgroups cgroups = Find({"memory", "cpu", "pids"});
  EXPECT_THAT(cgroups.kept(), ElementsAre("memory", "cpu", "pids"));
  EXPECT_THAT(cgroups.lacking(), IsEmpty());
  const auto group = cgroups.Create("g", SomeLimits());
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(Read("cg/unit/g/memory.max"), "524288000");
  EXPECT_EQ(Read("cg/unit/g/memory.swap.max"), "0");
  EXPECT_EQ(Read("cg/unit/g/cpu.weight"), "30");
  EXPECT_EQ(Read("cg/unit/g/cpu.max"), "") << "a quota was not asked for";
  EXPECT_EQ(Read("cg/unit/g/pids.max"), "64");
  EXPECT_EQ(Read("cg/unit/meshrun-daemon/cgroup.procs"), "") << "it is in one already";
  ASSERT_TRUE(EnterCgroup(*group).ok());
  EXPECT_EQ(Read("cg/unit/g/cgroup.procs"), "0");
}

TEST_F(CgroupsInFilesTest, Version2SaysWhatItHasDone) {
  Version2("/unit/daemon", "memory pids");
  const auto group = Find({"memory", "pids"}).Create("g", SomeLimits());
  ASSERT_TRUE(group.ok()) << group.status();
  Write("cg/unit/g/memory.events", "low 0\nhigh 0\nmax 7\noom 4\noom_kill 2\noom_group_kill 0\n");
  Write("cg/unit/g/pids.events", "max 3\n");
  const CgroupCounts counts = CountsOf(*group);
  EXPECT_EQ(counts.memory_kills, 2u);
  EXPECT_EQ(counts.refused_forks, 3u);
  EXPECT_THAT(WhatLimitsDid(*group, counts, CountsOf(*group)), IsEmpty());
  EXPECT_EQ(WhatLimitsDid(*group, {.memory_kills = 1, .memory_full = 3, .refused_forks = 3},
                          CountsOf(*group)),
            "killed for memory: the 500.0 MiB of the job on this host");
  EXPECT_THAT(WhatLimitsDid(*group, {.memory_kills = 1, .memory_full = 4, .refused_forks = 3},
                            CountsOf(*group)),
              IsEmpty())
      << "the host had too little, and not the job";
  EXPECT_THAT(WhatLimitsDid(*group, {.memory_kills = 2, .memory_full = 4, .refused_forks = 2},
                            CountsOf(*group)),
              HasSubstr("the 64 processes and threads of the job"));
  // It has grown since.
  Write("cg/unit/g/memory.max", "1048576000\n");
  EXPECT_THAT(WhatLimitsDid(*group, {}, CountsOf(*group)), HasSubstr("the 1000.0 MiB"));
}

TEST_F(CgroupsInFilesTest, Version2EndsAllByOneWrite) {
  Version2("/unit/daemon", "memory");
  const auto group = Find({"memory"}).Create("g", SomeLimits());
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_FALSE(KillCgroup(*group)) << "nothing is in it";
  EXPECT_EQ(Read("cg/unit/g/cgroup.kill"), "");
  Write("cg/unit/g/cgroup.events", "populated 1\nfrozen 0\n");
  EXPECT_TRUE(IsPopulated(*group));
  EXPECT_TRUE(KillCgroup(*group));
  EXPECT_EQ(Read("cg/unit/g/cgroup.kill"), "1");
  Write("cg/unit/g/cgroup.events", "populated 0\nfrozen 0\n");
  EXPECT_FALSE(KillCgroup(*group));
}

// The kernel refuses controllers for children of a group that has processes of its own.
TEST_F(CgroupsInFilesTest, AloneInItsGroupTheDaemonGoesToOneOfItsOwn) {
  Version2("/unit", "memory");
  ASSERT_TRUE(os::RemoveTree(At("cg/unit/cgroup.subtree_control")).ok());
  ASSERT_TRUE(os::MakeDirectories(At("cg/unit/cgroup.subtree_control")).ok());
  EXPECT_THAT(Find({"memory"}).lacking(), ElementsAre(HasSubstr("subtree_control")));
  EXPECT_EQ(Read("cg/unit/meshrun-daemon/cgroup.procs"), "0");
}

TEST_F(CgroupsInFilesTest, WhereOthersAreTooTheDaemonStays) {
  Version2("/unit", "memory");
  ASSERT_TRUE(os::RemoveTree(At("cg/unit/cgroup.subtree_control")).ok());
  ASSERT_TRUE(os::MakeDirectories(At("cg/unit/cgroup.subtree_control")).ok());
  Write("cg/unit/cgroup.procs", fmt::format("1\n{}\n", ::getpid()));
  EXPECT_THAT(Find({"memory"}).lacking(), ElementsAre(StartsWith("memory (")));
  EXPECT_EQ(Read("cg/unit/meshrun-daemon/cgroup.procs"), "");
}

TEST_F(CgroupsInFilesTest, WhatIsMissingIsNamed) {
  Version2("/unit/daemon", "memory");
  const Cgroups cgroups = Find({"memory", "pids"});
  EXPECT_THAT(cgroups.kept(), ElementsAre("memory"));
  EXPECT_THAT(cgroups.lacking(), ElementsAre(HasSubstr("has no controller 'pids'")));
  Write("membership", "");
  EXPECT_THAT(Find({"memory"}).lacking(), ElementsAre(HasSubstr("no controller 'memory' here")));
  EXPECT_FALSE(Find({"memory"}).works());
  EXPECT_FALSE(Find({}).works());
  EXPECT_THAT(Find({}).lacking(), IsEmpty()) << "nobody wants any";
}

TEST_F(CgroupsInFilesTest, BeforeItsUnitStartsAgainTheControllersAreOff) {
  Version2("/unit/.control", "memory pids");
  Write("cg/unit/cgroup.subtree_control", "memory pids");
  ASSERT_TRUE(ReleaseControllers({.membership = At("membership"), .mounts = At("mounts")}).ok());
  EXPECT_EQ(Read("cg/unit/cgroup.subtree_control"), "-pids") << "the last of the two writes";
  // Somebody calls it by hand, or the unit has put the daemon into a group.
  Version2("/unit/scope", "memory pids");
  Write("cg/unit/cgroup.subtree_control", "memory pids");
  ASSERT_TRUE(ReleaseControllers({.membership = At("membership"), .mounts = At("mounts")}).ok());
  EXPECT_EQ(Read("cg/unit/cgroup.subtree_control"), "memory pids");
  Version2("/unit/.control", "memory pids");
  Write("cg/unit/cgroup.subtree_control", "memory pids");
  ASSERT_TRUE(os::RemoveTree(At("cg/unit/meshrun-daemon")).ok());
  ASSERT_TRUE(ReleaseControllers({.membership = At("membership"), .mounts = At("mounts")}).ok());
  EXPECT_EQ(Read("cg/unit/cgroup.subtree_control"), "memory pids");
}

// Rights to a directory say little: the kernel has the last word.
TEST_F(CgroupsInFilesTest, ALimitThatCannotBeSetIsLacking) {
  Version2("/unit/daemon", "memory pids");
  ASSERT_TRUE(
      os::RemoveTree(At(fmt::format("cg/unit/meshrun-probe-{}/pids.max", ::getpid()))).ok());
  const Cgroups cgroups = Find({"memory", "pids"});
  EXPECT_THAT(cgroups.kept(), ElementsAre("memory"));
  EXPECT_THAT(cgroups.lacking(), ElementsAre(HasSubstr("pids.max: No such file")));
}

TEST_F(CgroupsInFilesTest, AGroupInWhichSomethingRunsIsNobodyElses) {
  Version1();
  Write("cg/memory/docker/7/g/cgroup.procs", "4711\n");
  const auto group = Find({"memory"}).Create("g", SomeLimits());
  EXPECT_TRUE(absl::IsAlreadyExists(group.status())) << group.status();
}

TEST_F(CgroupsInFilesTest, GroupsThatRanksHaveMadeCountToo) {
  Version1();
  const auto group = Find({"memory"}).Create("g", SomeLimits());
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_FALSE(IsPopulated(*group));
  Write("cg/memory/docker/7/g/container/deep/cgroup.procs", "4711\n");
  EXPECT_TRUE(IsPopulated(*group));
}

TEST_F(CgroupsInFilesTest, WhatAnEarlierDaemonLeftIsRemoved) {
  Version2("/unit/daemon", "memory");
  const Cgroups cgroups = Find({"memory"});
  for (const char* const name : {"meshrun-a-1-n1", "meshrun-b-1-n1", "meshrun-a-1-n2", "other-n1"})
    ASSERT_TRUE(os::MakeDirectories(At(std::string("cg/unit/") + name)).ok());
  cgroups.RemoveOthers("n1", {At("cg/unit/meshrun-b-1-n1")});
  EXPECT_FALSE(Exists("cg/unit/meshrun-a-1-n1"));
  EXPECT_TRUE(Exists("cg/unit/meshrun-b-1-n1")) << "it is used";
  EXPECT_TRUE(Exists("cg/unit/meshrun-a-1-n2")) << "it is another worker's";
  EXPECT_TRUE(Exists("cg/unit/other-n1"));
}

TEST_F(CgroupsInFilesTest, LimitsAreSetAgainAfterThat) {
  Version2("/unit/daemon", "memory");
  auto group = Find({"memory"}).Create("g", SomeLimits());
  ASSERT_TRUE(group.ok()) << group.status();
  Write("cg/unit/cgroup.subtree_control", "-memory");
  Write("cg/unit/g/memory.max", "max");
  ASSERT_TRUE(ApplyLimits(*group).ok());
  EXPECT_EQ(Read("cg/unit/cgroup.subtree_control"), "+memory");
  EXPECT_EQ(Read("cg/unit/g/memory.max"), "524288000");
}

TEST_F(CgroupsInFilesTest, Version1HasAGroupInEachHierarchy) {
  Version1();
  const Cgroups cgroups = Find({"memory", "cpu", "cpu-quota", "pids", "devices"});
  EXPECT_THAT(cgroups.kept(), ElementsAre("memory", "cpu", "cpu-quota", "pids", "devices"));
  v1::ResourceLimits limits = SomeLimits();
  const auto add = [](auto* devices, uint32_t minor) {
    devices->Add()->set_major(195);
    devices->rbegin()->set_minor(minor);
  };
  add(limits.mutable_denied(), 1);
  add(limits.mutable_allowed(), 0);
  const auto group = cgroups.Create("g", limits);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(Read("cg/memory/docker/7/g/memory.limit_in_bytes"), "524288000");
  EXPECT_EQ(Read("cg/memory/docker/7/g/memory.memsw.limit_in_bytes"), "524288000");
  EXPECT_EQ(Read("cg/cpu,cpuacct/docker/7/g/cpu.shares"), "3072");
  EXPECT_EQ(Read("cg/cpu,cpuacct/docker/7/g/cpu.cfs_quota_us"), "300000");
  EXPECT_EQ(Read("cg/pids/docker/7/g/pids.max"), "64");
  EXPECT_EQ(Read("cg/devices/docker/7/g/devices.deny"), "c 195:1 rwm");
  EXPECT_EQ(Read("cg/devices/docker/7/g/devices.allow"), "c 195:0 rwm");
  ASSERT_TRUE(EnterCgroup(*group).ok());
  for (const char* const name : {"memory", "cpu,cpuacct", "pids", "devices", "freezer"})
    EXPECT_EQ(Read(fmt::format("cg/{}/docker/7/g/cgroup.procs", name)), "0") << name;
}

// A container's mount begins at its own group.
TEST_F(CgroupsInFilesTest, AContainerIsAtTheTopOfWhatItSees) {
  Version1("/docker/7");
  const auto group = Find({"memory"}).Create("g", SomeLimits());
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(Read("cg/memory/g/memory.limit_in_bytes"), "524288000");
}

TEST(DenyProgramTest, AnswersForEachDevice) {
  v1::ResourceLimits limits;
  for (const uint32_t minor : {1, 3}) {
    limits.add_denied()->set_major(195);
    limits.mutable_denied()->rbegin()->set_minor(minor);
  }
  const std::vector<bpf_insn> program = DenyProgram(limits.denied());
  const auto answer = [&program](uint32_t kind, uint32_t major, uint32_t minor) {
    const uint32_t context[] = {kind | (BPF_DEVCG_ACC_READ << 16), major, minor};
    int64_t registers[11] = {};
    for (size_t at = 0; at < program.size(); ++at) {
      const bpf_insn& step = program[at];
      switch (step.code) {
        case BPF_LDX | BPF_MEM | BPF_W:
          registers[step.dst_reg] = context[step.off / 4];
          break;
        case BPF_ALU64 | BPF_AND | BPF_K:
          registers[step.dst_reg] &= step.imm;
          break;
        case BPF_ALU64 | BPF_MOV | BPF_K:
          registers[step.dst_reg] = step.imm;
          break;
        case BPF_JMP | BPF_JNE | BPF_K:
          if (registers[step.dst_reg] != step.imm) at += step.off;
          break;
        case BPF_JMP | BPF_EXIT:
          return static_cast<int>(registers[0]);
        default:
          return -1;
      }
    }
    return -2;
  };
  EXPECT_EQ(answer(BPF_DEVCG_DEV_CHAR, 195, 1), 0);
  EXPECT_EQ(answer(BPF_DEVCG_DEV_CHAR, 195, 3), 0);
  EXPECT_EQ(answer(BPF_DEVCG_DEV_CHAR, 195, 0), 1);
  EXPECT_EQ(answer(BPF_DEVCG_DEV_CHAR, 195, 255), 1) << "nvidiactl";
  EXPECT_EQ(answer(BPF_DEVCG_DEV_CHAR, 1, 3), 1);
  EXPECT_EQ(answer(BPF_DEVCG_DEV_BLOCK, 195, 1), 1);
}

// This machine's.
class CgroupsHereTest : public ::testing::Test {
 protected:
  // False: this machine, or who runs the test, cannot.
  bool Has(const std::string& limit) {
    cgroups_ = Cgroups::Find({limit});
    return !cgroups_.kept().empty();
  }
  v1::ControlGroup Make(const v1::ResourceLimits& limits) {
    auto group = cgroups_.Create(fmt::format("meshrun-test-{}", ::getpid()), limits);
    EXPECT_TRUE(group.ok()) << group.status();
    return group.ok() ? *group : v1::ControlGroup();
  }
  // Wait status of a process in it that does `work` and exits with what that returns.
  static pid_t Start(const v1::ControlGroup& group, const std::function<int()>& work) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::_exit(EnterCgroup(group).ok() ? work() : 99);
  }
  static int Await(pid_t pid) {
    int status = -1;
    ::waitpid(pid, &status, 0);
    return status;
  }
  static void Remove(const v1::ControlGroup& group) {
    RemoveCgroup(group);
    for (const auto& hierarchy : group.hierarchies())
      EXPECT_NE(::access(hierarchy.directory().c_str(), F_OK), 0) << hierarchy.directory();
  }

  Cgroups cgroups_;
};

TEST_F(CgroupsHereTest, TooMuchMemoryIsKilledAndSaid) {
  if (!Has("memory")) GTEST_SKIP() << cgroups_.lacking()[0];
  v1::ResourceLimits limits;
  limits.set_memory_bytes(64 << 20);
  const v1::ControlGroup group = Make(limits);
  const CgroupCounts before = CountsOf(group);
  const int status = Await(Start(group, [] {
    constexpr size_t kBytes = 256 << 20;
    auto* const bytes = static_cast<volatile char*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t i = 0; i < kBytes; i += 4096) bytes[i] = 1;
    return 0;
  }));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(WhatLimitsDid(group, before, CountsOf(group)),
            "killed for memory: the 64.0 MiB of the job on this host");
  Remove(group);
}

TEST_F(CgroupsHereTest, AForkTooManyIsRefused) {
  if (!Has("pids")) GTEST_SKIP() << cgroups_.lacking()[0];
  v1::ResourceLimits limits;
  limits.set_pids(4);
  const v1::ControlGroup group = Make(limits);
  const int status = Await(Start(group, [] {
    int started = 0;
    while (started < 16) {
      const pid_t pid = ::fork();
      if (pid == 0) ::pause();
      if (pid < 0) return errno == EAGAIN ? started : 98;
      ++started;
    }
    return 97;
  }));
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_TRUE(IsPopulated(group));
  // They have left their session's leader behind, and are found all the same.
  EXPECT_TRUE(testing::Eventually([&] { return !KillCgroup(group); }));
  EXPECT_EQ(CountsOf(group).refused_forks, 1u);
  Remove(group);
}

TEST_F(CgroupsHereTest, AProcessThatForksWithoutEndIsEnded) {
  if (!Has("pids")) GTEST_SKIP() << cgroups_.lacking()[0];
  v1::ResourceLimits limits;
  limits.set_pids(200);
  const v1::ControlGroup group = Make(limits);
  Start(group, [] {
    ::setsid();
    while (::fork() >= 0) {
    }
    ::pause();
    return 0;
  });
  EXPECT_TRUE(testing::Eventually([&] { return CountsOf(group).refused_forks > 0; }));
  EXPECT_TRUE(testing::Eventually([&] { return !KillCgroup(group); }));
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  Remove(group);
}

TEST_F(CgroupsHereTest, ADeniedDeviceCannotBeOpened) {
  if (!Has("devices")) GTEST_SKIP() << cgroups_.lacking()[0];
  v1::ResourceLimits limits;
  // That of /dev/zero.
  limits.add_denied()->set_major(1);
  limits.mutable_denied(0)->set_minor(5);
  const v1::ControlGroup group = Make(limits);
  const int status = Await(Start(group, [] {
    const int other = ::open("/dev/null", O_RDONLY);
    const int denied = ::open("/dev/zero", O_RDONLY);
    return other >= 0 && denied < 0 && errno == EPERM ? 0 : 1;
  }));
  EXPECT_EQ(status, 0);
  Remove(group);
}

// Version 2 may be mounted beside version 1.
TEST_F(CgroupsHereTest, ADeniedDeviceCannotBeOpenedInVersion2) {
  v1::ControlGroup group;
  for (const auto& own : FindHierarchies("/proc/self/cgroup", "/proc/self/mountinfo")) {
    if (own.unified()) *group.add_hierarchies() = own;
  }
  if (group.hierarchies().empty()) GTEST_SKIP() << "version 2 is not mounted";
  std::string& directory = *group.mutable_hierarchies(0)->mutable_directory();
  directory += fmt::format("/meshrun-test-{}", ::getpid());
  if (!os::MakeDirectories(directory).ok()) GTEST_SKIP() << directory << " cannot be made";
  v1::ResourceLimits limits;
  limits.add_denied()->set_major(1);
  limits.mutable_denied(0)->set_minor(5);
  // Twice: the second program takes the place of the first.
  for (const uint32_t minor : {3, 5}) {
    limits.mutable_denied(0)->set_minor(minor);
    const absl::Status attached = AttachDeviceRules(directory, limits);
    if (!attached.ok()) {
      Remove(group);
      GTEST_SKIP() << attached;
    }
  }
  const int status = Await(Start(group, [] {
    const int other = ::open("/dev/null", O_RDONLY);
    const int denied = ::open("/dev/zero", O_RDONLY);
    return other >= 0 && denied < 0 && errno == EPERM ? 0 : 1;
  }));
  EXPECT_EQ(status, 0);
  Remove(group);
}

TEST_F(CgroupsHereTest, AQuotaHolds) {
  if (!Has("cpu-quota")) GTEST_SKIP() << cgroups_.lacking()[0];
  v1::ResourceLimits limits;
  limits.set_cores(1);
  const v1::ControlGroup group = Make(limits);
  const auto& hierarchy = group.hierarchies(0);
  const std::string file =
      hierarchy.directory() + (hierarchy.unified() ? "/cpu.max" : "/cpu.cfs_quota_us");
  EXPECT_THAT(os::ReadFile(file).value_or("-"), StartsWith("100000"));
  Remove(group);
}

}  // namespace
}  // namespace meshrun::worker
